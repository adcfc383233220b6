"""The evaluations of an ablation as one result: variants stand where other runs have methods. Reads folders alone.

minus base = mean over examples of (variant - base) on the same samples, as `nexus.metrics.paired_interval`; over
several tasks as in `experiments.summary`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.ablate import kinds
from experiments.joined import samples
from experiments.summary import FULL, Results, Row, key, load, mean_over_tasks, tasks_above_floor
from nexus.metrics import Interval, paired_interval

BASE = "base"
Entry = tuple[int, str, int]  # length, variant, budget
Answers = dict[tuple[str, int], Row]  # (task, index) -> row of predictions


def merged(full: Path, evaluations: Mapping[str, Path]) -> Results:
    """The full cache's evaluation and those of the variants, by name, as one; rows have the variant as their method.

    Raises ValueError when a variant answered other samples, or a folder cannot be read.
    """
    first = load(full)
    runs = {name: load(folder, name) for name, folder in evaluations.items()}
    expected = samples(first)
    for name, run in runs.items():
        if any(found != expected.get(at) for at, found in samples(run).items()):
            raise ValueError(f"{evaluations[name]}: its samples are not those of {full}")
    together = lambda field: [  # noqa: E731
        *getattr(first, field),
        *({**row, "method": name, "evicted_by": row["method"]} for name, run in runs.items()
          for row in getattr(run, field)),
    ]  # fmt: skip
    grid = {name: next(iter(runs.values()), first).config["eval"][name] for name in ("budgets", "ratios")}
    return Results(
        name=full.parent.parent.name,
        folders=(full, *evaluations.values()),
        config=first.config | {"eval": first.config["eval"] | {"methods": [FULL, *runs]} | grid},
        env=first.env,
        rows=together("rows"), predictions=together("predictions"), kept=together("kept"), tokens=together("tokens"),
        missing=0, left_out=[],
    )  # fmt: skip


def minus_base(results: Results) -> dict[tuple[Entry, str], Interval]:
    """((length, variant, budget), task) -> difference to base; task "" is the mean over tasks above the floor."""
    answers: dict[Entry, Answers] = {}
    for row in results.predictions:
        answers.setdefault(key(row)[:3], {})[row["task"], row["index"]] = row
    found = {}
    for (length, variant, budget), own in answers.items():
        base = answers.get((length, BASE, budget))
        if variant in (FULL, BASE) or base is None or own.keys() != base.keys():
            continue
        for task in dict.fromkeys(task for task, _ in own):
            at = [place for place in own if place[0] == task]
            found[(length, variant, budget), task] = paired_interval(
                [own[place]["score"] for place in at], [base[place]["score"] for place in at]
            )
        tasks = tasks_above_floor(results, length)[0]
        found[(length, variant, budget), ""] = mean_over_tasks(own, tasks, base)
    return found


def metrics_rows(results: Results, differences: Mapping[tuple[Entry, str], Interval]) -> Iterator[Row]:
    """Rows of metrics.jsonl: those of the evaluations, with their variant as `ablation` and the difference to base."""
    for row in results.rows:
        own = {name: value for name, value in row.items() if name != "evicted_by"}
        found = differences.get((key(row)[:3], row["task"]))
        limits = (None, None, None) if found is None else tuple(map(_known, dataclasses.astuple(found)))
        names = ("minus_base", "minus_base_low", "minus_base_high")
        yield {
            "ablation": row["method"], **own, "method": row.get("evicted_by", row["method"]),
            **dict(zip(names, limits, strict=True)),
        }  # fmt: skip


def kinds_rows(results: Results) -> Iterator[Row]:
    """One row per (length, variant, budget, kind of token), over all examples of tasks above the floor; in per cent.

    held: of the (layer, kv head) slots of these tokens, how many still hold them after the context. entries: of all
    entries that are held then, how many are of such tokens. Where a model has more than 100 slots, shares below one
    half per cent count as one (`tokens.jsonl` has two decimals).
    """
    references = {(row["length"], row["task"], row["index"]): row["references"] for row in results.predictions}
    known: dict[tuple[int, str, int], np.ndarray] = {}
    sums: dict[Entry, np.ndarray] = {}  # [kinds, (tokens, held)]
    contexts: dict[Entry, int] = {}
    for row in (row for row in results.tokens if row["method"] != FULL):
        at, entry = (row["length"], row["task"], row["index"]), key(row)[:3]
        if row["task"] not in tasks_above_floor(results, row["length"])[0]:
            continue
        if at not in known:
            known[at] = np.array([kinds.KINDS.index(k) for k in kinds.of_tokens(row["tokens"], references[at])], int)
        count = np.bincount(known[at], minlength=len(kinds.KINDS))
        held = np.bincount(known[at], weights=row["shares"], minlength=len(kinds.KINDS))
        sums[entry] = sums.get(entry, 0) + np.stack([count, held], axis=1)
        contexts[entry] = contexts.get(entry, 0) + 1
    for (length, variant, budget), total in sums.items():
        everything = total[:, 1].sum()
        for kind, (count, held) in zip(kinds.KINDS, total, strict=True):
            yield {
                "ablation": variant, "length": length, "budget": budget, "kind": kind,
                "tokens": round(float(count) / contexts[length, variant, budget], 2),
                "held": round(100 * float(held / count), 2) if count else None,
                "entries": round(100 * float(held / everything), 2) if everything else None,
            }  # fmt: skip


def variants_of(rows: Sequence[Row]) -> list[str]:
    """Names of the variants in rows with `ablation`, in their order, without the full cache."""
    return list(dict.fromkeys(row["ablation"] for row in rows if row["ablation"] != FULL))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 2)
