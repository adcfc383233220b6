"""The rows a run writes: one per example (predictions.jsonl), one per cell (metrics.jsonl, kept.jsonl), and one per
example that is shown token by token (tokens.jsonl).

A cell's row is computed from its examples' rows alone, so a run that was killed and continued ends with the same rows.
Batches are timed as a whole; an example gets its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import config_dict

from experiments import folder
from experiments.plan import Cell
from nexus import metrics, record
from nexus.answers import Answers
from nexus.models.load import Model
from nexus.tasks.example import Example

Row = dict[str, Any]
BESIDE = tuple(name for fields in metrics.BESIDE.values() for name in fields)  # scores that only some tasks have


def shared_fields(config: config_dict.FrozenConfigDict, model: Model, git_commit: str) -> Row:
    """Fields that are the same in every row of a run."""
    ev = config.eval
    return {
        "model": config.model.name,
        "dtype": model.config.dtype,
        "protocol": ev.protocol,
        "question_mode": ev.question_mode,
        "tail": ev.tail,
        "seed": ev.seed,
        "tokenizer_hash": model.tokenizer.fingerprint,
        "weights_hash": folder.weights_hash(model),
        "config_hash": record.config_hash(config.to_dict()),
        "git_commit": git_commit,
    }


def prediction_row(
    cell: Cell, example: Example, answers: Answers, i: int, *, text: str, question_tokens: int, limit: int, fields: Row
) -> Row:
    """Row of sequence `i` of a batch. `text`: its answer without special tokens; `limit`: tokens it was allowed."""
    share, kept = 1 / len(answers.tokens), np.asarray(answers.kept[i])  # kept [L,K]
    return {
        "sample_id": example.sample_id,
        "task": cell.task,
        "length": cell.length,
        "method": cell.method,
        "budget": cell.budget,
        "ratio": cell.ratio,
        "index": example.index,
        "prediction": text,
        "references": list(example.references),
        "score": float(metrics.score(example, text)),
        **metrics.beside(example, text),
        "is_null": not text.strip(),
        "truncated": bool(answers.cut[i]),
        "cut_tokens": example.cut_tokens,
        "prompt_tokens": int(answers.context_tokens[i]) + question_tokens,
        "context_tokens": int(answers.context_tokens[i]),
        "new_tokens": len(answers.tokens[i]),
        "max_new_tokens": limit,
        "fill": round(example.fill, 4),
        "variant": example.variant,
        "template_hash": example.template_hash,
        **fields,
        "kv_bytes_allocated": int(answers.kv_bytes_allocated),
        "kv_bytes_live": float(answers.kv_bytes_live),
        "peak_bytes": int(answers.peak_bytes),
        "prefill_tokens": answers.prefill_tokens * share,
        "prefill_s": answers.prefill_seconds * share,
        "decode_tokens": answers.decode_tokens * share,
        "decode_s": answers.decode_seconds * share,
        "compile_s": answers.compile_seconds * share,
        "kept": kept.tolist(),
    }


def tokens_row(cell: Cell, example: Example, pieces: list[str], shares: np.ndarray, question: str) -> Row:
    """What a cell kept of one example: the text of every context token, and the share (0-1) of heads that hold it.

    pieces: [tokens]; shares: [tokens], two decimals in the row, where only exact shares are 0 or 1. question: the text
    after the cut. About 15 bytes per token.
    """
    inside = np.clip(np.round(shares, 2), 0.01, 0.99)
    return {
        "sample_id": example.sample_id,
        "task": cell.task,
        "length": cell.length,
        "method": cell.method,
        "budget": cell.budget,
        "ratio": cell.ratio,
        "index": example.index,
        "question": question,
        "tokens": pieces,
        "shares": np.where((shares == 0) | (shares == 1), shares, inside).round(2).tolist(),
    }


def metrics_row(cell: Cell, rows: list[Row], num_tasks: tuple[int, int], data_hash: str) -> Row:
    """Row of a cell from the rows of its examples. Fractions 0-1, score and its 95 % interval 0-100.

    num_tasks: `plan.suite_counts` of the cell's task. data_hash: of its examples.
    """
    scores = [row["score"] for row in rows]
    interval = metrics.mean_interval(scores)
    kept = np.array([row["kept"] for row in rows], np.float64)  # [n,L,K]
    seen = np.array([row["context_tokens"] for row in rows], np.float64)
    first = rows[0]
    return {
        "model": first["model"],
        "dtype": first["dtype"],
        "task": cell.task,
        "length": cell.length,
        "method": cell.method,
        "budget": cell.budget,
        "ratio": cell.ratio,
        "protocol": first["protocol"],
        "question_mode": first["question_mode"],
        "tail": first["tail"],
        "num_examples": len(rows),
        "score": round(float(np.mean(scores)), 2),
        "score_unit": "percent",
        "score_low": limit(interval.low),
        "score_high": limit(interval.high),
        **{name: round(float(np.mean([row[name] for row in rows])), 2) for name in BESIDE if name in first},
        "nulls": sum(row["is_null"] for row in rows),
        "truncated_share": round(float(np.mean([row["truncated"] for row in rows])), 4),
        "cut_share": round(float(np.mean([row.get("cut_tokens", 0) > 0 for row in rows])), 4),
        "fill_min": min(row["fill"] for row in rows),
        "max_new_tokens": first["max_new_tokens"],
        "kept_fraction_mean": round(float(np.mean(kept.mean((1, 2)) / seen)), 4),
        "kept_fraction_max": round(float(np.max(kept.max((1, 2)) / seen)), 4),
        "kv_bytes_allocated": max(row["kv_bytes_allocated"] for row in rows),
        "kv_bytes_live": round(float(np.mean([row["kv_bytes_live"] for row in rows]))),
        "peak_bytes": max(row["peak_bytes"] for row in rows),
        "prefill_tokens_per_s": rate(rows, "prefill"),
        "decode_tokens_per_s": rate(rows, "decode"),
        "compile_s": round(sum(row["compile_s"] for row in rows), 3),
        "variant": first["variant"],
        "template_hash": first["template_hash"],
        "tokenizer_hash": first["tokenizer_hash"],
        "weights_hash": first["weights_hash"],
        "data_hash": data_hash,
        "num_tasks": num_tasks[0],
        "num_tasks_published": num_tasks[1],
        "seed": first["seed"],
        "config_hash": first["config_hash"],
        "git_commit": "+".join(sorted({row["git_commit"] for row in rows})),
    }


def kept_row(cell: Cell, rows: list[Row]) -> Row:
    """Mean number of entries kept after the context, [L][K], of a cell."""
    mean = np.mean([row["kept"] for row in rows], axis=0)
    return {
        "task": cell.task,
        "length": cell.length,
        "method": cell.method,
        "budget": cell.budget,
        "kept": np.round(mean, 2).tolist(),
    }


def limit(value: float) -> float | None:
    """A confidence limit; None where a single example leaves it unknown."""
    return None if math.isnan(value) else round(value, 2)


def rate(rows: Sequence[Row], phase: str) -> float | None:
    """Tokens per second, None where nothing was timed."""
    seconds = sum(row[f"{phase}_s"] for row in rows)
    return round(sum(row[f"{phase}_tokens"] for row in rows) / seconds, 2) if seconds > 0 else None
