"""The tables of a report, before they become Markdown or a page: what stands in each cell, and what it sorts by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from experiments.paired import Pair
from experiments.summary import FULL, Results, Row, Summary, in_mean, tasks_above_floor
from nexus.metrics import Interval

MB = 1e6
NOT_MEANINGFUL = "not meaningful"  # in a task on which the full cache stays below the floor there is nothing to lose


@dataclasses.dataclass(frozen=True)
class Cell:
    """Text for a reader; `value` is what a column sorts by, None goes last."""

    text: str
    value: float | str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """A table. The first column names the row."""

    caption: str
    head: list[str]
    body: list[list[Cell]]


# --- scores -----------------------------------------------------------------------------------------------------------
def ranks(grid: Sequence[Summary]) -> dict[tuple[str, int], int]:
    """(method, budget) -> place by mean score among the methods at this budget, 1 = best; equal means share a place.

    The full cache and methods without a mean have none.
    """
    means = {(r.method, r.budget): round(r.mean.mean, 6) for r in grid if r.method != FULL and r.mean is not None}
    return {
        entry: 1 + sum(other > mean for (_, budget), other in means.items() if budget == entry[1])
        for entry, mean in means.items()
    }


def in_order(grid: Sequence[Summary]) -> list[Summary]:
    """The full cache, then from the largest budget to the smallest, in each by rank; without a mean last."""
    place = ranks(grid)
    return sorted(
        grid, key=lambda r: (r.method != FULL, -r.budget, place.get((r.method, r.budget), math.inf))
    )  # stable: equal ones stay as they ran


def scores(results: Results, length: int, grid: Sequence[Summary]) -> Board:
    """The leaderboard of a length. Tasks below the floor stand last, and their numbers are not in the mean."""
    tasks, failed = tasks_above_floor(results, length)
    place = ranks(grid)
    full = next((row for row in grid if row.method == FULL), None)
    others = list(dict.fromkeys(name for row in grid for name in row.against))
    below = {row["task"]: row for row in failed}
    body = []
    for row in in_order(grid):
        share = row.mean.mean / full.mean.mean if full and full.mean and full.mean.mean and row.mean else None
        rank = place.get((row.method, row.budget))
        body.append(
            [
                Cell(row.method, row.method),
                Cell(_budget(row), row.budget),
                Cell("-" if rank is None else str(rank), rank),
                _interval(row.mean),
                _interval(row.difference, sign="+"),
                *(_interval(row.against.get(name), sign="+") for name in others),
                Cell("-" if share is None else f"{share:.0%}", share),
                *(_score(row.rows.get(task)) for task in tasks),
                *(_below(row, failure) for failure in below.values()),
                _number(row.average("kv_bytes_allocated"), ".2f", MB),
                _number(row.average("kv_bytes_live"), ".2f", MB),
                _number(row.average("decode_tokens_per_s"), ".1f"),
                Cell(str(n := min(r["num_examples"] for r in row.rows.values())), n),
            ]
        )
    head = ["method", "budget", "rank", f"mean of {len(in_mean(tasks))}", "minus full",
            *(f"minus {name}" for name in others), "of full", *tasks, *below,
            "KV MB", "KV live MB", "decode tok/s", "n"]  # fmt: skip
    return Board(caption=f"Scores at length {length}", head=head, body=body)


SCORES_NOTE = (
    "Rank: by the mean, among the methods at the same budget. KV: bytes of keys and values, as allocated and as in use "
    "(mean), per sequence. Minus full, or another method at the same budget: paired, "
    "example by example."
)


def _below(row: Summary, failure: Row) -> Cell:
    if row.method == FULL:
        return Cell(f"{failure['score']:.1f}, {NOT_MEANINGFUL}", failure["score"])
    return Cell(NOT_MEANINGFUL)


# --- cost -------------------------------------------------------------------------------------------------------------
COSTS_NOTE = (
    "Kept: entries per head after the context as a share of its tokens, mean and largest head. KV live: rows in use, "
    "mean; KV allocated: what the buffers take. Compile time is not part of the speeds. Null: empty answers. Cut: "
    "answers stopped by the token limit. Fill: smallest share of the length that a prompt uses."
)


def costs(length: int, grid: Sequence[Summary]) -> Board:
    """What the answers of a length cost."""
    head = ["method", "budget", "kept", "kept max", "KV live MB", "KV allocated MB", "peak MB", "prefill tok/s",
            "decode tok/s", "compile s", "null", "cut", "fill"]  # fmt: skip
    body = []
    for row in in_order(grid):
        rows = list(row.rows.values())
        body.append(
            [
                Cell(row.method, row.method),
                Cell(_budget(row), row.budget),
                _number(row.average("kept_fraction_mean"), ".1%"),
                _number(max(r["kept_fraction_max"] for r in rows), ".1%"),
                _number(row.average("kv_bytes_live"), ".2f", MB),
                _number(row.average("kv_bytes_allocated"), ".2f", MB),
                _number(row.average("peak_bytes"), ".0f", MB),
                _number(row.average("prefill_tokens_per_s"), ".0f"),
                _number(row.average("decode_tokens_per_s"), ".1f"),
                _number(sum(r["compile_s"] for r in rows), ".1f"),
                _number(sum(r["nulls"] for r in rows), "d"),
                _number(row.average("truncated_share"), ".0%"),
                _number(min(r["fill_min"] for r in rows), ".2f"),
            ]
        )
    return Board(caption=f"Cost at length {length}", head=head, body=body)


# --- two runs ---------------------------------------------------------------------------------------------------------
def paired(pair: Pair) -> Board:
    """Every cell that two runs share."""
    head = ["method", "budget", "length", "task", pair.first, pair.second, "difference", "n", "answers changed"]
    body = [
        [
            Cell(line.method, line.method),
            Cell("all" if line.method == FULL else str(line.budget), line.budget),
            Cell(str(line.length), line.length),
            Cell(line.task, line.task),
            _number(line.first, ".1f"),
            _number(line.second, ".1f"),
            _interval(line.difference, sign="+"),
            Cell(str(line.num_examples), line.num_examples),
            Cell(str(line.changed), line.changed),
        ]
        for line in pair.lines
    ]
    return Board(caption=f"{pair.second} minus {pair.first}, example by example", head=head, body=body)


# --- text -------------------------------------------------------------------------------------------------------------
def markdown(board: Board) -> str:
    """A Markdown table with padded columns, so that it reads well unrendered too."""
    texts = [board.head, *([cell.text for cell in row] for row in board.body)]
    lines = [[text.replace("|", "\\|") for text in row] for row in texts]
    widths = [max(3, *(len(row[i]) for row in lines)) for i in range(len(board.head))]
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join(line(cells) for cells in [lines[0], rule, *lines[1:]])


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table of plain texts."""
    return markdown(Board(caption="", head=list(head), body=[[Cell(text) for text in row] for row in body]))


def _budget(row: Summary) -> str:
    if row.method == FULL:
        return "all"
    return f"{row.budget}" if row.ratio is None else f"{row.budget} ({row.ratio:g})"


def _score(row: Row | None) -> Cell:
    if row is None:
        return Cell("-")
    low, high = (math.nan if row[name] is None else row[name] for name in ("score_low", "score_high"))
    return _interval(Interval(row["score"], low, high))


def _interval(interval: Interval | None, sign: str = "") -> Cell:
    if interval is None:
        return Cell("-")
    if math.isnan(interval.low):
        return Cell(f"{interval.mean:{sign}.1f}", interval.mean)
    low, high = f"{interval.low:{sign}.0f}", f"{interval.high:{sign}.0f}"
    return Cell(f"{interval.mean:{sign}.1f} [{low}, {high}]", interval.mean)


def _number(value: float | None, form: str, unit: float = 1.0) -> Cell:
    if value is None:
        return Cell("-")
    return Cell(format(value if unit == 1.0 else value / unit, form), value)
