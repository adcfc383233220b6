"""The rows a dialogue run writes: one per answer (predictions.jsonl), one per cell (metrics.jsonl).

A cell's row is computed from its answers' rows alone, so a run that was killed and continued ends with the same rows.
Means weigh conversations alike and intervals resample conversations: turns of one conversation share a cache, so they
are no independent samples. Batches are timed as a whole; an answer gets its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.rows import limit, rate
from experiments.talks.settings import Cell
from experiments.talks.turns import Talk
from nexus import metrics
from nexus.models.tokenizer import Tokenizer
from nexus.tasks.dialogue import scoring
from nexus.tasks.dialogue.script import Script

Row = dict[str, Any]
Place = tuple[int, int]  # conversation, turn: an answer within its cell
LEAST = 64  # tokens: where the first distance bucket ends; every next one ends at twice as many


def prediction_rows(
    cell: Cell, scripts: Sequence[Script], talk: Talk, tokenizer: Tokenizer, fields: Row, full: Mapping[Place, Row]
) -> list[Row]:
    """Rows of a batch, conversation by conversation and turn by turn. full: the full cache's rows of this task."""
    ordered = sorted(talk.replies, key=lambda reply: reply.turn)
    share = 1 / (len(scripts) * len(ordered))
    costs = {
        "kv_bytes_allocated": int(talk.kv_bytes_allocated),
        "peak_bytes": int(talk.peak_bytes),
        "prefill_tokens": talk.prefill_tokens * share,
        "prefill_s": talk.prefill_seconds * share,
        "decode_tokens": talk.decode_tokens * share,
        "decode_s": talk.decode_seconds * share,
        "compile_s": talk.compile_seconds * share,
    }
    found = []
    for i, script in enumerate(scripts):
        one = script.conversation
        for number, reply in enumerate(ordered, 1):
            turn, tokens = one.turns[reply.turn], reply.tokens[i]
            text = tokenizer.decode(tokens)
            first = [int(token) for token in tokens[: scoring.FIRST]]
            scores = scoring.scores(turn, text)
            if turn.metric == "agreement":
                other = full.get((one.index, number), {"prediction": text, "first_tokens": first})  # itself, where full
                scores = scoring.agreement(text, first, other["prediction"], other["first_tokens"])
            found.append(
                {
                    "sample_id": one.sample_id, "kind": one.kind, "mode": cell.mode, "history": script.history,
                    "task": cell.base.task, "length": cell.base.length, "method": cell.base.method,
                    "budget": cell.base.budget, "ratio": cell.base.ratio, "index": one.index, "turn": number,
                    "distance": reply.distance[i], "prediction": text, "references": list(turn.references),
                    "metric": turn.metric, "scores": scores, "is_null": not text.strip(),
                    "truncated": bool(reply.cut[i]), "prompt_tokens": int(reply.seen[i]), "new_tokens": len(tokens),
                    "first_tokens": first, "max_new_tokens": reply.limit, "held": round(float(reply.held[i]), 4),
                    "held_after": round(float(reply.held_after[i]), 4),
                    "reference_log_prob": reply.log_prob[i], "cut_share": round(one.cut_share, 4),
                    "variant": one.variant, "template_hash": one.template_hash, **fields, **costs,
                }
            )  # fmt: skip
    return found


def metrics_row(cell: Cell, rows: Sequence[Row]) -> Row:
    """Row of a cell from the rows of its answers. Fractions 0-1, scores and their 95 % intervals 0-100.

    `score` is the mean of `measure`, the first that its rules give; both are None where nothing has a rule.
    """
    first = rows[0]
    names = list(dict.fromkeys(name for row in rows for name in scoring.MEASURES[row["metric"]]))
    measure = names[0] if names else None
    scored = [row for row in rows if measure in row["scores"]]
    judged = [row["reference_log_prob"] for row in rows if row["reference_log_prob"] is not None]
    held = [row["held"] / row["prompt_tokens"] for row in rows]
    return {
        **{name: first[name] for name in ("model", "dtype", "task", "length", "method", "budget", "ratio", "mode",
                                          "history", "protocol", "question_mode", "tail")},
        "num_examples": len({row["index"] for row in rows}),
        "num_answers": len(rows),
        "num_scored": len(scored),
        "measure": measure,
        "score_unit": "percent",
        **_interval(scored, measure),
        "measures": {
            name: _interval([row for row in rows if name in row["scores"]], name)["score"] for name in names
        },
        "reference_log_prob": float(np.mean(judged)) if judged else None,
        "by_turn": _grouped(rows, measure, lambda row: row["turn"]),
        "by_distance": _grouped([row for row in rows if row["distance"] is not None], measure, bucket),
        "nulls": sum(row["is_null"] for row in rows),
        "truncated_share": round(float(np.mean([row["truncated"] for row in rows])), 4),
        "cut_share_max": max(row["cut_share"] for row in rows),
        "max_new_tokens": max(row["max_new_tokens"] for row in rows),
        "prompt_tokens_max": max(row["prompt_tokens"] for row in rows),
        "held_max": max(max(row["held"], row["held_after"]) for row in rows),
        "kept_fraction_mean": round(float(np.mean(held)), 4),
        "kept_fraction_max": round(float(np.max(held)), 4),
        "kv_bytes_allocated": max(row["kv_bytes_allocated"] for row in rows),
        "peak_bytes": max(row["peak_bytes"] for row in rows),
        "prefill_tokens_per_s": rate(rows, "prefill"),
        "decode_tokens_per_s": rate(rows, "decode"),
        "compile_s": round(sum(row["compile_s"] for row in rows), 3),
        **{name: first[name] for name in ("variant", "template_hash", "tokenizer_hash", "seed", "config_hash")},
        "git_commit": "+".join(sorted({row["git_commit"] for row in rows})),
    }  # fmt: skip


def bucket(row: Row) -> str:
    """The distance bucket of an answer, as text: "0-63", "64-127", "128-255", ... tokens."""
    low, high = 0, LEAST
    while row["distance"] >= high:
        low, high = high, 2 * high
    return f"{low}-{high - 1}"


def _grouped(rows: Sequence[Row], measure: str | None, of: Any) -> list[Row]:
    """One entry per group in its order: what it is, how many answers, score and interval; unscored ones are None."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(of(row), []).append(row)
    found = []
    for group in sorted(groups, key=lambda g: int(str(g).split("-")[0])):
        scored = [row for row in groups[group] if measure in row["scores"]]
        found.append({"group": group, "num_answers": len(groups[group])} | _interval(scored, measure))
    return found


def _interval(rows: Sequence[Row], measure: str | None) -> Row:
    """Mean over conversations of their mean over turns, with its interval; None where nothing is scored."""
    by_conversation: dict[int, list[float]] = {}
    for row in rows:
        by_conversation.setdefault(row["index"], []).append(row["scores"][measure])
    if not by_conversation:
        return {"score": None, "score_low": None, "score_high": None}
    found = metrics.mean_interval([float(np.mean(values)) for values in by_conversation.values()])
    return {"score": round(found.mean, 2), "score_low": limit(found.low), "score_high": limit(found.high)}
