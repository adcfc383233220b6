"""Scores of G-KV, R-KV, LagKV and the blocks of Nexus Sampling, from their equations: NumPy float64, dense, slow.

Stream scores as in oracle.py, which are called once per head and eviction: those that remember keep their memory in a
dictionary per stream. G-KV forgets nothing between two evictions without a new token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests import oracle

Score = Callable[..., np.ndarray]


def redundancy(k: np.ndarray) -> np.ndarray:
    """r [S] of keys [S,H]: for every j the latest similar i loses its similarity to j; then means over j."""
    unit = k / np.sqrt((k**2).sum(axis=-1, keepdims=True))
    C = unit @ unit.T
    np.fill_diagonal(C, 0.0)
    for j in range(len(k)):
        similar = np.flatnonzero(C[:, j] > 0.5)
        if len(similar):
            C[similar[-1], j] = 0.0
    return C.mean(axis=1)


def _window(s: Any, layer: int, head: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    real = min(window, s.seen)
    return s.queries[layer][head, :, -real:], np.arange(s.seen - real, s.seen)


def gkv(scorer: Any) -> Score:
    f: dict[tuple[int, int], dict[int, float]] = {}
    judged: dict[tuple[int, int], int] = {}

    def score(s: Any, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        q, q_pos = _window(s, layer, head, scorer.window)
        k, context = s.keys(layer, head, at), at < q_pos[0]
        now = oracle.window_attention(q, q_pos, k, at).max(axis=0).mean(axis=0)
        now = now / now.max() if now.max() > 0 else now
        memory = f.setdefault((layer, head), {})
        if judged.get((layer, head)) != s.seen:
            for p, x in zip(at[context], now[context], strict=True):
                old = memory.get(p)
                memory[p] = x if old is None else {
                    "max": max(scorer.alpha * old, x), "mean": scorer.alpha * old + (1 - scorer.alpha) * x,
                    "sum": scorer.alpha * old + x,
                }[scorer.memory]  # fmt: skip
        judged[layer, head] = s.seen
        out = np.array([memory[p] if c else 0.0 for p, c in zip(at, context, strict=True)])
        if scorer.lam == 1:
            return out
        r = oracle.softmax(redundancy(k))
        top = r[context].max() if context.any() else 1.0
        return scorer.lam * out - (1 - scorer.lam) * r / top

    return score


def rkv(scorer: Any) -> Score:
    def score(s: Any, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        q, q_pos = _window(s, layer, head, scorer.window)
        k, context = s.keys(layer, head, at), at < q_pos[0]
        out = np.zeros(len(at))
        if context.any():
            z = (q @ k[context].T / np.sqrt(k.shape[-1])).max(axis=0)  # [W,S]
            out[context] = oracle.pooled(oracle.softmax(z).mean(axis=0), scorer.kernel, "max")
        return scorer.lam * out - (1 - scorer.lam) * (oracle.softmax(redundancy(k)) if scorer.lam < 1 else 0.0)

    return score


def stand_out(x: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """LagKV's g [m] of entries x [m,H] against the entries ref [n,H] of the next partition."""
    low, high = ref.min(axis=0), ref.max(axis=0)
    wide = high > low
    t = np.where(wide, (x - low) / np.where(wide, high - low, 1.0), 0.0)
    return oracle.softmax(t.std(axis=-1, ddof=1))


def lagkv(scorer: Any) -> Score:
    places: dict[tuple[int, int], dict[int, float]] = {}

    def score(s: Any, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        lag, known = scorer.lag, places.setdefault((layer, head), {})
        part = np.where(at >= scorer.skip, (at - scorer.skip) // lag, -1)
        for p in range((s.seen - scorer.skip) // lag - 1):
            own, ref = at[part == p], at[part == p + 1]
            if not len(own) or own[0] in known:
                continue
            g = stand_out(s.keys(layer, head, own), s.keys(layer, head, ref))
            g = g + stand_out(s.v[layer, head, own], s.v[layer, head, ref])
            order = sorted(range(len(own)), key=lambda i: (-g[i], -own[i]))
            known |= {own[i]: (lag - 1 - rank) / lag for rank, i in enumerate(order)}
        return np.array([known.get(p, 1.0) for p in at])

    return score


# --- blocks ------------------------------------------------------------------------------------------------------


def walk(rows: np.ndarray, steps: int) -> np.ndarray:
    """c of rows [W,NB]."""
    c = np.zeros(rows.shape[1])
    for i in range(steps):
        row = rows[i % len(rows)]
        c = c + row * (1 + row @ c)
    return c


def block_weights(p: np.ndarray, block: np.ndarray, scorer: Any) -> np.ndarray:
    """w [S] of entries with attention p [W,S] and block numbers [S], each its block's."""
    ids, of = np.unique(block, return_inverse=True)
    s = np.stack([p[:, of == j].sum(axis=1) for j in range(len(ids))], axis=1)
    c = s.sum(axis=0) if scorer.hub else walk(s[::-1] if scorer.newest_first else s, scorer.walk)
    rank = np.arange(len(ids)) / max(len(ids) - 1, 1)
    return (s.mean(axis=0) + scorer.lam * c / (c.sum() or 1) + scorer.eps * rank)[of]


def block_walk(scorer: Any, size: int, forced: bool = True) -> Score:
    """The score under `top`; forced blocks (sink, the one before the current, current) are ahead of all others."""

    def score(s: Any, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        heads = range(s.cfg.num_kv_heads) if scorer.share_heads else [head]
        rows = [_window(s, layer, h, scorer.window) for h in heads]
        q, q_pos, k = np.stack([x for x, _ in rows]), rows[0][1], np.stack([s.keys(layer, h, at) for h in heads])
        if scorer.share_heads:
            p = oracle.probabilities(q.mean(axis=(0, 1)), q_pos, k.mean(axis=0), at)
        else:
            p = oracle.probabilities(q[0], q_pos, k[0], at).mean(axis=0)
        block, current = at // size, (s.seen - 1) // size
        w = block_weights(p, block, scorer)
        return w + 1e3 * ((block == 0) | (block >= current - 1)) if forced else w

    return score
