"""Conversations made here: they fit, they hold their answers, they repeat, and their words are their own."""

from __future__ import annotations

import re

import pytest

from nexus.tasks.dialogue import facts, longmemeval, made, scbench, scoring, script
from nexus.training import wordings

LENGTHS = {"facts_told": 1600, "scb_kv": 2600, "scb_prefix_suffix": 1800, "scb_mf": 1300, "scb_vt": 1700}


@pytest.fixture
def make(bytes_tokenizer, essays):
    def one(task, length=None, index=0, seed=7, questions=4):
        length = LENGTHS[task] if length is None else length
        return made.make(task, bytes_tokenizer, length, index, seed, questions, essays)

    return one


@pytest.mark.parametrize("task", made.ROWS)
def test_a_conversation_fills_its_length_and_no_more(task, make, bytes_tokenizer):
    for index in range(3):
        one = make(task, index=index)
        needs = script.render(one, bytes_tokenizer).needs()
        assert 0.95 * one.length <= needs <= one.length
        assert len(one.asked) == 4 and one.told_first
        assert script.render(one, bytes_tokenizer, "multi_request").needs() <= needs


@pytest.mark.parametrize("task", made.ROWS)
def test_the_golden_answer_scores_full_marks_and_another_turn_s_none(task, make):
    one = make(task)
    asked = [one.turns[i] for i in one.asked]
    for turn, other in zip(asked, [*asked[1:], asked[0]], strict=True):
        assert scoring.scores(turn, turn.reply) == {"score": 100.0}
        assert scoring.scores(turn, other.reply) == {"score": 0.0}
        assert scoring.scores(turn, "") == {"score": 0.0}


@pytest.mark.parametrize("task", made.ROWS)
def test_a_conversation_depends_on_its_names_alone(task, make):
    """One global generator changed all later samples with one extra draw (NVIDIA/RULER)."""
    assert make(task, index=2) == make(task, index=2)
    assert len({str(make(task, index=i, seed=s).turns) for i, s in ((0, 7), (1, 7), (0, 8))}) == 3


def test_keys_are_asked_from_all_parts_of_the_object(make):
    """Keys of the end alone would be found by a window."""
    one = make("scb_kv", length=4000)
    pairs = re.findall(r'"[^"]+": "[^"]+"', one.context)
    places = [pairs.index(turn.evidence) for turn in one.turns]
    edges = [len(pairs) * i // 4 for i in range(5)]
    assert all(low <= at < high for at, low, high in zip(sorted(places), edges, edges[1:], strict=False))


def test_beginning_or_end_alone_do_not_name_a_string(make):
    one = make("scb_prefix_suffix")
    lines = one.context.strip().split("\n")
    for turn in one.turns:
        (gold,) = turn.references
        first, last = gold[: len(gold) // 3], gold[-(len(gold) // 3) :]
        begin, end = {x for x in lines if x.startswith(first)}, {x for x in lines if x.endswith(last)}
        assert len(begin) == 2 and len(end) == 2 and begin & end == {gold}


def test_ranks_are_those_of_the_list(make):
    one = make("scb_mf", questions=6)
    numbers = sorted(int(n) for n in re.findall(r"\d+", one.context))
    assert len(set(numbers)) == len(numbers)
    expected = [numbers[-1], numbers[0], numbers[-2], numbers[1], numbers[-3], numbers[2]]
    assert [int(turn.references[0]) for turn in one.turns] == expected


def test_chains_are_mixed_and_each_is_in_order(make):
    one = make("scb_vt")
    for turn in one.turns:
        names = turn.references
        places = [one.context.index(f"VAR {name} = ") for name in names]
        assert places == sorted(places)
        for before, name in zip(names, names[1:], strict=False):
            assert f"VAR {name} = VAR {before}\n" in one.context + "\n"
    order = re.findall(r"VAR (\w+) =", one.context)
    owner = {name: i for i, turn in enumerate(one.turns) for name in turn.references}
    groups = [owner[name] for name in order]
    assert groups != sorted(groups, key=groups.index), "statements of different chains alternate"


def test_facts_are_told_early_and_asked_late_at_different_distances(make, bytes_tokenizer):
    one = make("facts_told", length=3000, questions=5)
    made_of = script.render(one, bytes_tokenizer)
    starts = [sum(map(len, made_of.pieces[:i])) for i in range(len(made_of.pieces))]
    distances = []
    for i in one.asked:
        piece, end = made_of.evidence[i]
        distances.append(starts[i + 1] - starts[piece] - end)
    assert max(distances) > 2 * min(distances) > 0
    values = [one.turns[i].references[0] for i in one.asked]
    assert len(set(values)) == 5
    told = "".join(turn.user for turn in one.turns if not turn.asked)
    assert all(told.count(value) == 1 for value in values)
    kinds = [next(f.kind for f in facts.FACTS if f.ask == one.turns[i].user) for i in one.asked]
    assert set(kinds) == set(facts.KINDS), "as different from each other as can be"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("scb_vtx",), "unknown task 'scb_vtx'; allowed: facts_told"),
        (("scb_kv", 300), "task scb_kv does not fit into L=300 .sample 0.: with 4 questions and its floor of 4 pairs"),
        (("scb_mf", 60_000), "cannot fill L=60000: all 9000 numbers"),
        (("scb_mf", 1300, 0, 7, 11), "has 10 different questions, not 11"),
        (("facts_told", 9000, 0, 7, 13), "has 12 things to ask for, not 13"),
        (("facts_told", 900, 0, 7, 0), "questions is 0"),
        (("facts_told", 900, -1), "index is -1"),
    ],
)
def test_what_cannot_be_made_is_refused(make, arguments, complaint):
    if arguments[0] == "scb_vtx":
        with pytest.raises(ValueError, match=complaint):
            make("scb_vtx", 900)
        return
    with pytest.raises(ValueError, match=complaint):
        make(*arguments)


def texts(value) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for part in (value.values() if isinstance(value, dict) else value) for text in texts(part)]


def test_no_wording_is_shared_with_trainings():
    """Gates that have seen the test's sentences keep them because they know them: no four words in a row in common."""

    def ngrams(text: str) -> set[tuple[str, ...]]:
        found = re.findall(r"\w+", re.sub(r"\{\w+\}", " ", text).lower())
        return {tuple(found[i : i + 4]) for i in range(len(found) - 3)}

    own = [text for row in made.ROWS.values() for text in texts(dict(row.wording))]
    own += [kind.ask for kinds in scbench.TASKS.values() for kind in kinds.values()] + texts(longmemeval.WORDING)
    seen = set().union(*map(ngrams, wordings.everything_said()))
    assert seen and not seen & set().union(*map(ngrams, own))
