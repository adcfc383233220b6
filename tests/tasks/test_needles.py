"""The needles: every phrase stands in its sentence and says something that the question does not give away."""

import pytest

from nexus import metrics
from nexus.tasks.needles import NEEDLES


@pytest.mark.parametrize("needle", NEEDLES, ids=lambda needle: needle.sentence[:20])
def test_a_needle_answers_its_question_and_the_question_does_not(needle):
    groups = ["|".join(phrases) for phrases in needle.phrases]
    assert len(groups) >= 2  # a single phrase would score 0 or 100 only
    assert metrics.key_phrases(needle.sentence, groups) == 1.0
    assert metrics.key_phrases(needle.question, groups) == 0.0
    assert all(phrase == phrase.lower() and "|" not in phrase for phrases in needle.phrases for phrase in phrases)
    assert needle.sentence.endswith(".") and needle.question.endswith("?")


def test_no_needle_answers_the_question_of_another():
    assert len({needle.sentence for needle in NEEDLES}) == len(NEEDLES) == 12
    for needle in NEEDLES:
        groups = ["|".join(phrases) for phrases in needle.phrases]
        assert all(metrics.key_phrases(other.sentence, groups) == 0 for other in NEEDLES if other is not needle)
