import dataclasses

import pytest

from nexus.tasks.draws import Draws
from nexus.tasks.fit import Context, Parts, Plan, fit, search


def plan(unit_text="aaaa ", **changes):
    def build(n):
        return Parts(head="head ", body=unit_text * n, question="q", answer_prefix=" a", references=("r",))

    return dataclasses.replace(Plan(unit="units", floor=3, build=build), **changes)


@pytest.fixture
def where(tokenizer):
    draws = Draws(seed=0, task="toy", length=200, index=7)
    return Context(draws=draws, length=200, max_new_tokens=40, tokenizer=tokenizer)


@pytest.mark.parametrize("rate", [1, 3, 7, 40])
@pytest.mark.parametrize("limit", [100, 1_000, 50_000])
@pytest.mark.parametrize("bend", [0, 25])
def test_search_finds_the_most_that_fits_with_few_measurements(rate, limit, bend):
    seen = []

    def tokens_at(n):
        seen.append(n)
        return 20 + rate * n + bend * (n > 50)

    n = search(tokens_at, limit, floor=1, ceiling=None, slack=limit // 100)
    assert tokens_at(n) <= limit
    assert tokens_at(n) >= limit - limit // 100 or tokens_at(n + 1) > limit
    assert len(set(seen)) <= 12


def test_search_stops_at_the_ceiling():
    assert search(lambda n: n, 1000, floor=1, ceiling=30, slack=0) == 30


def test_search_may_end_at_the_floor():
    assert search(lambda n: 100 * n, 199, floor=1, ceiling=None, slack=0) == 1


def test_what_is_fitted_fills_the_length_and_never_exceeds_it(where):
    parts, tokens = fit(plan(), where)
    context, question = where.tokenizer.prompt(parts.context, parts.question, parts.answer_prefix)
    assert tokens == len(context) + len(question)
    assert 0.95 * 200 <= tokens + 40 <= 200


def test_a_floor_that_does_not_fit_is_an_error_with_the_numbers(where):
    """RULER's shrinking loop has no lower end: it went on to zero and below."""
    big = plan(floor=500)
    needed = fit(big, dataclasses.replace(where, length=10_000))[1]
    assert needed  # it is a plan that works at some length
    with pytest.raises(ValueError, match=r"task toy does not fit into L=200 .*floor of 500 units it needs \d+ tokens"):
        fit(big, where)


def test_material_that_runs_out_is_an_error_with_what_is_missing(where):
    with pytest.raises(ValueError, match=r"cannot fill L=200: all 20 units .* about \d+ more"):
        fit(plan(ceiling=20), where)


def test_an_ambiguous_size_is_shrunk_to_a_valid_one(where):
    free, _ = fit(plan(), where)
    size = free.body.count("aaaa")
    shrunk, tokens = fit(plan(valid=lambda n: n < size - 2), where)
    assert shrunk.body.count("aaaa") == size - 3
    assert tokens + 40 <= 200


def test_a_tokenizer_that_changes_the_text_is_refused(where):
    """A needle that went through tokens and back stood garbled in the prompt (Zefan-Cai/KVCache-Factory#62)."""

    class Lowering(type(where.tokenizer)):
        def encode(self, text):
            return super().encode(text.lower())

    lowering = dataclasses.replace(where, tokenizer=Lowering())
    with pytest.raises(ValueError, match=r"toy\[7\] at L=200: .*not found verbatim"):
        fit(plan(unit_text="Aaaa "), lowering)
