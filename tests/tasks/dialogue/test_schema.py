"""What a conversation refuses to be."""

from __future__ import annotations

import pytest

from nexus.tasks.dialogue.schema import METRICS, Conversation, Turn
from nexus.tasks.dialogue.scoring import MEASURES


def conversation(*turns: Turn) -> Conversation:
    return Conversation(
        task="t", index=3, context="", turns=turns, length=100, variant="v", template_hash="h", source_id=""
    )


def told(text: str = "a") -> Turn:
    return Turn(user=text, reply="ok", asked=False)


def asked(**changes) -> Turn:
    return Turn(**({"user": "a?", "reply": "b", "references": ("b",), "metric": "any", "max_new_tokens": 4} | changes))


def test_every_rule_is_known_to_the_scorer():
    assert set(METRICS) == set(MEASURES)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"metric": "judge"}, "metric 'judge'; allowed: contains"),
        ({"max_new_tokens": 0}, "max_new_tokens of at least 1, got 0"),
        ({"references": ()}, "at least one, and none empty"),
        ({"references": ("x", "")}, "at least one, and none empty"),
    ],
)
def test_a_turn_that_cannot_be_asked_or_scored_is_refused(changes, complaint):
    """An empty reference is found in every answer."""
    with pytest.raises(ValueError, match=complaint):
        asked(**changes)


def test_asked_turns_are_found_and_told_ones_may_stand_between():
    one = conversation(told(), asked(), told(), asked())
    assert one.asked == (1, 3) and not one.told_first
    assert conversation(told(), told(), asked()).told_first
    assert one.sample_id == "t-100-3"
    with pytest.raises(ValueError, match=r"t\[3\]: no turn is asked"):
        conversation(told())
