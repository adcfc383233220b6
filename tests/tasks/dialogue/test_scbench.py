"""Files in the schema of SCBench, made by hand."""

from __future__ import annotations

import json

import pytest

from nexus.tasks.dialogue import scbench


def write(folder, task, *records):
    (folder / f"{task}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return scbench.load(folder, task, 4096, 99)


def turn(**changes):
    return {"input": "What is k?", "answer": "v-1"} | changes


def test_turns_context_and_limits(tmp_path):
    one, two = write(
        tmp_path, "scbench_kv",
        {"id": 0, "context": "k: v-1", "multi_turns": [turn(), turn(input="And j?", answer=["v-2"])]},
        {"id": 1, "context": "x", "multi_turns": [turn(answer=7)]},
    )  # fmt: skip
    assert one.context == "k: v-1\n\n" and [t.user for t in one.turns] == ["What is k?", "And j?"]
    assert [t.references for t in one.turns] == [("v-1",), ("v-2",)] and two.turns[0].references == ("7",)
    assert {(t.metric, t.max_new_tokens, t.asked) for t in one.turns} == {("contains", 150, True)}
    assert one.turns[0].reply == "v-1" and (one.index, two.index) == (0, 1)
    assert one.variant == "scbench-nexus" and one.template_hash == two.template_hash
    assert len(scbench.load(tmp_path, "scbench_kv", 4096, 1)) == 1


def test_options_get_letters_whether_the_answer_is_a_letter_or_a_text(tmp_path):
    options = ["red", "green", "blue", "grey"]
    (one,) = write(
        tmp_path, "scbench_choice_eng",
        {"context": "c", "multi_turns": [turn(answer="blue", options=options), turn(answer=["B"], options=options)]},
    )  # fmt: skip
    assert [t.references for t in one.turns] == [("C",), ("B",)]
    assert "A. red\nB. green\nC. blue\nD. grey" in one.turns[0].user
    assert one.turns[0].reply == " C" and one.turns[0].answer_prefix


def test_mixed_tasks_have_a_rule_for_each_turn(tmp_path):
    (one,) = write(
        tmp_path, "scbench_summary_with_needles",
        {"context": "c", "multi_turns": [turn(task="scbench_summary"), turn(task="scbench_passkey", answer=123)]},
    )  # fmt: skip
    assert [(t.metric, t.max_new_tokens) for t in one.turns] == [("none", 800), ("digits", 15)]


@pytest.mark.parametrize(
    ("task", "record", "complaint"),
    [
        ("scbench_kv", {"multi_turns": [turn()]}, "line 1: field 'context' is missing"),
        ("scbench_kv", {"context": "c"}, "line 1: field 'multi_turns' is missing"),
        ("scbench_kv", {"context": "c", "multi_turns": []}, "line 1: field 'multi_turns' is empty"),
        ("scbench_kv", {"context": "c", "multi_turns": [turn(), {"input": "?"}]}, r"multi_turns\[1\]: field 'answer'"),
        ("scbench_kv", {"context": "c", "multi_turns": [turn(answer=[""])]}, r"multi_turns\[0\]: field 'answer' is"),
        ("scbench_kv", {"context": "c", "multi_turns": [turn(input=3)]}, "field 'input' is 3; expected text"),
        ("scbench_choice_eng", {"context": "c", "multi_turns": [turn()]}, "field 'options' is missing"),
        ("scbench_choice_eng", {"context": "c", "multi_turns": [turn(options=["a"])]}, "expected 4 texts"),
        ("scbench_choice_eng", {"context": "c", "multi_turns": [turn(options=list("wxyz"))]}, "'v-1'; expected A to D"),
        ("scbench_repoqa_and_kv", {"context": "c", "multi_turns": [turn()]}, "field 'task' is missing"),
        ("scbench_repoqa_and_kv", {"context": "c", "multi_turns": [turn(task="kv")]}, "'kv'; allowed: scbench_repoqa"),
    ],
)
def test_a_malformed_file_is_refused_with_file_line_and_field(tmp_path, task, record, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        write(tmp_path, task, record)
    assert f"{task}.jsonl" in str(error.value)


def test_unknown_tasks_and_missing_or_empty_files(tmp_path):
    with pytest.raises(ValueError, match="unknown task 'scbench_x'"):
        scbench.load(tmp_path, "scbench_x", 10, 1)
    with pytest.raises(ValueError, match="no file .*scbench_mf.jsonl; expected one JSON object per line"):
        scbench.load(tmp_path, "scbench_mf", 10, 1)
    (tmp_path / "scbench_mf.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        scbench.load(tmp_path, "scbench_mf", 10, 1)
