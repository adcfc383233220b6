"""The ring of recent queries: what scorers remember that judge entries by the attention of the last W queries.

Kept per layer in chronological order, newest last, so that a chunk, a decode step and a new turn all score with true
queries. Shared by several scorers; no scorer of its own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nexus.scorers.base import Call, Entries
from nexus.shapes import EMPTY, Layout

POOLS = ("avg", "max")


def check_options(window: int, kernel: int, pool: str) -> None:
    """Raises ValueError for what no window and no pooling can be."""
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel must be odd and at least 1, got {kernel}")
    if pool not in POOLS:
        raise ValueError(f"pool {pool!r}; allowed: {', '.join(POOLS)}")


def init(layout: Layout, batch: int, window: int) -> dict[str, jax.Array]:
    """An empty ring of W = window queries: q [L,B,K,G,W,H] post-RoPE and scaled, pos [L,B,W]."""
    L, K, G, H = layout.num_layers, layout.num_kv_heads, layout.num_groups, layout.head_dim
    return {
        "q": jnp.zeros((L, batch, K, G, window, H), jnp.dtype(layout.dtype)),
        "pos": jnp.full((L, batch, window), EMPTY, jnp.int32),
    }


def push(ring: Any, call: Call) -> dict[str, jax.Array]:
    """One layer's ring (q [B,K,G,W,H], pos [B,W]) with the live queries of a call; the oldest fall out."""
    B, K, _, H = call.q.shape
    q = call.q.reshape(B, K, call.groups, -1, H)
    return {"q": _push(ring["q"], q, call.pos), "pos": _push(ring["pos"], call.pos, call.pos)}


def _push(ring: jax.Array, new: jax.Array, pos: jax.Array) -> jax.Array:
    """Appends the live columns of `new`, a prefix of its T (pos [B,T] >= 0), to a ring of W; the oldest fall out.

    ring, new: [B,...,W(,H)], [B,...,T(,H)]; the axis of slots is the last one for positions [B,W], else the one before.
    """
    axis = -1 if ring.ndim == 2 else -2
    both = jnp.concatenate([ring, new.astype(ring.dtype)], axis=axis)
    arrived = (pos >= 0).sum(axis=1)
    slide = lambda x, n: lax.dynamic_slice_in_dim(x, n, ring.shape[axis], axis=axis)  # noqa: E731
    return jax.vmap(slide)(both, arrived)


def there(ring: Any) -> jax.Array:
    """[L,B,W] float32: 1 for rows that hold a query; fewer than W have been seen at first."""
    return (ring["pos"] != EMPTY).astype(jnp.float32)


def oldest(ring: Any) -> jax.Array:
    """[B] position of the oldest query in the ring; the largest int32 where there is none."""
    pos = ring["pos"][0]
    return jnp.where(pos != EMPTY, pos, jnp.iinfo(jnp.int32).max).min(axis=-1)


def mean_attention(ring: Any, entries: Entries, kernel: int, pool: str, *, group_first: bool = False) -> jax.Array:
    """SnapKV's score [B,P,n]: `window_attention`, mean over the rows, pooled before the window, mean over G.

    group_first: the mean over G is taken before pooling; max pooling does not commute with it.
    """
    weight = there(ring)
    weight = weight / jnp.maximum(weight.sum(axis=-1, keepdims=True), 1.0)
    received = entries.window_attention(ring["q"], ring["pos"], weight)  # [B,P,n,G]
    if group_first:
        received = received.mean(axis=-1, keepdims=True)
    if kernel > 1:
        received = entries.pooled(received, kernel, pool, before=oldest(ring))
    return received.mean(axis=-1)
