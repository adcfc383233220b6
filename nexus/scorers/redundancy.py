"""How much of a key its neighbours say already: the redundancy of R-KV, arXiv 2505.24133, also used by G-KV.

    C_ij = cosine of keys i and j (post-RoPE), 0 for i = j
    for every j, C_ij <- 0 for the LATEST i with C_ij > 0.5: of similar keys the newest stays free of blame
    r_i  = mean_j C_ij over all n entries of the head

Official code zeroes C_0j for a j without any match, an artefact of its indexing that loads the first entry; left out
here. Computed tile by tile: of S x S similarities never more than TILE x TILE per head exist. Shared by scorers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from nexus.scorers.base import Entries

SIMILAR = 0.5
TILE = 128


def of_entries(entries: Entries) -> jax.Array:
    """r of every candidate [B,P,n] float32, over the live entries of its head; 0 where there is nothing."""
    k = entries.k()
    unit = k / jnp.maximum(jnp.linalg.norm(k, axis=-1, keepdims=True), 1e-8)
    if entries.cand.layout.dense:  # every head fills its own pool: all side by side
        return jax.vmap(jax.vmap(_head))(unit, entries.valid)
    return jax.vmap(jax.vmap(_pool))(unit, entries.valid, entries.cand.first)


def _head(unit: jax.Array, live: jax.Array) -> jax.Array:
    """One head alone: unit [n,H], live [n] -> [n]."""
    n = live.shape[0]
    tiles = -(-n // TILE)
    padded = _pad(unit, live, tiles * TILE - n)
    return _mean(*padded, low=0, tiles=tiles, count=live.sum())[:n]


def _pool(unit: jax.Array, live: jax.Array, first: jax.Array) -> jax.Array:
    """Heads one after another, each as far as its own entries go: unit [n,H], live [n], first [Q+1] -> [n]."""
    n = live.shape[0]
    padded, live_padded = _pad(unit, live, TILE)

    def head(q: jax.Array, out: jax.Array) -> jax.Array:
        low, high = first[q], jnp.minimum(first[q + 1], n)
        mine = live_padded & (jnp.arange(n + TILE) >= low) & (jnp.arange(n + TILE) < high)
        return out + _mean(padded, mine, low=low, tiles=(high - low + TILE - 1) // TILE, count=mine.sum())

    return lax.fori_loop(0, first.shape[0] - 1, head, jnp.zeros(n + TILE, jnp.float32))[:n]


def _pad(unit: jax.Array, live: jax.Array, more: int) -> tuple[jax.Array, jax.Array]:
    return jnp.pad(unit, ((0, more), (0, 0))), jnp.pad(live, (0, more))


def _mean(unit: jax.Array, live: jax.Array, *, low: jax.Array | int, tiles: jax.Array | int, count: jax.Array):
    """r [N] of the entries that are live among `tiles` tiles from index `low` on; 0 elsewhere."""
    N = unit.shape[0]

    def block(x: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, low + i * TILE, TILE)

    def column(j: jax.Array, total: jax.Array) -> jax.Array:
        """Adds C_ij of the columns of tile j, without the latest similar row of each."""
        of_j, live_j, index = block(unit, j), block(live, j), jnp.arange(TILE)

        def rows(i: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]):
            total, latest, similarity = carry
            C = jnp.einsum("IH,JH->IJ", block(unit, i), of_j, precision=lax.Precision.HIGHEST)
            same = (i * TILE + index)[:, None] == (j * TILE + index)[None]
            C = jnp.where(block(live, i)[:, None] & live_j[None] & ~same, C, 0.0)
            last = jnp.where(C > SIMILAR, index[:, None], -1).max(axis=0)
            found = jnp.take_along_axis(C, jnp.maximum(last, 0)[None], axis=0)[0]
            latest = jnp.where(last >= 0, low + i * TILE + last, latest)
            similarity = jnp.where(last >= 0, found, similarity)
            total = lax.dynamic_update_slice_in_dim(total, block(total, i) + C.sum(axis=1), low + i * TILE, axis=0)
            return total, latest, similarity

        nothing = jnp.full(TILE, N, jnp.int32), jnp.zeros(TILE, jnp.float32)
        total, latest, similarity = lax.fori_loop(0, tiles, rows, (total, *nothing))
        return total.at[latest].add(-similarity, mode="drop")

    total = lax.fori_loop(0, tiles, column, jnp.zeros(N, jnp.float32))
    return total / jnp.maximum(count, 1)
