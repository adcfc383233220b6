"""Files in the schema of LongMemEval, made by hand."""

from __future__ import annotations

import json

import pytest

from nexus.tasks.dialogue import longmemeval


def message(role, content, **more):
    return {"role": role, "content": content} | more


def record(**changes):
    return {
        "question_id": "q1", "question_type": "multi-session", "question": "Which bike?", "answer": "the red one",
        "question_date": "2023/06/01", "haystack_session_ids": ["a", "b"],
        "haystack_dates": ["2023/05/01", "2023/05/20"], "answer_session_ids": ["b"],
        "haystack_sessions": [
            [message("user", "Hi"), message("assistant", "Hello"), message("user", "Bye"),
             message("assistant", "Bye!")],
            [message("assistant", "Welcome back"), message("user", "My bike"),
             message("user", " is red ", has_answer=True), message("assistant", "Nice")],
        ],
    } | changes  # fmt: skip


def load(folder, *records):
    (folder / "longmemeval.json").write_text(json.dumps(list(records)))
    return longmemeval.load(folder, 8192, 99)


def test_sessions_are_fed_turn_by_turn_with_their_dates(tmp_path):
    """A session may begin with the assistant, and one side may speak twice."""
    (one,) = load(tmp_path, record())
    told = [(turn.user, turn.reply) for turn in one.turns if not turn.asked]
    assert told == [
        ("[Chat 1 of 2, 2023/05/01]\nHi", "Hello"),
        ("Bye", "Bye!"),
        ("[Chat 2 of 2, 2023/05/20]\n", "Welcome back"),
        ("My bike\n\n is red ", "Nice"),
    ]
    asked = one.turns[-1]
    assert "2023/06/01" in asked.user and asked.user.endswith("Which bike?")
    assert (asked.metric, asked.references, asked.evidence) == ("proxy", ("the red one",), "is red")
    assert (one.source_id, one.sample_id, one.kind) == ("q1", "q1", "multi-session")


def test_numbers_are_answers_and_what_has_no_proxy_has_no_rule(tmp_path):
    """Preference and abstention are missing, not 0."""
    number, liked, unknown = load(
        tmp_path, record(answer=3), record(question_id="q2", question_type="single-session-preference"),
        record(question_id="q3_abs"),
    )  # fmt: skip
    assert number.turns[-1].references == ("3",)
    assert liked.turns[-1].metric == unknown.turns[-1].metric == "none"
    assert (liked.kind, unknown.kind) == ("single-session-preference", "abstention")


def test_the_line_of_the_official_scorer():
    assert longmemeval.hypothesis("q1", "red") == {"question_id": "q1", "hypothesis": "red"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"question": 4}, "record 1: field 'question' is 4; expected text"),
        ({"question_type": "guess"}, "record 1: field 'question_type' is 'guess'; allowed: single-session-user"),
        ({"haystack_dates": ["x"]}, "record 1: field 'haystack_dates' does not give one text for each of 2 sessions"),
        ({"haystack_sessions": [[], []]}, r"haystack_sessions\[0\]: expected a list of messages, got \[\]"),
        (
            {"haystack_sessions": [[message("user", "a")], [message("system", "b")]]},
            r"haystack_sessions\[1\]\[0\]: field 'role' is 'system'; allowed: user, assistant",
        ),
        ({"haystack_sessions": [[{"role": "user"}], [1]]}, r"haystack_sessions\[0\]\[0\]: field 'content' is missing"),
    ],
)
def test_a_malformed_file_is_refused_with_file_record_and_field(tmp_path, changes, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        load(tmp_path, record(**changes))
    assert "longmemeval.json" in str(error.value)


def test_a_file_that_is_no_list_of_questions_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        longmemeval.load(tmp_path, 100, 1)
    for text, complaint in (("{}", "expected list, got dict"), ("[]", "holds no question"), ("[", "not JSON")):
        (tmp_path / "longmemeval.json").write_text(text)
        with pytest.raises(ValueError, match=complaint):
            longmemeval.load(tmp_path, 100, 1)
