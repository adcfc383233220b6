"""The rows of the model part: one per sample and cache (predictions.jsonl), one per cell (metrics.jsonl).

Which heads retrieve is found on samples that are reported nowhere (pilots): the heads that pay the needle most
attention while the right answer is read, with the full cache at the shortest length, mean over tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.dilute.needle import GROUPS, OWN, Look
from experiments.plan import Cell
from nexus import metrics
from nexus.tasks.example import Example

Row = dict[str, Any]
Heads = list[tuple[int, int]]  # (layer, query head)


def prediction_row(cell: Cell, example: Example, seen: Look, text: str, fields: Row) -> Row:
    """Row of a sample. Masses are shares 0-1 of a query head's attention, [L][N]; held [L][K] is a share as well."""
    return {
        "sample_id": example.sample_id, "task": cell.task, "length": cell.length, "method": cell.method,
        "budget": cell.budget, "ratio": cell.ratio, "index": example.index, "prediction": text,
        "references": list(example.references), "score": float(metrics.score(example, text)),
        "variant": example.variant, "template_hash": example.template_hash, **fields,
        "kept_mean": round(seen.kept, 2), "held": _short(seen.held),
        "question": {"useful": _short(seen.question["useful"])},
        "answer": {name: _short(seen.answer[name]) for name in (*GROUPS, OWN)},
    }  # fmt: skip


def pilot_row(task: str, index: int, seen: Look) -> Row:
    """Row of a sample that only says which heads retrieve."""
    return {"task": task, "index": index, "useful": _short(seen.answer["useful"])}


def retrieval_heads(pilots: Sequence[Row], count: int) -> Heads:
    """The `count` query heads with the greatest mean mass on the needle, best first."""
    mean = np.mean([row["useful"] for row in pilots], axis=0)
    order = np.argsort(-mean, axis=None, kind="stable")[:count]
    return [(int(i // mean.shape[1]), int(i % mean.shape[1])) for i in order]


def metrics_row(cell: Cell, rows: Sequence[Row], heads: Heads) -> Row:
    """Row of a cell. Scores 0-100 and masses 0-1, each with a 95 % interval over samples.

    mass_<group>: mean over the retrieval heads, while the answer is read; all_useful: mean over all heads;
    question_useful: the retrieval heads at the question's tokens. held_useful: share of the needle's entries that the
    kv heads of the retrieval heads hold when the question comes; held_all: mean over all kv heads.
    mass_useful_by_sample: in the order of the samples, so that caches can be compared pair by pair.
    """
    first = rows[0]
    groups = {f"mass_{name}": [_at(row["answer"][name], heads) for row in rows] for name in (*GROUPS, OWN)}
    per_group = len(first["answer"][OWN][0]) // len(first["held"][0])
    owners = [(layer, n // per_group) for layer, n in heads]
    values = groups | {
        "all_useful": [float(np.mean(row["answer"]["useful"])) for row in rows],
        "question_useful": [_at(row["question"]["useful"], heads) for row in rows],
        "held_useful": [_at(row["held"], owners) for row in rows],
        "held_all": [float(np.mean(row["held"])) for row in rows],
        "score": [row["score"] for row in rows],
    }
    row = {name: first[name] for name in (
        "model", "dtype", "task", "length", "method", "budget", "ratio", "protocol", "question_mode", "tail", "variant",
        "template_hash", "tokenizer_hash", "seed", "config_hash",
    )}  # fmt: skip
    row |= {"git_commit": "+".join(sorted({r["git_commit"] for r in rows})), "num_examples": len(rows)}
    row |= {"score_unit": "percent", "kept_mean": round(float(np.mean([r["kept_mean"] for r in rows])), 2)}
    for name, numbers in values.items():
        interval = metrics.mean_interval(numbers)
        row[name] = round(interval.mean, 6)
        known = len(numbers) > 1  # one sample leaves the limits unknown
        row |= {f"{name}_low": round(interval.low, 6) if known else None}
        row |= {f"{name}_high": round(interval.high, 6) if known else None}
    return row | {"mass_useful_by_sample": [round(number, 6) for number in values["mass_useful"]]}


def _at(values: Any, heads: Heads) -> float:
    layers, columns = zip(*heads, strict=True)
    return float(np.asarray(values)[list(layers), list(columns)].mean())


def _short(x: np.ndarray) -> list[list[float]]:
    """Five decimals are enough, and a row stays readable."""
    return np.asarray(x, np.float64).round(5).tolist()
