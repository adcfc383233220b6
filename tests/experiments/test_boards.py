"""Tables before they become text: order, ranks, what a cell says."""

from __future__ import annotations

import pytest

from experiments import boards
from experiments.summary import Summary
from nexus.metrics import Interval

COSTS = {"kv_bytes_allocated": 2e6, "kv_bytes_live": 1e6, "decode_tokens_per_s": 10.0, "num_examples": 3}


def row(method, budget, mean):
    score = {"ratio": None, "score": mean or 0.0, "score_low": None, "score_high": None} | COSTS
    interval = None if mean is None else Interval(mean, mean - 1, mean + 1)
    return Summary(length=64, method=method, budget=budget, ratio=None, rows={"vt": score}, mean=interval,
                   difference=None, against={}, same_answers=False)  # fmt: skip


GRID = [row("full", 64, 90.0), row("a", 8, 10.0), row("a", 16, 20.0), row("b", 8, 30.0), row("b", 16, 20.0),
        row("c", 8, None), row("d", 16, 5.0)]  # fmt: skip


def test_ranks_are_among_methods_of_one_budget_and_shared_by_equals():
    assert boards.ranks(GRID) == {("a", 8): 2, ("b", 8): 1, ("a", 16): 1, ("b", 16): 1, ("d", 16): 3}


def test_the_full_cache_comes_first_then_large_budgets_then_good_ones():
    order = [(r.method, r.budget) for r in boards.in_order(GRID)]
    assert order == [("full", 64), ("a", 16), ("b", 16), ("d", 16), ("b", 8), ("a", 8), ("c", 8)]


def test_cells_say_what_a_person_reads_and_sort_by_the_number():
    class Results:
        config = {"eval": {"full_floor": 25.0, "tasks": ["vt"]}}
        rows: list = []

    board = boards.scores(Results(), 64, GRID)
    by_name = dict(zip(board.head, board.body[1], strict=True))
    assert by_name["mean of 1"] == boards.Cell("20.0 [19, 21]", 20.0)
    assert by_name["KV MB"] == boards.Cell("2.00", 2e6) and by_name["rank"] == boards.Cell("1", 1)
    assert dict(zip(board.head, board.body[-1], strict=True))["mean of 1"] == boards.Cell("-", None)


def test_markdown_tables_survive_bars_in_names():
    board = boards.Board(caption="", head=["a|b", "n"], body=[[boards.Cell("x|y"), boards.Cell("1", 1)]])
    lines = boards.markdown(board).splitlines()
    assert lines[0] == "| a\\|b |   n |" and lines[2] == "| x\\|y |   1 |"


@pytest.mark.parametrize(("interval", "text"), [(Interval(5.0, float("nan"), float("nan")), "5.0"), (None, "-")])
def test_an_unknown_interval_is_left_out(interval, text):
    assert boards._interval(interval).text == text
