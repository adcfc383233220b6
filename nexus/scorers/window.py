"""Observation window: attention of the last W queries. SnapKV and, with W = 1 and a mean over the layer's heads, TOVA.

SnapKV, Li et al., arXiv 2404.14469:   score = mean over G of pool(mean over window rows of A)
    A = softmax over all entries, window columns dropped after the softmax (not renormalised)
    official code sums over rows and keeps one set per query head; as kvpress we pool, then average the group.
TOVA, Oren et al., arXiv 2401.06104:   score = mean over all N heads of the last query's attention
    one set per layer: equal scores in all heads give equal sets, so heads stay in step under a budget per head.

The last W queries are kept in a ring, so a chunk, a decode step and a new turn all score with true queries.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import EMPTY, Layout

POOLS = ("avg", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowAttention(Scorer):
    """score = pooled attention of the last `window` queries."""

    window: int = 32  # W
    kernel: int = 5  # odd; 1 = no pooling
    pool: str = "avg"
    layer_mean: bool = False  # average over all heads of the layer (TOVA)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and at least 1, got {self.kernel}")
        if self.pool not in POOLS:
            raise ValueError(f"pool {self.pool!r}; allowed: {', '.join(POOLS)}")

    def check(self, budget: int, layout: Layout) -> None:
        if self.layer_mean and not layout.dense:
            raise ValueError("layer_mean shares one set of entries per layer and needs the allocator per_head")

    def init_state(self, layout: Layout, batch: int) -> Any:
        L, K, G, H = layout.num_layers, layout.num_kv_heads, layout.num_groups, layout.head_dim
        return {
            "q": jnp.zeros((L, batch, K, G, self.window, H), jnp.dtype(layout.dtype)),
            "pos": jnp.full((L, batch, self.window), EMPTY, jnp.int32),
        }

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        B, K, _, H = call.q.shape
        q = call.q.reshape(B, K, call.groups, -1, H)
        return {"q": _push(state["q"], q, call.pos), "pos": _push(state["pos"], call.pos, call.pos)}, table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        there = (state["pos"] != EMPTY).astype(jnp.float32)
        weight = there / jnp.maximum(there.sum(axis=-1, keepdims=True), 1.0)
        received = entries.window_attention(state["q"], state["pos"], weight)  # [B,P,n,G]
        oldest = jnp.where(there[0] > 0, state["pos"][0], jnp.iinfo(jnp.int32).max).min(axis=-1)
        if self.kernel > 1:
            received = entries.pooled(received, self.kernel, self.pool, before=oldest)
        score = received.mean(axis=-1)
        if self.layer_mean:
            K = entries.buffer.layout.num_kv_heads
            by_layer = score.reshape(score.shape[0], -1, K, score.shape[-1])
            score = jnp.broadcast_to(by_layer.mean(axis=2, keepdims=True), by_layer.shape).reshape(score.shape)
        return score


def _push(ring: jax.Array, new: jax.Array, pos: jax.Array) -> jax.Array:
    """Appends the live columns of `new`, a prefix of its T (pos [B,T] >= 0), to a ring of W; the oldest fall out.

    ring, new: [B,...,W(,H)], [B,...,T(,H)]; the axis of slots is the last one for positions [B,W], else the one before.
    """
    axis = -1 if ring.ndim == 2 else -2
    both = jnp.concatenate([ring, new.astype(ring.dtype)], axis=axis)
    arrived = (pos >= 0).sum(axis=1)
    slide = lambda x, n: lax.dynamic_slice_in_dim(x, n, ring.shape[axis], axis=axis)  # noqa: E731
    return jax.vmap(slide)(both, arrived)
