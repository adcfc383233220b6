"""Attention over a table of entries, head by head, in blocks, with a running softmax.

A partial softmax is the triple (value, maximum, sum) of Milakov & Gimelshein, arXiv 1805.02867; two of them over disjoint
entries merge exactly. `table_attention` walks the segment of each (sequence, kv head) in blocks of rows, as far as the
segment is long: rows past its end are neither read as values nor counted, so a segment of 3 rows costs one block and
an empty one costs nothing and returns a partial of weight zero.

Queries are folded, R = G * T rows per kv head in the order (G, T): one plain matrix product per block.
Dead rows may hold anything, NaN included: logits are masked by `where` and values are zeroed before the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30  # finite: (-inf) - (-inf) would be NaN in a row without any live entry

Rotate = Callable[[jax.Array, jax.Array], jax.Array]  # keys [..., S, H], index in the segment [..., S] -> keys


class Partial(NamedTuple):
    """An attention result that is not yet normalised; float32."""

    value: jax.Array  # [..., R, H]  sum of exp(logit - maximum) * v
    maximum: jax.Array  # [..., R]
    total: jax.Array  # [..., R]     sum of exp(logit - maximum)


class Segments(NamedTuple):
    """Where each head's rows begin in the table, and how many are live."""

    start: jax.Array  # [B, K] int32
    count: jax.Array  # [B, K] int32


def fold(q: jax.Array) -> jax.Array:
    """[B,K,G,T,H] -> [B,K,G*T,H]."""
    return q.reshape(*q.shape[:2], -1, q.shape[-1])


def empty_partial(q: jax.Array) -> Partial:
    """The partial over no entry, for folded queries q [..., R, H]."""
    rows = q.shape[:-1]
    return Partial(jnp.zeros(q.shape, jnp.float32), jnp.full(rows, MASKED, jnp.float32), jnp.zeros(rows, jnp.float32))


def logits(q: jax.Array, k: jax.Array, mask: jax.Array) -> jax.Array:
    """q [..., R, H] (already scaled), k [..., S, H], mask broadcastable to [..., R, S] -> float32 [..., R, S]."""
    z = jnp.einsum("...RH,...SH->...RS", q, k, preferred_element_type=jnp.float32)
    return jnp.where(mask, z, MASKED)


def update(part: Partial, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, live: jax.Array) -> Partial:
    """Adds S entries to a partial. mask as in `logits`; live [..., S] says which values may be read at all."""
    z = logits(q, k, mask)
    maximum = jnp.maximum(part.maximum, z.max(axis=-1))
    p = jnp.where(mask, jnp.exp(z - maximum[..., None]), 0.0)
    v = jnp.where(live[..., None], v, 0)
    old = jnp.exp(part.maximum - maximum)
    value = jnp.einsum("...RS,...SH->...RH", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Partial(part.value * old[..., None] + value, maximum, part.total * old + p.sum(axis=-1))


def merge(a: Partial, b: Partial) -> Partial:
    """The partial over the entries of both."""
    maximum = jnp.maximum(a.maximum, b.maximum)
    wa, wb = jnp.exp(a.maximum - maximum), jnp.exp(b.maximum - maximum)
    return Partial(a.value * wa[..., None] + b.value * wb[..., None], maximum, a.total * wa + b.total * wb)


def finish(part: Partial) -> jax.Array:
    """The attention output [..., R, H]; exactly 0 where no entry was visible."""
    total = part.total[..., None]
    return jnp.where(total > 0, part.value / jnp.where(total > 0, total, 1.0), 0.0)


def table_block(rows: int, parallel: bool) -> int:
    """Rows read at a time. Measured on CPU: short blocks suit heads walked one by one, long ones dense heads."""
    if not parallel:
        return min(rows, 64)
    return min(rows, 512 if rows > 1024 else 256)


def _block(start: jax.Array, count: jax.Array, i: jax.Array, size: int, rows: int):
    """First row of block i, clamped into the table, the block's index in the segment [size] and its live mask.

    A clamped block begins before the rows it stands for; those (index < i * size) are masked, not counted twice.
    """
    first = jnp.minimum(start + i * size, rows - size)
    index = first - start + jnp.arange(size)
    return first, index, (index >= i * size) & (index < count)


def table_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, *, parallel: bool, longest: int, rotate: Rotate | None = None
) -> Partial:
    """Partial attention of folded queries over each head's segment of the table.

    Args:
        q: [B,K,R,H], scaled. Every live row is visible to every query: table rows are older than this call.
        k, v: [B,E,H].
        parallel: walk all heads side by side (equal segments) or one after another (unequal segments; no padding).
        longest: static upper bound of a segment's length when parallel, which sets the block size.
        rotate: rotates the keys of a block by their index in the segment (cache positions), or None.
    """
    rows = k.shape[1]
    size = min(table_block(longest, parallel), rows)

    def head(b, q, start, count):
        def body(i, part):
            first, index, live = _block(start, count, i, size, rows)
            kb = lax.dynamic_slice(k, (b, first, 0), (1, size, k.shape[2]))[0]
            vb = lax.dynamic_slice(v, (b, first, 0), (1, size, v.shape[2]))[0]
            kb = kb if rotate is None else rotate(kb, index)
            return update(part, q, kb, vb, live[None], live)

        return lax.fori_loop(0, (count + size - 1) // size, body, empty_partial(q))

    return _over_heads(head, q, segments, parallel)


def _over_heads(head, q: jax.Array, segments: Segments, parallel: bool):
    """Maps head(b, q [R,H], start, count) over batch and kv heads: vectorised, or one after another."""
    batch = jnp.arange(q.shape[0])
    if parallel:
        over_k = jax.vmap(head, in_axes=(None, 0, 0, 0))
        return jax.vmap(over_k)(batch, q, segments.start, segments.count)
    return _one_by_one(lambda x: head(*x), q, segments.start, segments.count)


def _pairs(B: int, K: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Every (sequence, head) pair as one row: (index of the sequence [B*K], arrays [B,K,...] as [B*K,...])."""
    return (jnp.repeat(jnp.arange(B), K), *(x.reshape(B * K, *x.shape[2:]) for x in arrays))


def _for_heads(x: jax.Array, K: int) -> jax.Array:
    """[B,...] -> [B,K,...], the same for every head."""
    return jnp.repeat(x[:, None], K, axis=1)


def _one_by_one(head, q: jax.Array, *arrays: jax.Array):
    """Maps head((b, q, *arrays)) over the pairs in turn; q and arrays [B,K,...]."""
    B, K = q.shape[:2]
    out = lax.map(head, _pairs(B, K, q, *arrays))
    return jax.tree.map(lambda x: x.reshape(B, K, *x.shape[1:]), out)


def tail_mask(q_pos: jax.Array, tail_pos: jax.Array, groups: int) -> jax.Array:
    """Which tail columns a folded query sees: q_pos [B,T], tail_pos [B,C] -> [B,1,G*T,C]."""
    mask = (tail_pos[:, None, :] >= 0) & (tail_pos[:, None, :] <= q_pos[:, :, None])
    return jnp.tile(mask, (1, groups, 1))[:, None]


def tail_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, live: jax.Array) -> Partial:
    """Partial attention over the dense tail: q [B,K,R,H], k, v [B,K,C,H], mask [B,1,R,C], live [B,C]."""
    return update(empty_partial(q), q, k, v, mask, live[:, None])


class Queries(NamedTuple):
    """Queries whose attention is wanted entry by entry, with the softmax they have over everything they see."""

    q: jax.Array  # [B,K,R,H] folded, scaled
    pos: jax.Array  # [B,R] int32
    weight: jax.Array  # [B,R] float32: 0 for queries that do not count
    maximum: jax.Array  # [B,K,R]
    total: jax.Array  # [B,K,R]


def probabilities(q, q_pos, weight, maximum, total, k, k_pos, live) -> jax.Array:
    """Softmax probabilities of one head: q [...,R,H], k [...,S,H], k_pos, live [...,S] -> [...,R,S], weighted by row."""
    mask = live[..., None, :] & (k_pos[..., None, :] <= q_pos[..., :, None])
    z = logits(q, k, mask)
    p = jnp.where(mask, jnp.exp(z - maximum[..., None]), 0.0)
    return p * (weight / jnp.where(total > 0, total, 1.0))[..., None]


def table_softmax(q: jax.Array, q_pos: jax.Array, k: jax.Array, pos: jax.Array, segments: Segments) -> Partial:
    """The softmax (maximum, sum) of folded queries over table rows with pos <= q_pos; its value is left at 0.

    q [B,K,R,H] scaled, q_pos [B,R], k [B,E,H], pos [B,E]. For queries that may be older than some rows of the table.
    """
    rows = k.shape[1]
    size = table_block(rows, parallel=False)

    def head(x):
        b, q, q_pos, start, count = x

        def body(i, part):
            first, _, live = _block(start, count, i, size, rows)
            kb = lax.dynamic_slice(k, (b, first, 0), (1, size, k.shape[2]))[0]
            pb = lax.dynamic_slice(pos, (b, first), (1, size))[0]
            mask = live[None] & (pb[None] <= q_pos[:, None])
            z = logits(q, kb, mask)
            maximum = jnp.maximum(part.maximum, z.max(axis=-1))
            new = jnp.where(mask, jnp.exp(z - maximum[:, None]), 0.0).sum(axis=-1)
            return Partial(part.value, maximum, part.total * jnp.exp(part.maximum - maximum) + new)

        return lax.fori_loop(0, (count + size - 1) // size, body, empty_partial(q))

    return _one_by_one(head, q, _for_heads(q_pos, q.shape[1]), segments.start, segments.count)


def add_table_columns(acc: jax.Array, queries: Queries, k: jax.Array, pos: jax.Array, segments: Segments) -> jax.Array:
    """Adds to acc [B,E,J] the attention each row of these K heads receives from the queries, summed in J equal groups of R.

    J = 1 sums over all queries; J = G keeps query groups apart. One block of columns at a time: never [T,S] for all S.
    """
    rows, J = k.shape[1], acc.shape[2]
    size = table_block(rows, parallel=False)

    def head(acc, x):
        b, q, q_pos, weight, maximum, total, start, count = x

        def body(i, acc):
            first, _, live = _block(start, count, i, size, rows)
            kb = lax.dynamic_slice(k, (b, first, 0), (1, size, k.shape[2]))[0]
            pb = lax.dynamic_slice(pos, (b, first), (1, size))[0]
            p = probabilities(q, q_pos, weight, maximum, total, kb, pb, live)
            new = p.reshape(J, -1, size).sum(axis=1).T
            old = lax.dynamic_slice(acc, (b, first, 0), (1, size, J))
            return lax.dynamic_update_slice(acc, old + new[None], (b, first, 0))

        return lax.fori_loop(0, (count + size - 1) // size, body, acc), None

    B, K, _, _ = queries.q.shape
    rows_of = _for_heads(queries.pos, K), _for_heads(queries.weight, K)
    xs = _pairs(B, K, queries.q, *rows_of, queries.maximum, queries.total, segments.start, segments.count)
    return lax.scan(head, acc, xs)[0]


def tail_columns(queries: Queries, k: jax.Array, tail_pos: jax.Array, groups: int) -> jax.Array:
    """The same for the tail: k [B,K,C,H], tail_pos [B,C] -> [B,K,C,J] with J = groups."""
    q_pos, weight, pos = queries.pos[:, None], queries.weight[:, None], tail_pos[:, None]
    p = probabilities(queries.q, q_pos, weight, queries.maximum, queries.total, k, pos, pos >= 0)  # [B,K,R,C]
    B, K, _, C = p.shape
    return jnp.moveaxis(p.reshape(B, K, groups, -1, C).sum(axis=3), 2, 3)
