"""Oracles of the scores that read values or statistics of queries: laprox, criticalkv, expected_attention. NumPy, slow.

From the equations, in float64: terms of the output are formed and measured, not their quadratic forms; statistics are
taken from all queries at once, not merged. A factory takes a scorer (its options alone are read) and returns a score
of `tests/oracle.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle import Stream, pooled, rotate, softmax, window_attention

Score = Callable[..., np.ndarray]


def projection(s: Stream, layer: int, head: int) -> np.ndarray:
    """[G,H,D]: the rows of the output projection that belong to the query heads of one kv head."""
    cfg = s.cfg
    wo = s.params["blocks"]["wo"][layer]
    return wo.reshape(cfg.num_kv_heads, cfg.num_heads // cfg.num_kv_heads, cfg.head_dim, -1)[head]


def recent_attention(s: Stream, layer: int, head: int, at: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """A [G,W,S] of the last queries there are, and which entries stand before the oldest of them."""
    real = min(window, s.seen)
    q_pos = np.arange(s.seen - real, s.seen)
    A = window_attention(s.queries[layer][head, :, -real:], q_pos, s.keys(layer, head, at), at)
    return A, at < q_pos[0]


def pooled_before(x: np.ndarray, context: np.ndarray, kernel: int, kind: str) -> np.ndarray:
    """x [...,S] pooled over the context; 0 elsewhere."""
    out = np.zeros(x.shape)
    if context.any():
        out[..., context] = pooled(x[..., context], kernel, kind)
    return out


# --- laprox ------------------------------------------------------------------------------------------------------


def output_change(A: np.ndarray, v: np.ndarray, wo: np.ndarray, gqa: str) -> np.ndarray:
    """p [S] of attention A [G,W,S], values v [S,H] and projections wo [G,H,D]."""
    u = np.einsum("sh,ghd->gsd", v, wo)
    norms = np.sqrt((u**2).sum(axis=-1))  # [G,S]
    if gqa == "mean":
        return (np.sqrt((A**2).sum(axis=1)) * norms).mean(axis=0)
    if gqa == "sum":
        return np.sqrt((A.sum(axis=0) ** 2).sum(axis=0)) * norms.mean(axis=0)
    joint = np.einsum("gws,gsd->swd", A, u)  # the term of one entry, [W,D]
    return np.sqrt((joint**2).sum(axis=(1, 2)))


def laprox(scorer: Any) -> Score:
    def worth(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        A, context = recent_attention(s, layer, head, at, scorer.window)
        v, wo = s.v[layer, head, at], projection(s, layer, head)
        if scorer.pool_on == "score":
            return pooled_before(output_change(A, v, wo, scorer.gqa), context, scorer.kernel, "avg")
        if scorer.gqa == "sum":
            A = A.sum(axis=0, keepdims=True)
        norms = np.sqrt((np.einsum("sh,ghd->gsd", v, wo) ** 2).sum(axis=-1))
        columns = pooled_before(np.sqrt((A**2).sum(axis=1)), context, scorer.kernel, "avg")
        return (columns * norms).mean(axis=0)

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        p = worth(s, layer, head, at)
        if not scorer.layer_scale:
            return p
        total = 0.0
        for other in range(s.cfg.num_kv_heads):
            held = np.flatnonzero(s.keep[layer, other])
            free = (held >= s.rules.num_sinks) & (held < s.seen - s.rules.recent)
            total += worth(s, layer, other, held)[free].sum()
        return p / total if total > 0 else p

    return score


# --- criticalkv --------------------------------------------------------------------------------------------------


def criticalkv(scorer: Any) -> Score:
    """What the first stage has chosen is worth infinitely much: only sets are compared."""

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        A, context = recent_attention(s, layer, head, at, scorer.window)
        base = pooled_before(A.mean(axis=1), context, scorer.kernel, scorer.pool).mean(axis=0)
        u = np.einsum("sh,ghd->gsd", s.v[layer, head, at], projection(s, layer, head))
        out = (base + scorer.epsilon) * np.abs(u).sum(axis=-1).mean(axis=0)
        certain = (at < s.rules.num_sinks) | (at >= s.seen - s.rules.recent)
        order = sorted(range(len(at)), key=lambda i: (not certain[i], -base[i], -at[i]))
        share = max(1, int(scorer.first_stage * s.rules.budget)) if scorer.first_stage > 0 else 0
        out[order[:share]] = np.inf
        return out

    return score


# --- expected_attention ------------------------------------------------------------------------------------------


def mean_rotation(first: int, future: int, inv_freq: np.ndarray) -> np.ndarray:
    """[H,H]: the mean of the RoPE matrices of positions first .. first + future - 1; x turned is R x."""
    eye = np.eye(2 * len(inv_freq))
    return np.mean([rotate(eye, np.full(len(eye), p), inv_freq).T for p in range(first, first + future)], axis=0)


def expected_attention(scorer: Any) -> Score:
    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        H, k = s.cfg.head_dim, s.keys(layer, head, at)
        R = mean_rotation(s.seen, scorer.future, s.inv_freq)
        raw = rotate(s.queries[layer][head], -np.arange(s.seen), s.inv_freq)[:, scorer.skip :]  # [G,T,H]
        p = []
        for q in raw:
            mu = q.mean(axis=0) if len(q) else np.zeros(H)
            z = k @ (R @ mu) / np.sqrt(H)
            if scorer.covariance:
                centred = R @ (q - mu).T
                cov = centred @ centred.T / max(len(q), 1)
                z = z + np.array([x @ cov @ x for x in k]).reshape(z.shape) / (2 * H)
            p.append(softmax(np.where(at >= scorer.skip, z, -np.inf)))
        out = np.mean(p, axis=0)
        norms = np.sqrt((s.v[layer, head, at] ** 2).sum(axis=-1))
        return (out + scorer.epsilon) * norms if scorer.value_norm else out

    return score
