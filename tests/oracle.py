"""The padded reference of the buffer: per (layer, head) a full-length cache and a mask of what is kept. NumPy, slow.

Written from the equations and independent of the package: nothing is packed, nothing is compiled, every softmax is over
one head's kept entries in one piece. A `Stream` is one sequence; whole runs (prefill in chunks, evictions, decoding,
turns) are replayed by it and compared with the real ones. A scoring function takes (stream, layer, kv head, at), with
`at` the positions of the head's candidates in increasing order, and returns one number each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

# --- attention ---------------------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    """Over the last axis; a row without any finite entry gives zeros."""
    top = z.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(z - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total > 0, total, 1.0)


def probabilities(q: np.ndarray, q_pos: np.ndarray, k: np.ndarray, k_pos: np.ndarray) -> np.ndarray:
    """q [...,R,H] not scaled, q_pos [R], k [S,H], k_pos [S] -> [...,R,S]; entries with k_pos < 0 are nothing."""
    z = q @ k.T / np.sqrt(k.shape[-1])
    return softmax(np.where((k_pos[None, :] >= 0) & (k_pos[None, :] <= q_pos[:, None]), z, -np.inf))


def window_attention(q: np.ndarray, q_pos: np.ndarray, k: np.ndarray, k_pos: np.ndarray) -> np.ndarray:
    """`wa`: q [G,W,H], k [S,H] -> [G,W,S]. The window's own columns are dropped after the softmax."""
    return np.where(k_pos < q_pos[0], probabilities(q, q_pos, k, k_pos), 0.0)


def pooled(x: np.ndarray, kernel: int, kind: str) -> np.ndarray:
    """Pools over the last axis, stride 1. avg: zero padding, divisor k at the borders as well; max: -inf padding."""
    half, n = kernel // 2, x.shape[-1]
    pad = [(0, 0)] * (x.ndim - 1) + [(half, half)]
    wide = np.pad(x, pad, constant_values=0.0 if kind == "avg" else -np.inf)
    windows = np.stack([wide[..., i : i + n] for i in range(kernel)])
    return windows.sum(axis=0) / kernel if kind == "avg" else windows.max(axis=0)


# --- selection ---------------------------------------------------------------------------------------------------


def select(entries: list[tuple[bool, float, int, int]], cap: int) -> list[int]:
    """Indices of the `cap` best of (protected, score, position, owner): ties to the newer, then to the lower owner."""
    order = sorted(range(len(entries)), key=lambda i: (*(-x for x in map(float, entries[i][:3])), entries[i][3]))
    return sorted(order[:cap])


# --- scores ------------------------------------------------------------------------------------------------------


def recency(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
    return at.astype(float)


def key_norm(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
    return -np.sqrt((s.keys(layer, head, at) ** 2).sum(axis=-1))


def key_difference(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
    k = s.keys(layer, head, at)
    unit = k / np.sqrt((k**2).sum(axis=-1, keepdims=True))
    anchor = unit.mean(axis=0)
    return -(unit @ anchor) / np.sqrt((anchor**2).sum())


def accumulated(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
    return s.received[layer, head, at]


def last_query(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
    """TOVA: mean over all N heads of the layer; every head holds the same positions."""
    q_pos = np.array([s.seen - 1])
    q = s.queries[layer][:, :, -1:]  # [K,G,1,H]
    rows = [window_attention(q[j], q_pos, s.keys(layer, j, at), at) for j in range(s.cfg.num_kv_heads)]
    return np.concatenate(rows)[:, 0].mean(axis=0)


def snapkv(window: int, kernel: int, pool: str) -> Callable[..., np.ndarray]:
    """Mean over rows, pool the columns before the window, then the group's mean."""

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        real = min(window, s.seen)
        q_pos = np.arange(s.seen - real, s.seen)
        A = window_attention(s.queries[layer][head, :, -real:], q_pos, s.keys(layer, head, at), at)
        out, context = np.zeros(len(at)), at < q_pos[0]
        if context.any():
            out[context] = pooled(A.mean(axis=1)[:, context], kernel, pool).mean(axis=0)
        return out

    return score


# --- the model ---------------------------------------------------------------------------------------------------


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, pos: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
    """x [...,n,H] by the angles of pos [n]; coordinate i turns with i + H/2."""
    angle = pos[:, None] * inv_freq[None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """A method, spelled out."""

    score: Callable[..., np.ndarray] | None  # None: the full cache
    budget: int
    pool: str = "per_head"  # per_head | per_layer | global
    num_sinks: int = 0
    recent: int = 0
    min_per_head: int = 0
    positions: str = "original"


class Stream:
    """One sequence: everything it ever saw, and the mask of what it still holds.

    cfg: a model config; params: its parameters as float64 NumPy arrays, `blocks` stacked over layers; inv_freq [H/2].
    """

    def __init__(self, cfg: Any, params: dict[str, Any], inv_freq: np.ndarray, rules: Rules):
        self.cfg, self.params, self.inv_freq, self.rules = cfg, params, inv_freq.astype(np.float64), rules
        L, K, H = cfg.num_layers, cfg.num_kv_heads, cfg.head_dim
        self.seen = 0
        self.k = np.zeros((L, K, 0, H))  # before RoPE
        self.v = np.zeros((L, K, 0, H))
        self.queries = [np.zeros((K, cfg.num_heads // K, 0, H)) for _ in range(L)]  # after RoPE
        self.inputs = [np.zeros((0, cfg.dim)) for _ in range(L)]  # normed attention inputs
        self.keep = np.zeros((L, K, 0), bool)
        self.received = np.zeros((L, K, 0))
        self.tokens: list[int] = []
        self.last_input = np.zeros((0, cfg.dim))  # what came into the last layer
        self.before = self.keep  # what was held when the eviction in progress began
        self.logits = np.zeros(cfg.vocab_size)

    def keys(self, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        """Keys after RoPE at true positions."""
        return rotate(self.k[layer, head, at], at, self.inv_freq)

    def kept(self) -> list[list[np.ndarray]]:
        return [[np.flatnonzero(head) for head in layer] for layer in self.keep]

    def step(self, tokens: list[int] | np.ndarray) -> np.ndarray:
        """Runs tokens (or embeddings [T,D]) through the model against what is kept; logits [T,V]."""
        cfg, T = self.cfg, len(tokens)
        if not T:
            return np.zeros((0, cfg.vocab_size))
        grow = lambda x: np.concatenate([x, np.zeros((*x.shape[:2], T, *x.shape[3:]), x.dtype)], axis=2)  # noqa: E731
        self.k, self.v, self.keep, self.received = map(grow, (self.k, self.v, self.keep, self.received))
        self.keep[:, :, self.seen :] = True
        if isinstance(tokens, np.ndarray):
            x = tokens
        else:
            self.tokens, x = [*self.tokens, *tokens], self.params["embed"][np.asarray(tokens)]
        for layer in range(cfg.num_layers):
            if layer == cfg.num_layers - 1:
                self.last_input = np.concatenate([self.last_input, x])
            w = {name: value[layer] for name, value in self.params["blocks"].items()}
            x = x + self._attention(layer, w, rms_norm(x, w["attn_norm"], cfg.rms_eps)) @ w["wo"]
            gate, up = np.split(rms_norm(x, w["ffn_norm"], cfg.rms_eps) @ w["w_gate_up"], 2, axis=-1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w["w_down"]
        self.seen += T
        x = rms_norm(x, self.params["final_norm"], cfg.rms_eps)
        out = x @ (self.params["embed"].T if cfg.tied_embeddings else self.params["head"])
        self.logits = out[-1]
        return out

    def _attention(self, layer: int, w: dict[str, np.ndarray], h: np.ndarray) -> np.ndarray:
        """h [T,D] -> [T,N*H], query head n on kv head n // G."""
        cfg, T = self.cfg, len(h)
        N, K, H = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.inputs[layer] = np.concatenate([self.inputs[layer], h])
        qkv = h @ w["wqkv"] + (w["bqkv"] if cfg.qkv_bias else 0.0)
        q, k, v = (x.reshape(T, -1, H) for x in np.split(qkv, [N * H, (N + K) * H], axis=-1))
        if cfg.qk_norm:
            q, k = rms_norm(q, w["q_norm"], cfg.rms_eps), rms_norm(k, w["k_norm"], cfg.rms_eps)
        new = np.arange(self.seen, self.seen + T)
        self.k[layer][:, new], self.v[layer][:, new] = k.swapaxes(0, 1), v.swapaxes(0, 1)
        out, rotated = np.zeros((T, N, H)), np.zeros((N, T, H))
        for n in range(N):
            head = n // (N // K)
            at = np.flatnonzero(self.keep[layer, head])
            original = self.rules.positions == "original"
            k_angle, q_angle = (at, new) if original else (np.arange(len(at)), np.arange(len(at) - T, len(at)))
            rotated[n] = rotate(q[:, n], q_angle, self.inv_freq)
            keys = rotate(self.k[layer, head, at], k_angle, self.inv_freq)
            p = probabilities(rotated[n], new, keys, at)
            out[:, n] = p @ self.v[layer, head, at]
            self.received[layer, head, at] += p.sum(axis=0) / (N // K)
        rows = rotated.reshape(K, N // K, T, H)
        self.queries[layer] = np.concatenate([self.queries[layer], rows], axis=2)
        return out.reshape(T, N * H)

    def evict(self) -> None:
        """One cut to the budget, pool by pool."""
        r, (L, K, _) = self.rules, self.keep.shape
        if r.score is None:
            return
        self.before = self.keep.copy()
        heads = [(layer, head) for layer in range(L) for head in range(K)]
        size = {"per_head": 1, "per_layer": K, "global": L * K}[r.pool]
        for i in range(0, L * K, size):
            pool = [(layer, head, at, *self._judged(layer, head, at, size)) for layer, head in heads[i : i + size]
                    for at in [np.flatnonzero(self.keep[layer, head])]]  # fmt: skip
            flat = [(layer, head, p) for layer, head, at, _, _ in pool for p in at]
            entries = [
                (bool(m), float(x), int(p), layer * K + head)
                for layer, head, at, score, mask in pool
                for p, x, m in zip(at, score, mask, strict=True)
            ]
            chosen = set(select(entries, r.budget * size))
            for j, (layer, head, p) in enumerate(flat):
                self.keep[layer, head, p] = j in chosen

    def _judged(self, layer: int, head: int, at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and the protection mask of one head's entries."""
        r = self.rules
        assert r.score is not None
        score = r.score(self, layer, head, at)
        mask = (at < r.num_sinks) | (at >= self.seen - r.recent)
        if r.min_per_head and size > 1:
            free = sorted(np.flatnonzero(~mask), key=lambda i: (-score[i], -at[i]))
            mask[free[: r.min_per_head]] = True
        return score, mask

    # --- the loops -------------------------------------------------------------------------------------------------

    def prefill(self, tokens: list[int], chunk: int, evicting: bool = True) -> np.ndarray:
        """Logits [len(tokens), V]; an eviction after each chunk."""
        out = [np.zeros((0, self.cfg.vocab_size))]
        for i in range(0, len(tokens), chunk):
            out.append(self.step(tokens[i : i + chunk]))
            if evicting:
                self.evict()
        return np.concatenate(out)

    def decode(self, steps: int, evict_every: int, fill: int = 0, end: tuple[int, ...] = ()) -> tuple[list[int], int]:
        """Greedy tokens up to and with an end token, and the columns of the tail in use; 0 never evicts.

        Columns are counted like in a batch whose other rows go on: also for steps after the end.
        """
        tokens: list[int] = []
        for _ in range(steps):
            if not (tokens and tokens[-1] in end):
                tokens.append(int(self.logits.argmax()))
                if tokens[-1] not in end:
                    self.step([tokens[-1]])
            fill += 1
            if evict_every and fill >= evict_every:
                self.evict()
                fill = 0
        return tokens, fill
