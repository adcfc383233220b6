"""Rules on awkward strings: each line is an answer that some scorer got wrong or could."""

from __future__ import annotations

import pytest

from nexus.tasks.dialogue import scoring
from nexus.tasks.dialogue.schema import Turn


def score(metric: str, prediction: str, *references: str) -> dict[str, float]:
    turn = Turn(user="?", reply="", references=references, metric=metric, max_new_tokens=9)
    return scoring.scores(turn, prediction)


@pytest.mark.parametrize(
    ("metric", "prediction", "references", "expected"),
    [
        ("contains", ' "ab12-CD".', ("ab12-CD",), 100),
        ("contains", "ab12-cd", ("ab12-CD",), 0),  # case counts
        ("contains", "ab12-\nCD", ("ab12-CD",), 0),
        ("contains", "", ("x",), 0),
        ("contains", "two or one", ("one", "1"), 100),
        ("any", "It was PARIS.", ("London", "Paris"), 100),
        ("any", "Par is", ("Paris",), 0),
        ("all", "ABCDE fghij", ("abcde", "FGHIJ", "KLMNO", "PQRST"), 50),  # a share, not all or nothing
        ("number", " 42.", ("42",), 100),
        ("number", "The 2nd: 42", ("42",), 0),  # the first number counts
        ("number", "42.0", ("42",), 100),
        ("number", "42.9", ("42",), 0),
        ("number", "-5 it is", ("5",), 0),
        ("number", "-5 it is", ("-5",), 100),
        ("number", "item-7", ("7",), 100),  # a hyphen is no minus
        ("number", "none", ("0",), 0),
        ("digits", "key 00712, 5", ("00712",), 100),  # as text: zeros count
        ("digits", "712", ("00712",), 0),
        ("digits", "12\n34", ("12",), 100),
    ],
)
def test_rules(metric, prediction, references, expected):
    assert score(metric, prediction, *references) == {"score": expected}


@pytest.mark.parametrize(
    ("prediction", "letter"),
    [
        ("B", "B"),
        (" C. because", "C"),
        ("(D) the last", "D"),
        ("**A**", "A"),
        ('"B"', "B"),
        ("Apple pie", ""),  # no letter of its own
        ("Because of it, the answer is: C", "C"),
        ("Bob says the answer is (B).", "B"),
        ("answer: D", "D"),
        ("I think that C fits, not A", "C"),
        ("the answer is Cats", ""),
        ("the answer is unknown, E", ""),
        ("", ""),
        ("\n\n A", "A"),
    ],
)
def test_the_chosen_option(prediction, letter):
    assert scoring.chosen_letter(prediction) == letter
    assert score("choice", prediction, "B") == {"score": 100.0 if letter == "B" else 0.0}


def test_proxies_are_called_proxies():
    """A substring is no judge: its column must not be taken for LongMemEval's score."""
    found = score("proxy", "I'd say: The Blue-Bird café, 15 May!", "bluebird café")
    assert found["proxy_substring"] == 100.0 and 0 < found["proxy_token_f1"] < 100
    assert score("proxy", "in 15 days", "5")["proxy_substring"] == 0.0, "5 is not in 15"
    assert score("proxy", "", "the")["proxy_substring"] == 0.0, "a reference of articles alone is found nowhere"
    assert set(found) == set(scoring.MEASURES["proxy"])


def test_what_has_no_rule_has_no_score():
    """Missing is not 0."""
    assert score("none", "anything", "x") == {} and score("agreement", "anything") == {}


def test_agreement_with_the_full_cache():
    assert scoring.agreement("same", [1, 2], "same", [1, 2]) == {"agree_token_f1": 100.0, "agree_first_32": 100.0}
    assert scoring.agreement("", [], "", []) == {"agree_token_f1": 100.0, "agree_first_32": 100.0}
    half = scoring.agreement("one two", [1, 2, 3], "two three", [1, 2, 9, 9])
    assert half["agree_token_f1"] == pytest.approx(50) and half["agree_first_32"] == pytest.approx(50)
    longer = scoring.agreement("x", [7] * 32 + [1], "x", [7] * 32 + [2])
    assert longer["agree_first_32"] == 100.0, "only the first 32 tokens count"
