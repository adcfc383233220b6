"""Reads a run folder and sums it up: one `Summary` per (length, method, budget). No model code.

The mean over tasks weighs tasks alike. Its interval and the paired difference to the full cache resample examples: the
scores at one index are averaged over the tasks first (tasks are independent, so this is their joint resampling). Tasks
with different numbers of examples have no common indices: each is resampled by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nexus import metrics, record

Row = dict[str, Any]
CellKey = tuple[int, str, int, str]  # length, method, budget, task
FULL = "full"
AT_START = "needle_map_0"  # at the very start, where methods protect tokens whatever they are worth: in no mean
SCORES = ("score", "score_low", "score_high")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """A run folder as it lies on the disk, or several that fit into one table (`experiments.joined`)."""

    name: str  # what a reader calls this run
    folders: tuple[Path, ...]
    config: Row
    env: Row
    rows: list[Row]  # metrics.jsonl
    predictions: list[Row]
    kept: list[Row]
    tokens: list[Row]  # tokens.jsonl: what was kept of the shown examples, token by token
    missing: int  # cells that an unfinished run still lacks
    left_out: list[str]  # methods that this model has no trained or calibrated parts for
    repeated: list[Row] = dataclasses.field(default_factory=list)  # of metrics.jsonl: an earlier run fills these cells
    remarks: list[str] = dataclasses.field(default_factory=list)  # of joining

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
    against: dict[str, metrics.Interval]  # method -> difference to it at the same budget, same examples
    same_answers: bool  # every answer is the full cache's, word for word

    @property
    def label(self) -> str:
        return self.method if self.method == FULL else f"{self.method} @ {self.budget}"

    def average(self, field: str) -> float | None:
        """Mean of a field over the tasks; None where nothing was measured."""
        values = [row[field] for row in self.rows.values() if row[field] is not None]
        return float(np.mean(values)) if values else None


def key(row: Row) -> CellKey:
    """Which cell a row of any file belongs to."""
    return row["length"], row["method"], row["budget"], row["task"]


# --- reading ----------------------------------------------------------------------------------------------------------
def load(workdir: Path, name: str = "") -> Results:
    """Raises ValueError for a folder that is no evaluation, has no rows yet, or whose files do not fit together."""
    for file in ("config.json", "env.json"):
        if not (workdir / file).is_file():
            raise ValueError(f"{workdir} is not a run folder: there is no {file}")
    config, env = record.read_json(workdir / "config.json"), record.read_json(workdir / "env.json")
    kind = config.get("experiment")
    if kind != "evaluate":
        raise ValueError(f"{workdir} holds a run of experiment {kind!r}; a report is made of runs of 'evaluate'")
    files = {file: record.read_rows(workdir / f"{file}.jsonl") for file in ("metrics", "predictions", "kept", "tokens")}
    _check(workdir, files)
    left_out = env["runs"][-1].get("left_out", [])
    results = Results(
        name=name or workdir.resolve().name,
        folders=(workdir,),
        config=config,
        env=env,
        rows=files["metrics"],
        predictions=files["predictions"],
        kept=files["kept"],
        tokens=files["tokens"],
        missing=0,
        left_out=left_out,
    )
    return dataclasses.replace(results, missing=_missing(results))


def _check(workdir: Path, files: dict[str, list[Row]]) -> None:
    """Raises ValueError if the rows of a folder cannot be reported."""
    rows = files["metrics"]
    if not rows:
        raise ValueError(f"{workdir} holds no finished cell yet: metrics.jsonl is missing or empty")
    needed = {"metrics": ("num_examples", "score_unit", *SCORES), "predictions": ("index", "score", "prediction"),
              "kept": ("kept",), "tokens": ("index", "tokens", "shares")}  # fmt: skip
    for name, found in files.items():
        for i, row in enumerate(found, 1):
            lacking = [f for f in ("length", "method", "budget", "task", *needed[name]) if f not in row]
            if lacking:
                raise ValueError(f"{workdir / name}.jsonl, row {i}: no field {', '.join(lacking)}")
    units = {row["score_unit"] for row in rows}
    if units != {"percent"}:
        raise ValueError(f"{workdir}: scores must be in percent (0-100), found {sorted(units)}")
    answered: dict[CellKey, set[int]] = {}
    for row in files["predictions"]:
        answered.setdefault(key(row), set()).add(row["index"])
    for row in rows:
        found_examples = len(answered.get(key(row), ()))
        if found_examples != row["num_examples"]:
            raise ValueError(
                f"{workdir}: {row['method']} at budget {row['budget']} on {row['task']} (length {row['length']}) has "
                f"{row['num_examples']} examples in metrics.jsonl and {found_examples} in predictions.jsonl"
            )


def _missing(results: Results) -> int:
    """Cells that the config asks for and the folder lacks; those below the floor are not asked for."""
    ev = results.config["eval"]
    grid = len(ev["budgets"]) + len(ev["ratios"])
    entries = sum(1 if method == FULL else grid for method in ev["methods"] if method not in results.left_out)
    skipped = sum((entries - 1) * len(tasks_above_floor(results, length)[1]) for length in ev["lengths"])
    return entries * len(ev["lengths"]) * len(ev["tasks"]) - skipped - len(results.rows)


# --- summing up -------------------------------------------------------------------------------------------------------
def tasks_above_floor(results: Results, length: int) -> tuple[list[str], list[Row]]:
    """Tasks to compare on, and the full cache's rows on the others: below the floor there is nothing to lose."""
    floor = results.config["eval"]["full_floor"]
    failed = [r for r in results.rows if r["length"] == length and r["method"] == FULL and r["score"] < floor]
    names = {row["task"] for row in failed}
    return [task for task in results.config["eval"]["tasks"] if task not in names], failed


def summaries(results: Results, length: int, against: Sequence[str] = ()) -> list[Summary]:
    """All methods and budgets of a length, in the order they ran, over the tasks above the floor.

    against: methods that the others are compared with, example by example at the same budget, besides the full cache.
    """
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
        _summary(length, method, budget, {t: rows[t] for t in tasks if t in rows}, tasks, answers, full, against)
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
    against: Sequence[str],
) -> Summary:
    own = answers.get((method, budget), {})
    complete = len(rows) == len(tasks)
    paired = complete and method != FULL and own.keys() == full.keys()
    others = {name: answers.get((name, budget), {}) for name in against if complete and method not in (FULL, name)}
    return Summary(
        length=length,
        method=method,
        budget=budget,
        ratio=next(iter(rows.values()))["ratio"],
        rows=rows,
        mean=mean_over_tasks(own, tasks) if complete else None,
        difference=mean_over_tasks(own, tasks, full) if paired else None,
        against={n: mean_over_tasks(own, tasks, rows) for n, rows in others.items() if rows.keys() == own.keys()},
        same_answers=paired and all(own[key]["prediction"] == full[key]["prediction"] for key in own),
    )


def in_mean(tasks: Sequence[str]) -> list[str]:
    """The tasks that a mean is over: all but AT_START, unless there is no other."""
    return [task for task in tasks if task != AT_START] or list(tasks)


def mean_over_tasks(
    answers: dict[tuple[str, int], Row], tasks: Sequence[str], minus: dict[tuple[str, int], Row] | None = None
) -> metrics.Interval:
    """Mean score over tasks, or mean difference to `minus`; both map (task, index) to rows of predictions.

    `minus` must have all the examples of `answers`. Scores 0-100.
    """
    tasks = in_mean(tasks)
    values: dict[str, dict[int, float]] = {task: {} for task in tasks}
    for at, row in answers.items():
        if at[0] in values:
            values[at[0]][at[1]] = row["score"] - (minus[at]["score"] if minus else 0.0)
    if len({frozenset(found) for found in values.values()}) > 1:
        return metrics.group_interval([list(found.values()) for found in values.values()])
    indices = sorted(values[tasks[0]])
    return metrics.mean_interval([float(np.mean([values[task][i] for task in tasks])) for i in indices])
