"""The padded reference for methods whose heads or layers hold unequal shares: counts from the equations, in fractions.

A `SharesStream` is an `oracle.Stream` whose cut is one of the rules below. Written from the papers' equations and
independent of the package: no integer trick, no running sum, residues one at a time, norms by brute force.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests import oracle

Judged = dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]  # (layer, head) -> at, score, protected
Kept = dict[tuple[int, int], set[int]]  # (layer, head) -> positions


class SharesStream(oracle.Stream):
    """A stream that keeps what `choose(stream, judged)` says."""

    def __init__(self, *args: Any, choose: Callable[[SharesStream, Judged], Kept]):
        super().__init__(*args)
        self.choose = choose

    def evict(self) -> None:
        L, K, _ = self.keep.shape
        heads = [(layer, head) for layer in range(L) for head in range(K)]
        judged = {}
        for layer, head in heads:
            at = np.flatnonzero(self.keep[layer, head])
            judged[layer, head] = (at, *self._judged(layer, head, at, size=1))
        for (layer, head), positions in self.choose(self, judged).items():
            self.keep[layer, head] = np.isin(np.arange(self.seen), sorted(positions))


def best(judged: Judged, heads: list[tuple[int, int]], cap: int, sure: Kept | None = None) -> Kept:
    """The `cap` best entries of some heads together; those in `sure` count as protected."""
    flat, owners = [], []
    for layer, head in heads:
        at, score, mask = judged[layer, head]
        for p, x, m in zip(at, score, mask, strict=True):
            first = bool(m) or (sure is not None and int(p) in sure[layer, head])
            flat.append((first, float(x), int(p), 1000 * layer + head))
            owners.append((layer, head))
    kept: Kept = {owner: set() for owner in heads}
    for i in oracle.select(flat, cap):
        kept[owners[i]].add(flat[i][2])
    return kept


def capped(judged: Judged, caps: dict[tuple[int, int], int], total: int) -> Kept:
    """Each head its best `caps`; what they leave unused goes to the best of the rest."""
    kept: Kept = {}
    for owner, cap in caps.items():
        kept |= best(judged, [owner], cap)
    return best(judged, list(caps), total, sure=kept)


# --- numbers -----------------------------------------------------------------------------------------------------


def largest_remainder(shares: list[Fraction]) -> list[int]:
    out = [int(x) for x in shares]
    left = sum(shares) - sum(out)
    order = sorted(range(len(shares)), key=lambda i: (out[i] - shares[i], i))
    for i in order[: int(left)]:
        out[i] += 1
    return out


def pyramid(budget: int, layers: int, beta: int, reserved: int, seen: int) -> list[int]:
    """The official formula with the window's place taken by everything protected; equal while everything fits."""
    if layers == 1 or seen <= budget:
        return [budget] * layers
    c = Fraction(budget - reserved)
    lo = c / beta
    hi = 2 * c - lo
    if hi >= seen - reserved:
        hi = Fraction(seen - reserved)
        lo = 2 * c - hi
    free = largest_remainder([hi - layer * (hi - lo) / (layers - 1) for layer in range(layers)])
    return [x + reserved for x in free]


def adaptive(flat: list[int], alpha: Fraction) -> list[int]:
    mean = Fraction(sum(flat), len(flat))
    return largest_remainder([(1 - alpha) * f + alpha * mean for f in flat])


def calibrated(budget: int, weight: np.ndarray, least: int, most: int) -> list[int]:
    L = len(weight)
    share = [least + int(np.round(np.float32(w) * np.float32(L * (budget - least)))) for w in weight]
    share = [min(max(m, least), most * budget) for m in share]
    while sum(share) < L * budget:
        open_ = [i for i in range(L) if share[i] < most * budget]
        share[max(open_, key=lambda i: (weight[i], -i))] += 1
    while sum(share) > L * budget:
        open_ = [i for i in range(L) if share[i] > least]
        share[min(open_, key=lambda i: (weight[i], i))] -= 1
    return share


def norm_loss(rows: list[np.ndarray], tau: float) -> int:
    """rows: attention of every query head on the evictable entries, in order. The largest e, by trying each."""
    whole = np.mean([np.sqrt((a**2).sum()) for a in rows])
    gone = 0
    for e in range(len(rows[0]) + 1):
        left = np.mean([np.sqrt((a[e:] ** 2).sum()) for a in rows])
        if whole > 0 and (whole - left) / whole <= tau:
            gone = e
    return gone


# --- scores ------------------------------------------------------------------------------------------------------


def window_rows(s: oracle.Stream, layer: int, head: int, at: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """`wa` of the last queries [G,W,S], and which columns lie before the window."""
    real = min(window, s.seen)
    q_pos = np.arange(s.seen - real, s.seen)
    return oracle.window_attention(s.queries[layer][head, :, -real:], q_pos, s.keys(layer, head, at), at), at < q_pos[0]


def adakv(window: int, kernel: int, pool: str) -> Callable[..., np.ndarray]:
    """Mean over rows, then over the group, then pooled."""

    def score(s: oracle.Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        A, context = window_rows(s, layer, head, at, window)
        out = np.zeros(len(at))
        if context.any():
            out[context] = oracle.pooled(A.mean(axis=1).mean(axis=0)[context], kernel, pool)
        return out

    return score


def compresskv(heads: np.ndarray, window: int, kernel: int) -> Callable[..., np.ndarray]:
    """Listed query heads of the layer, each on its own kv head: sum over rows, pooled, mean over heads."""

    def score(s: oracle.Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        G, votes = s.cfg.num_heads // s.cfg.num_kv_heads, []
        for n in heads[layer]:
            A, context = window_rows(s, layer, n // G, at, window)
            vote = np.zeros(len(at))
            if context.any():
                vote[context] = oracle.pooled(A[n % G].sum(axis=0)[context], kernel, "avg")
            votes.append(vote)
        return np.mean(votes, axis=0)

    return score


def layer_order(window: int) -> Callable[..., np.ndarray]:
    """Attention of the last queries, summed over rows, mean over the layer's query heads."""

    def score(s: oracle.Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        rows = [window_rows(s, layer, k, at, window)[0].sum(axis=1) for k in range(s.cfg.num_kv_heads)]
        return np.concatenate(rows).mean(axis=0)

    return score


# --- cuts --------------------------------------------------------------------------------------------------------


def cut_pyramid(method: Any) -> Callable[[SharesStream, Judged], Kept]:
    def choose(s: SharesStream, judged: Judged) -> Kept:
        L, K = s.cfg.num_layers, s.cfg.num_kv_heads
        reserved = max(int(mask.sum()) for _, _, mask in judged.values())
        by_layer = pyramid(method.budget, L, method.allocator.beta, reserved, s.seen)
        return capped(judged, {owner: by_layer[owner[0]] for owner in judged}, method.budget * L * K)

    return choose


def cut_adaptive(method: Any) -> Callable[[SharesStream, Judged], Kept]:
    def choose(s: SharesStream, judged: Judged) -> Kept:
        kept: Kept = {}
        for layer in range(s.cfg.num_layers):
            heads = [owner for owner in judged if owner[0] == layer]
            rows = method.budget * len(heads)
            held = [int(judged[owner][2].sum()) for owner in heads]
            flat = best(judged, heads, rows)
            f = [len(flat[owner]) - h for owner, h in zip(heads, held, strict=True)]
            shares = adaptive(f, Fraction(str(method.allocator.alpha)))
            kept |= capped(judged, {o: h + m for o, h, m in zip(heads, held, shares, strict=True)}, rows)
        return kept

    return choose


def cut_calibrated(method: Any, weight: np.ndarray) -> Callable[[SharesStream, Judged], Kept]:
    def choose(s: SharesStream, judged: Judged) -> Kept:
        by_layer = calibrated(method.budget, weight, method.allocator.least, method.allocator.most)
        total = method.budget * s.cfg.num_layers * s.cfg.num_kv_heads
        return capped(judged, {owner: by_layer[owner[0]] for owner in judged}, total)

    return choose


def cut_norm_loss(method: Any) -> Callable[[SharesStream, Judged], Kept]:
    def choose(s: SharesStream, judged: Judged) -> Kept:
        kept: Kept = {}
        for layer in range(s.cfg.num_layers):
            rows, orders = [], {}
            for owner in (owner for owner in judged if owner[0] == layer):
                at, score, mask = judged[owner]
                free = sorted(np.flatnonzero(~mask), key=lambda i: (score[i], at[i]))
                q = s.queries[layer][owner[1], :, -1:]
                A = oracle.probabilities(q, np.array([s.seen - 1]), s.keys(layer, owner[1], at), at)[:, 0]
                rows += list(A[:, free])
                orders[owner] = [int(at[i]) for i in free]
            gone = 0 if layer < method.allocator.full_layers else norm_loss(rows, method.allocator.tau)
            for owner, order in orders.items():
                at = judged[owner][0]
                kept[owner] = set(at.tolist()) - set(order[: max(gone, len(at) - method.budget)])
        return kept

    return choose
