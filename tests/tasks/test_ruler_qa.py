"""Documents and a question: which documents are there, in which order, and how the length is filled."""

import re

import pytest

from nexus.tasks import fit, ruler_qa
from nexus.tasks.draws import Draws
from nexus.tasks.fit import Context
from nexus.tasks.ruler_qa import Case

CASE = Case(
    question="Who?",
    answers=("Ada", "Ada L."),
    gold=("It was Ada L. who did it.", "And this is needed too."),
    others=lambda i: f"Paper {i} has nothing to say about anybody at all.",
)


@pytest.fixture
def where(tokenizer):
    def at(length, index=0):
        draws = Draws(seed=1, task="qa", length=length, index=index)
        return Context(draws=draws, length=length, max_new_tokens=32, tokenizer=tokenizer)

    return at


def documents(context):
    return re.findall(r"Document (\d+):\n(.*)\n\n", context)


def test_the_documents_of_the_question_are_whole_and_the_others_in_order_of_need(where):
    parts = ruler_qa.plan(CASE, where(512)).build(23)
    found = documents(parts.context)
    assert [number for number, _ in found] == ["1", "2", "3", "4", "5"]
    others = [CASE.others(0), CASE.others(1), "Paper 2 has"]  # ten words each
    assert sorted(text for _, text in found) == sorted([*CASE.gold, *others])


def test_the_instruction_stands_before_and_after_the_documents(where):
    """The question starts with the second one, so the evictor has seen the first alone."""
    parts = ruler_qa.plan(CASE, where(512)).build(0)
    instruction = ruler_qa.WORDING["instruction"]
    assert parts.context.startswith(instruction) and parts.context.count(instruction) == 1
    assert parts.question == f"{instruction}\n\nQuestion: Who?"
    assert (parts.answer_prefix, parts.references) == (" Answer:", ("Ada", "Ada L."))


def test_the_place_of_the_answer_changes_from_sample_to_sample(where):
    places = set()
    for index in range(12):
        found = documents(ruler_qa.plan(CASE, where(512, index)).build(60).context)
        places.add([text for _, text in found].index(CASE.gold[0]))
    assert len(places) > 4


def test_what_does_not_fit_with_its_own_documents_is_refused(where):
    with pytest.raises(ValueError, match="qa does not fit into L=100 .* floor of 0 words of documents beside the 2 of"):
        fit.fit(ruler_qa.plan(CASE, where(100)), where(100))


def test_nothing_is_taken_where_nothing_is_wanted():
    assert ruler_qa.first_words(CASE.others, 0) == []
    assert ruler_qa.first_words(CASE.others, 10) == [CASE.others(0)]
