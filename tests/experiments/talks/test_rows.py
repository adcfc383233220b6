"""Means and intervals of a cell, from rows made by hand."""

from __future__ import annotations

import pytest

from experiments.plan import Cell as PlanCell
from experiments.talks import rows
from experiments.talks.settings import Cell

CELL = Cell(mode="multi_turn", base=PlanCell(length=99, method="snapkv", budget=8, ratio=None, task="t"))
SAME = dict.fromkeys(
    "model dtype task length method budget ratio mode history protocol question_mode tail variant template_hash "
    "tokenizer_hash seed config_hash git_commit".split(), "x",
)  # fmt: skip


def row(index: int, turn: int, score: float | None, distance: int | None = None):
    return SAME | {
        "index": index, "turn": turn, "distance": distance, "metric": "none" if score is None else "any",
        "scores": {} if score is None else {"score": score}, "is_null": False, "truncated": False, "cut_share": 0.0,
        "max_new_tokens": 4, "prompt_tokens": 40, "held": 8.0, "held_after": 9.0, "reference_log_prob": None,
        "kv_bytes_allocated": 1, "peak_bytes": 1, "prefill_tokens": 1, "prefill_s": 1, "decode_tokens": 1,
        "decode_s": 0, "compile_s": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, "0-63"), (63, "0-63"), (64, "64-127"), (128, "128-255"), (5000, "4096-8191")]
)
def test_buckets_double(distance, expected):
    assert rows.bucket({"distance": distance}) == expected


def test_conversations_weigh_alike_and_are_what_is_resampled():
    """Four answers of one cache are no four samples: their interval would be too narrow."""
    found = rows.metrics_row(CELL, [row(0, t, 100.0) for t in (1, 2, 3)] + [row(1, 1, 0.0)])
    assert (found["score"], found["score_low"], found["score_high"]) == (50.0, 0.0, 100.0)
    assert [(g["group"], g["score"], g["num_answers"]) for g in found["by_turn"]] == [
        (1, 50.0, 2), (2, 100.0, 1), (3, 100.0, 1),
    ]  # fmt: skip
    assert found["by_turn"][1]["score_low"] is None, "one value has no interval"
    assert found["held_max"] == 9.0 and found["kept_fraction_mean"] == 0.2


def test_what_is_not_scored_is_missing_and_not_zero():
    found = rows.metrics_row(CELL, [row(0, 1, None, 10), row(0, 2, 100.0, 200), row(0, 3, None)])
    assert (found["score"], found["num_answers"], found["num_scored"]) == (100.0, 3, 1)
    assert [(g["group"], g["score"]) for g in found["by_distance"]] == [("0-63", None), ("128-255", 100.0)]
    nothing = rows.metrics_row(CELL, [row(0, 1, None)])
    assert nothing["score"] is None and nothing["measure"] is None and nothing["measures"] == {}
