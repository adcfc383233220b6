"""Dilution on synthetic logits: how much attention is left for m useful entries among n distractors.

"Make Each Token Count", Bui et al., arXiv 2605.09649. Dilution is delta = 1 - (attention mass on the useful entries).
Its Prop. 3.1 says that near-tied distractors force delta up; in the form that is tested here, Nd distractors with a
logit of at least z - d against m useful entries with logits of at most z leave

    useful mass <= m / (m + r Nd e^-d)

where r is the retention of distractors over that of useful entries (Cor. 3.2; 1 without gates). Every d gives a bound,
and `tightest` is the least of them. Useful logits are margin + noise * N(0,1), those of distractors noise * N(0,1).
A selective cache keeps the best M of all n + m entries by a score, separation + N(0,1) for useful entries and N(0,1)
for the others: separation 0 is a draw by lot, and what is evicted takes no part in the softmax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Row = dict[str, Any]
SLACK = 1e-9  # a mass this far above its bound is rounding, not a violation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is drawn."""

    useful: int  # m
    distractors: tuple[int, ...]  # n
    margin: float  # of useful logits over distractors, mean
    noise: float  # standard deviation of both
    draws: int
    kept: int  # M, entries of the selective cache
    separations: tuple[float, ...]


def bound(useful: int, near: Any, gap: Any, retention: float = 1.0) -> Any:
    """m / (m + r Nd e^-d): near distractors Nd whose logits are at most `gap` below the best useful one."""
    return useful / (useful + retention * near * np.exp(-np.asarray(gap, np.float64)))


def tightest(useful: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The least bound over all gaps: useful logits [D,m], those of distractors [D,n] -> [D]."""
    ranked = -np.sort(-others, axis=1)
    gap = useful.max(axis=1, keepdims=True) - ranked  # the k-th distractor is the k-th nearest
    return bound(useful.shape[1], np.arange(1, others.shape[1] + 1), gap).min(axis=1)


def mass(useful: np.ndarray, others: np.ndarray, kept: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Softmax mass on the useful entries, [D]; kept: which entries of either kind take part, all by default."""
    top = np.maximum(useful.max(axis=1), others.max(axis=1))[:, None]
    a, b = np.exp(useful - top), np.exp(others - top)
    if kept is not None:
        a, b = a * kept[0], b * kept[1]
    total = a.sum(axis=1) + b.sum(axis=1)
    return a.sum(axis=1) / np.where(total > 0, total, 1.0)


def best(score: np.ndarray, count: int) -> np.ndarray:
    """Mask [D,S] of the `count` largest of each row."""
    if count >= score.shape[1]:
        return np.ones(score.shape, bool)
    mask = np.zeros(score.shape, bool)
    np.put_along_axis(mask, np.argpartition(-score, count - 1, axis=1)[:, :count], True, axis=1)
    return mask


def simulate(setting: Setting, seed: int) -> list[Row]:
    """One row per n for everything kept, one per n and separation for the selective cache.

    The distractors of a smaller n are among those of a larger one, and all caches of a draw see the same logits.
    """
    c, rng = setting, np.random.default_rng(seed)
    shape, wide = (c.draws, c.useful), (c.draws, max(c.distractors))
    useful = c.margin + c.noise * rng.normal(size=shape)
    others = c.noise * rng.normal(size=wide)
    luck = rng.normal(size=shape), rng.normal(size=wide)  # of the score
    rows = []
    for n in sorted(c.distractors):
        whole = mass(useful, others[:, :n])
        limit = tightest(useful, others[:, :n])
        above = int((whole > limit * (1 + SLACK)).sum())
        rows.append(_row(c, n, "full", None, whole) | {"bound": round(float(limit.mean()), 8), "violations": above})
        for separation in c.separations:
            score = np.concatenate([separation + luck[0], luck[1][:, :n]], axis=1)
            stays = best(score, c.kept)
            cut = stays[:, : c.useful], stays[:, c.useful :]
            chosen = mass(useful, others[:, :n], cut)
            rows.append(_row(c, n, "selective", separation, chosen) | {
                "held": round(float(cut[0].mean()), 6), "wins": round(float((chosen > whole).mean()), 6),
            })  # fmt: skip
    return rows


def _row(c: Setting, n: int, cache: str, separation: float | None, masses: np.ndarray) -> Row:
    error = masses.std(ddof=1) / np.sqrt(len(masses)) if len(masses) > 1 else 0.0
    return {
        "margin": c.margin, "noise": c.noise, "distractors": n, "useful": c.useful, "cache": cache,
        "kept": c.kept if cache == "selective" else n + c.useful, "separation": separation, "draws": c.draws,
        "mass": round(float(masses.mean()), 8), "error": round(float(error), 8),
    }  # fmt: skip
