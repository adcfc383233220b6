"""The look-alikes: what each asks has one answer in its text, at any length, in words that no training uses."""

import re
from pathlib import Path

import pytest

from nexus import metrics
from nexus.tasks import generated, longbench_like, prepare
from nexus.tasks import longbench_like_docs as docs
from nexus.tasks import longbench_like_shots as shots
from nexus.training import wordings

TASKS = list(longbench_like.TASKS)


@pytest.fixture
def make(tokenizer):
    def one(task, length=1024, index=0, seed=3):
        return generated.make_example(longbench_like.TASKS[task], tokenizer, length, index, seed)

    return one


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_the_prompt_fills_its_length_and_never_exceeds_it(make, task, length):
    for index in range(3):
        example = make(task, length, index)
        assert 0.92 < example.fill <= 1


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answer_scores_full_and_samples_differ(make, task):
    examples = [make(task, index=index) for index in range(6)]
    assert len({example.context for example in examples}) == 6
    for example in examples:
        assert metrics.score(example, f"{example.references[0]}\nand more") > 30
        assert metrics.score(example, example.references[0]) == 100 and metrics.score(example, "") == 0
    assert make(task) == examples[0]


def test_only_the_tasks_that_go_on_with_a_pattern_are_not_wrapped(make):
    facts = {task: (make(task).chat, make(task).first_line) for task in TASKS}
    assert {task for task, (chat, _) in facts.items() if not chat} == {"like_few_shot", "like_code"}
    assert {task for task, (_, first) in facts.items() if first} == {"like_few_shot"}


def test_they_survive_being_stored(make, tokenizer, tmp_path):
    read = prepare.examples(longbench_like.TASKS["like_few_shot"], tokenizer, 512, 2, 3, tmp_path)
    assert read == [make("like_few_shot", 512, index) for index in range(2)]
    assert read[0].chat is False and read[0].first_line is True


# --- documents --------------------------------------------------------------------------------------------------------
def test_one_deed_of_each_kind_and_the_asked_one_has_the_answer(make):
    asked = set()
    for index in range(8):
        example = make("like_doc_qa", index=index)
        begin = example.answer_prefix.removeprefix("Answer: ")
        assert example.context.count(f"\n{begin} {example.references[0]}.") == 1
        assert sum(example.context.count(text.format(name="").strip()) for text, _ in docs.DEEDS.values()) == 4
        asked.add(begin.partition(" ")[2].partition(" ")[2])
    assert len(asked) > 2


def test_a_question_on_passages_needs_two_of_them(make):
    for index in range(4):
        example = make("like_docs_qa", index=index)
        passages = re.split(r"\n*Passage \d+:\n", example.context)[1:]
        name = re.search(r"employed (\w+ \w+)", example.question)[1]
        with_name = [text for text in passages if f"{name} came" in text]
        with_answer = [text for text in passages if example.references[0] in text]
        assert len(with_name) == 1 and with_answer and with_name[0] not in with_answer


def test_the_count_is_that_of_different_paragraphs(make):
    counts = set()
    for index in range(8):
        example = make("like_count", 2048, index)
        text = example.context.removeprefix(docs.COUNT["head"]).removesuffix(docs.COUNT["tail"])
        paragraphs = [re.sub(r"^Paragraph \d+: ", "", block) for block in text.split("\n\n")]
        assert example.references == (str(len(set(paragraphs))),)
        assert len(set(paragraphs)) < len(paragraphs)
        counts.add(example.references)
    assert len(counts) > 2


def test_the_remark_fits_the_named_paragraph_alone(make):
    numbers = set()
    for index in range(6):
        example = make("like_retrieval", 2048, index)
        name = re.search(r"Here we read of (\w+ \w+),", example.question)[1]
        (line,) = [line for line in example.context.split("\n") if f": {name} came" in line]
        assert line.startswith(f"{example.references[0]}: ")
        numbers.add(example.references)
    assert len(numbers) > 2


# --- patterns ---------------------------------------------------------------------------------------------------------
def test_the_last_sentence_is_not_among_the_solved_ones(make):
    for index in range(6):
        example = make("like_few_shot", index=index)
        assert example.question not in example.context
        topics = re.findall(r"Topic: (\w+)\n", example.context)
        assert set(topics) == set(example.choices) == set(shots.TOPICS)


def test_the_function_that_is_tested_stands_in_the_file_once(make):
    for index in range(4):
        example = make("like_code", 2048, index)
        name = re.fullmatch(r"\n\ndef test_(\w+)\(\):\n", example.question)[1]
        assert example.answer_prefix == f"    assert {name}() =="
        assert example.context.count(f"def {name}():\n    return{example.references[0]}\n") == 1
        names = re.findall(r"def (\w+)\(", example.context)
        assert len(set(names)) == len(names) > shots.SETTINGS
        assert example.context.count("():\n    return ") == shots.SETTINGS
        assert not any(mark in example.references[0] for mark in "`#/")  # such a line would be skipped


# --- words ------------------------------------------------------------------------------------------------------------
def ngrams(text, n=4):
    found = re.findall(r"\w+", re.sub(r"\{\w+\}", " ", text).lower())
    return {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}


def test_no_wording_is_shared_with_a_training():
    """Gates that have seen the test's sentences keep them because they know them: no four words in a row in common."""
    seen = set().union(*map(ngrams, wordings.everything_said()))
    theirs = [text for row in longbench_like.TASKS.values() for text in row.wording.values()]
    theirs += [f"{who} {what}" for whos, whats in shots.TOPICS.values() for who in whos for what in whats]
    assert seen and not seen & set().union(*map(ngrams, theirs))


def test_no_answer_is_a_word_of_a_training():
    trained = {*wordings.THINGS, *wordings.ITEMS, *wordings.PLACES}
    ours = {thing.lower() for things in docs.THINGS.values() for thing in things}
    ours |= {*shots.TOPICS, *shots.NOUNS, *shots.KINDS, *shots.VALUES, *shots.VERBS, *shots.CALLS}
    assert not ours & trained
    for module in (longbench_like, docs, shots):
        assert "training" not in "".join(
            re.findall(r"^(?:from|import) .*", Path(module.__file__).read_text("utf-8"), re.M)
        )
