"""Reads a run folder and sums it up: one `Summary` per (length, method, budget). No model code.

The mean over tasks weighs tasks alike. Its interval and the paired difference to the full cache resample examples: the
scores at one index are averaged over the tasks first (tasks are independent, so this is their joint resampling).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nexus import metrics, record

Row = dict[str, Any]
FULL = "full"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """A run folder as it lies on the disk."""

    config: Row
    env: Row
    rows: list[Row]  # metrics.jsonl
    predictions: list[Row]
    kept: list[Row]

    @property
    def lengths(self) -> list[int]:
        return [length for length in self.config["eval"]["lengths"] if any(r["length"] == length for r in self.rows)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """One method at one budget and length. Scores 0-100; None where a task or the full cache is missing."""

    length: int
    method: str
    budget: int
    ratio: float | None
    rows: dict[str, Row]  # task -> metrics row
    mean: metrics.Interval | None
    difference: metrics.Interval | None  # to the full cache, same examples
    same_answers: bool  # every answer is the full cache's, word for word

    @property
    def label(self) -> str:
        return self.method if self.method == FULL else f"{self.method} @ {self.budget}"

    def average(self, field: str) -> float | None:
        """Mean of a field over the tasks; None where nothing was measured."""
        values = [row[field] for row in self.rows.values() if row[field] is not None]
        return float(np.mean(values)) if values else None


def load(workdir: Path) -> Results:
    """Raises ValueError for a folder without config or rows, or with scores in another unit."""
    if not (workdir / "config.json").exists():
        raise ValueError(f"{workdir} is not a run folder: there is no config.json")
    rows = record.read_rows(workdir / "metrics.jsonl")
    if not rows:
        raise ValueError(f"{workdir} holds no finished cell yet: metrics.jsonl is missing or empty")
    units = {row["score_unit"] for row in rows}
    if units != {"percent"}:
        raise ValueError(f"{workdir}: scores must be in percent (0-100), found {sorted(units)}")
    return Results(
        config=record.read_json(workdir / "config.json"),
        env=record.read_json(workdir / "env.json"),
        rows=rows,
        predictions=record.read_rows(workdir / "predictions.jsonl"),
        kept=record.read_rows(workdir / "kept.jsonl"),
    )


def tasks_above_floor(results: Results, length: int) -> tuple[list[str], list[Row]]:
    """Tasks to compare on, and the full cache's rows on the others: below the floor there is nothing to lose."""
    floor = results.config["eval"]["full_floor"]
    failed = [r for r in results.rows if r["length"] == length and r["method"] == FULL and r["score"] < floor]
    names = {row["task"] for row in failed}
    return [task for task in results.config["eval"]["tasks"] if task not in names], failed


def summaries(results: Results, length: int) -> list[Summary]:
    """All methods and budgets of a length, in the order they ran, over the tasks above the floor."""
    tasks, _ = tasks_above_floor(results, length)
    answers: dict[tuple[str, int], dict[tuple[str, int], Row]] = {}
    for row in results.predictions:
        if row["length"] == length and row["task"] in tasks:
            answers.setdefault((row["method"], row["budget"]), {})[row["task"], row["index"]] = row
    full = next((found for (method, _), found in answers.items() if method == FULL), {})
    cells: dict[tuple[str, int], dict[str, Row]] = {}
    for row in results.rows:
        if row["length"] == length and row["task"] in tasks:
            cells.setdefault((row["method"], row["budget"]), {})[row["task"]] = row
    return [
        _summary(length, method, budget, {t: rows[t] for t in tasks if t in rows}, tasks, answers, full)
        for (method, budget), rows in cells.items()
    ]


def _summary(
    length: int,
    method: str,
    budget: int,
    rows: dict[str, Row],
    tasks: Sequence[str],
    answers: dict[tuple[str, int], dict[tuple[str, int], Row]],
    full: dict[tuple[str, int], Row],
) -> Summary:
    own = answers.get((method, budget), {})
    complete = len(rows) == len(tasks)
    paired = complete and method != FULL and own.keys() == full.keys()
    return Summary(
        length=length,
        method=method,
        budget=budget,
        ratio=next(iter(rows.values()))["ratio"],
        rows=rows,
        mean=metrics.mean_interval(_by_index(own, tasks)) if complete else None,
        difference=metrics.paired_interval(_by_index(own, tasks), _by_index(full, tasks)) if paired else None,
        same_answers=paired and all(own[key]["prediction"] == full[key]["prediction"] for key in own),
    )


def _by_index(answers: dict[tuple[str, int], Row], tasks: Sequence[str]) -> list[float]:
    """Score at each example index, averaged over the tasks."""
    indices = sorted({index for _, index in answers})
    return [float(np.mean([answers[task, index]["score"] for task in tasks])) for index in indices]
