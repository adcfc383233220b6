"""A walk over all entries, head by head, in which an entry meets what belongs to its head alone.

The packed table has no axis of heads, so `v^T M_head v` of every row is no single product over it. Here the rows of a
segment are read in blocks together with their head's arrays. Dead rows may hold anything, NaN included: a rule sees
zeros in their place and what it makes of them is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nexus.attention import Segments

Rule = Callable[[jax.Array, jax.Array, Any], jax.Array]
"""(k [S,H], v [S,H], the head's own arrays) -> [S,J], all float32; each row by itself."""

BLOCK = 128  # rows read at a time


def over_table(
    rule: Rule, out: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, own: Any, block: int = BLOCK
) -> jax.Array:
    """Writes what the rule says about the live rows of K heads into out [B,E,J]; all other rows stay as they are.

    Args:
        k, v: [B,E,H]. segments: of these heads, [B,K]. own: pytree of arrays [B,K,...].
    """
    B, K = segments.start.shape
    rows = k.shape[1]
    size = min(block, rows)

    def head(out, pair):
        b, h = pair
        start, count = segments.start[b, h], segments.count[b, h]
        mine = jax.tree.map(lambda x: x[b, h], own)

        def body(i, out):
            first = jnp.minimum(start + i * size, rows - size)  # clamped into the table, and then before row i * size
            index = first - start + jnp.arange(size)
            live = ((index >= i * size) & (index < count))[:, None]
            kb, vb = (lax.dynamic_slice(x, (b, first, 0), (1, size, x.shape[2]))[0] for x in (k, v))
            new = rule(_clean(kb, live), _clean(vb, live), mine)
            old = lax.dynamic_slice(out, (b, first, 0), (1, size, out.shape[2]))[0]
            return lax.dynamic_update_slice(out, jnp.where(live, new, old)[None], (b, first, 0))

        return lax.fori_loop(0, (count + size - 1) // size, body, out), None

    return lax.scan(head, out, (jnp.repeat(jnp.arange(B), K), jnp.tile(jnp.arange(K), B)))[0]


def over_tail(rule: Rule, k: jax.Array, v: jax.Array, live: jax.Array, own: Any) -> jax.Array:
    """The same for the tail: k, v [B,K,C,H], live [B,C], own [B,K,...] -> [B,K,C,J]; dead columns as rows of zeros."""
    live = live[:, None, :, None]
    return jax.vmap(jax.vmap(rule))(_clean(k, live), _clean(v, live), own)


def _clean(x: jax.Array, live: jax.Array) -> jax.Array:
    return jnp.where(live, x, 0).astype(jnp.float32)
