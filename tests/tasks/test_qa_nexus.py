"""The look-alikes of RULER's question answering: one document, or two that must be combined."""

import os
import re
from pathlib import Path

import pytest

from nexus.tasks import catalog, generated, qa_nexus, qa_world

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def make(tokenizer):
    return lambda task, length, index=0, seed=42: generated.make_example(
        qa_nexus.TASKS[task], tokenizer, length, index, seed
    )


def documents(example):
    return re.findall(r"Document \d+:\n(.*)\n\n", example.context)


def test_they_say_that_they_are_not_those_of_ruler():
    for name, row in qa_nexus.TASKS.items():
        assert row.variant == "qa-nexus" and catalog.TASKS[name].suite == "ours"
        assert (row.metric, row.max_new_tokens) == ("part", 32)


@pytest.mark.parametrize("index", range(6))
def test_one_document_answers_the_first(make, index):
    example = make("qa_nexus_1", 1024, index)
    (name,) = [n for n in re.findall(r"[A-Z]\w+ [A-Z]\w+", example.question.split("\n")[-1]) if n in example.context]
    own = [text for text in documents(example) if text.startswith(name)]
    assert len(own) == 1 and example.references[0] in own[0]


@pytest.mark.parametrize("index", range(6))
def test_the_second_needs_two_documents(make, index):
    """The document about the person names the place, the one about the place holds the answer."""
    example = make("qa_nexus_2", 1024, index)
    texts = documents(example)
    answered = [text for text in texts if example.references[0] in text]
    name = re.search(r"employed (\w+ \w+)", example.question)[1]
    (person,) = [text for text in texts if text.startswith(name)]
    assert person not in answered
    place = re.search(rf"the (\w+ \w+ (?:{'|'.join(qa_world.KIND)}))", person)[1]
    assert any(f"he {place}" in text for text in answered)


@pytest.mark.parametrize("task", qa_nexus.TASKS)
@pytest.mark.parametrize(("length", "count"), [(512, 4), (1024, 4), (2048, 2), (4096, 1), (8192, 1)])
def test_the_prompt_fills_its_length_and_never_exceeds_it(make, tokenizer, task, length, count):
    for index in range(count):
        example = make(task, length, index)
        context, question = tokenizer.prompt(example.context, example.question, example.answer_prefix)
        total = len(context) + len(question) + example.max_new_tokens
        new_document = 12  # tokens: number, wrapping and one word
        assert length - max(0.01 * length, new_document) <= total <= length


def test_every_question_of_a_kind_is_asked(make):
    asked = {make("qa_nexus_1", 512, i).question.split("Question: ")[1].split()[0] for i in range(30)}
    assert asked == {text.split()[0] for text in qa_world.ASK.values()}


@pytest.mark.parametrize("task", qa_nexus.TASKS)
def test_snapshot_of_one_prompt(make, tokenizer, task):
    """A change here changes every later score: raise the version, then rerun with NEXUS_UPDATE_SNAPSHOTS=1."""
    example = make(task, 512)
    prompt = example.context + example.question + example.answer_prefix
    text = f"{prompt}\n[references] {' | '.join(example.references)}\n"
    path = SNAPSHOTS / f"{task}.txt"
    if os.environ.get("NEXUS_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
