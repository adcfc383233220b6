"""Held-out wording: RULER's construction in other sentences."""

import re

import pytest

from nexus.tasks import generated, heldout, ruler, ruler_niah

SENTENCE = re.compile(r"Note on (.+?): its calibration number came out as (\d{7})\.")
LIKE = {
    "heldout_single": "niah_single_2",
    "heldout_multikey": "niah_multikey_1",
    "heldout_multivalue": "niah_multivalue",
    "heldout_multiquery": "niah_multiquery",
}


@pytest.fixture
def make_heldout(tokenizer, essays):
    return lambda task, index=0: generated.make_example(heldout.TASKS[task], tokenizer, 1024, index, 42, essays)


@pytest.mark.parametrize("task", heldout.TASKS)
def test_the_construction_is_that_of_rulers_task(task):
    """Another number of keys or values would compare two tasks, not two wordings."""
    assert heldout.TASKS[task].planner.args[0] == ruler.TASKS[LIKE[task]].planner.args[0]
    assert heldout.TASKS[task].max_new_tokens == ruler.TASKS[LIKE[task]].max_new_tokens


@pytest.mark.parametrize("task", heldout.TASKS)
def test_each_answer_stands_once_in_a_needle_of_its_key(make_heldout, task):
    for index in range(3):
        example = make_heldout(task, index)
        found = dict.fromkeys(SENTENCE.findall(example.context))
        assert {value for key, value in found if key in example.question} == set(example.references)
        assert all(example.context.count(reference) == 1 for reference in example.references)
        assert 0.95 <= example.fill <= 1
        assert ("are" if len(example.references) > 1 else "is") in example.question.split()


def test_no_four_words_in_a_row_are_rulers():
    """Else it is no other wording."""

    def grams(wording):
        texts = [re.findall(r"\w+", re.sub(r"\{\w+\}", " ", text).lower()) for text in wording.values()]
        return {tuple(text[i : i + 4]) for text in texts for i in range(len(text) - 3)}

    assert grams(heldout.WORDING) and not grams(heldout.WORDING) & grams(ruler_niah.WORDING)
