"""babi_nexus: answers follow from the facts in the text, which stand there in order; every length is filled."""

import os
import re
from pathlib import Path

import pytest

from nexus import metrics
from nexus.tasks import babi, babi_world, catalog, generated
from tests.tasks.test_babi_world import FACT, replay

SNAPSHOTS = Path(__file__).parent / "snapshots"
TASKS = list(babi.TASKS)


@pytest.fixture
def make(tokenizer, essays):
    return lambda task, length=512, index=0, seed=42: generated.make_example(
        babi.TASKS[task], tokenizer, length, index, seed, essays
    )


def told(example):
    """The facts in the text, in their order."""
    text = example.context.split("<context>\n")[1].split("\n</context>")[0]
    people = "|".join(babi_world.PEOPLE)
    verbs = "|".join(babi_world.MOVES + babi_world.TAKES + babi_world.DROPS)
    return [match[0] for match in re.finditer(rf"\b(?:{people}) (?:{verbs}) the \w+\.", text)]


@pytest.mark.parametrize("index", range(8))
def test_answers_follow_from_the_facts_in_the_text(make, index):
    at, _ = replay(told(one := make("babi_nexus_qa1", index=index)))
    assert at[re.search(r"Where is (\w+)\?", one.question)[1]] == one.references[0]
    _, seen = replay(told(two := make("babi_nexus_qa2", index=index)))
    assert seen[re.search(r"Where is the (\w+)\?", two.question)[1]][-1] == two.references[0]
    _, seen = replay(told(three := make("babi_nexus_qa3", index=index)))
    thing, place = re.search(r"Where was the (\w+) before the (\w+)\?", three.question).groups()
    assert seen[thing].count(place) == 1
    assert seen[thing][seen[thing].index(place) - 1] == three.references[0] != place


@pytest.mark.parametrize("task", TASKS)
def test_the_rule_takes_the_right_place_alone(make, task):
    example = make(task)
    (right,) = example.references
    wrong = next(place for place in example.choices if place != right and place not in example.question)
    assert metrics.score(example, f"It is at the {right}.") == 100
    assert metrics.score(example, f"It is at the {right} or the {wrong}.") == 0
    assert metrics.score(example, "I do not know.") == 0


@pytest.mark.parametrize("task", TASKS)
def test_the_parts_stand_in_the_order_of_the_benchmark(make, task):
    example = make(task)
    marks = ["<example>", "Answer: ", "</example>", "Write nothing after it", "<context>\n", "\n</context>\n"]
    at = [example.context.index(mark) for mark in marks]
    assert at == sorted(at) and example.context.endswith(marks[-1])
    assert re.fullmatch(r"Question: Where (is|was) [\w ]+\?", example.question)


@pytest.mark.parametrize("task", TASKS)
def test_worked_examples_are_right_by_the_same_rules_and_name_no_place_of_the_task(task):
    """An example that is wrong teaches the wrong rule."""
    frame = babi.KINDS[task].frame
    for facts, question, answer in frame.examples:
        at, seen = replay(re.findall(r"[A-Z][^.]*\.", facts))
        *_, asked = re.findall(r"\w+", question)
        last = re.search(r"the (\w+)\.$", answer)[1]
        if task == "babi_nexus_qa1":
            assert at[asked] == last
        elif task == "babi_nexus_qa2":
            assert seen[asked][-1] == last
        else:
            assert seen["kite"][seen["kite"].index(asked) - 1] == last
        assert not any(place in facts for place in babi_world.PLACES)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("length", "count"), [(512, 4), (1024, 4), (2048, 2), (4096, 1), (8192, 1)])
def test_the_prompt_fills_its_length_and_never_exceeds_it(make, tokenizer, task, length, count):
    for index in range(count):
        example = make(task, length, index)
        context, question = tokenizer.prompt(example.context, example.question, example.answer_prefix)
        assert 0.99 * length <= len(context) + len(question) + example.max_new_tokens <= length


def test_facts_are_scattered_over_the_whole_text(make):
    """All in one place would be one needle."""
    shares = []
    for index in range(8):
        example = make("babi_nexus_qa2", 2048, index)
        body = example.context.split("<context>\n")[1]
        assert all(FACT.fullmatch(fact) for fact in told(example))
        shares += [body.index(fact) / len(body) for fact in told(example)]
    assert all(any(low <= share < low + 0.2 for share in shares) for low in (0, 0.2, 0.4, 0.6, 0.8))


def test_the_set_and_its_name():
    assert {catalog.TASKS[name].suite for name in TASKS} == {"babi"}
    assert all(row.variant == "babi-nexus" and row.metric == "babi" for row in babi.TASKS.values())


def test_a_length_without_room_for_the_facts_is_refused(make):
    with pytest.raises(ValueError, match="babi_nexus_qa3 does not fit into L=200"):
        make("babi_nexus_qa3", 200)


@pytest.mark.parametrize("task", TASKS)
def test_snapshot_of_one_prompt(make, task):
    """A change here changes every later score: raise the version, then rerun with NEXUS_UPDATE_SNAPSHOTS=1."""
    example = make(task)
    prompt = example.context + example.question + example.answer_prefix
    text = f"{prompt}\n[references] {' | '.join(example.references)}\n"
    path = SNAPSHOTS / f"{task}.txt"
    if os.environ.get("NEXUS_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
