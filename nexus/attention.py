"""Attention over a table of entries, head by head, in blocks, with a running softmax.

A partial softmax is the triple (value, maximum, sum) of Milakov & Gimelshein, arXiv 1805.02867; two of them over
disjoint entries merge exactly. `table_attention` walks the segment of each (sequence, kv head) in blocks of rows, as
far as the segment is long: rows past its end are neither read as values nor counted. A segment of 3 rows costs one
block; an empty one costs nothing and returns a partial of weight zero.

Queries are folded, R = G * T rows per kv head in the order (G, T): one plain matrix product per block.
Dead rows may hold anything, NaN included: logits are masked by `where` and values are zeroed before the product.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MASKED = -1e30  # finite: (-inf) - (-inf) would be NaN in a row without any live entry

Rotate = Callable[[jax.Array, jax.Array], jax.Array]  # keys [..., S, H], index in the segment [..., S] -> keys
Reduce = Callable[[jax.Array], jax.Array]  # weighted probabilities [..., R, S] -> [..., J, S]


class Partial(NamedTuple):
    """An attention result that is not yet normalised; float32."""

    value: jax.Array  # [..., R, H]  sum of exp(logit - maximum) * v
    maximum: jax.Array  # [..., R]
    total: jax.Array  # [..., R]     sum of exp(logit - maximum)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["start", "count"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Segments:
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


def logits(q: jax.Array, k: jax.Array, mask: jax.Array | None) -> jax.Array:
    """q [..., R, H] (already scaled), k [..., S, H], mask broadcastable to [..., R, S] -> float32 [..., R, S]."""
    z = jnp.einsum("...RH,...SH->...RS", q, k, preferred_element_type=jnp.float32)
    return z if mask is None else jnp.where(mask, z, MASKED)


def update(
    part: Partial, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, live: jax.Array | None
) -> Partial:
    """Adds S entries to a partial. mask as in `logits`; live [..., S] says which values may be read at all.

    Without mask and live every entry is visible: the two passes over the logits that masking costs are not made.
    """
    z = logits(q, k, mask)
    maximum = jnp.maximum(part.maximum, z.max(axis=-1))
    p = jnp.exp(z - maximum[..., None])
    if mask is not None:
        p = jnp.where(mask, p, 0.0)
    if live is not None:
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


ONE_BY_ONE = 64  # rows read at a time when heads are walked one after another; measured on CPU
FEW = 2048  # query rows of all heads together
SIDE_BY_SIDE = (1024, 512)  # rows read at a time when equal heads are walked together: for up to FEW, and for more


def _block(start: jax.Array, count: jax.Array, i: jax.Array, size: int, rows: int):
    """First row of block i, clamped into the table, the block's index in the segment [size] and its live mask.

    A clamped block begins before the rows it stands for; those (index < i * size) are masked, not counted twice.
    """
    first = jnp.minimum(start + i * size, rows - size)
    index = first - start + jnp.arange(size)
    return first, index, (index >= i * size) & (index < count)


def table_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, *, stride: int | None, rotate: Rotate | None = None
) -> Partial:
    """Partial attention of folded queries over each head's segment of the table.

    Args:
        q: [B,K,R,H], scaled. Every live row is visible to every query: table rows are older than this call.
        k, v: [B,E,H].
        stride: static; M when the K heads' segments lie M rows apart and are equally long in a sequence: then they are
            walked side by side. None: heads are walked one after another, each as far as its own segment goes.
        rotate: rotates the keys of a block by their index in the segment (cache positions), or None.
    """
    if stride is None:
        return _walk_in_turn(q, k, v, segments, rotate)
    return _walk_together(q, k, v, segments, stride, rotate)


def _walk(part: Partial, q: jax.Array, read, full: jax.Array, blocks: jax.Array, rotate: Rotate | None) -> Partial:
    """Adds blocks 0..blocks-1 to a partial; those below `full` are live in every row and need no mask."""

    def add(i, part, masked):
        k, v, index, live = read(i)
        k = k if rotate is None else rotate(k, index)
        return update(part, q, k, v, live[..., None, :] if masked else None, live if masked else None)

    part = lax.fori_loop(0, full, lambda i, part: add(i, part, False), part)
    return lax.fori_loop(full, blocks, lambda i, part: add(i, part, True), part)


def _walk_in_turn(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, rotate: Rotate | None) -> Partial:
    """One (sequence, head) after another, each with a dynamic number of blocks."""
    rows = k.shape[1]
    size = min(ONE_BY_ONE, rows)

    def head(x):
        b, q, start, count = x

        def read(i):
            first, index, live = _block(start, count, i, size, rows)
            return (*(lax.dynamic_slice(a, (b, first, 0), (1, size, a.shape[2]))[0] for a in (k, v)), index, live)

        return _walk(empty_partial(q), q, read, count // size, (count + size - 1) // size, rotate)

    return _one_by_one(head, q, segments.start, segments.count)


def _walk_together(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, stride: int, rotate: Rotate | None
) -> Partial:
    """All sequences and heads side by side, as far as the longest sequence goes."""
    B, K, R, H = q.shape
    size = min(SIDE_BY_SIDE[B * K * R > FEW], stride)
    owner = segments.start[0, 0] // stride
    tables = [x.reshape(B, -1, stride, H) for x in (k, v)]

    def read(i):
        low = jnp.minimum(i * size, stride - size)
        index = low + jnp.arange(size)
        live = (index >= i * size) & (index < segments.count[..., None])
        return (*(lax.dynamic_slice(x, (0, owner, low, 0), (B, K, size, H)) for x in tables), index, live)

    blocks = (segments.count.max() + size - 1) // size
    return _walk(empty_partial(q), q, read, segments.count.min() // size, blocks, rotate)


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


DIAGONAL = 128  # queries that share one masked block of their own chunk


def chunk_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, live: jax.Array, groups: int) -> Partial:
    """`tail_attention` where the tail is this call's T tokens (C = T): blocks above the diagonal are left out.

    Below the diagonal everything is visible, so only diagonal blocks pay for a mask. Padding stands behind the real
    tokens and is masked for them there; what padded queries see is finite and never used.
    """
    B, K, R, H = q.shape
    T = R // groups
    if T <= DIAGONAL or T % DIAGONAL:
        return tail_attention(q, k, v, mask, live)
    q, mask = q.reshape(B, K, groups, T, H), mask.reshape(B, 1, groups, T, T)
    parts = []
    for low in range(0, T, DIAGONAL):
        block = slice(low, low + DIAGONAL)
        rows = q[:, :, :, block].reshape(B, K, -1, H)
        own = mask[:, :, :, block, block].reshape(B, 1, -1, DIAGONAL)
        part = empty_partial(rows)
        if low:
            part = update(part, rows, k[:, :, :low], v[:, :, :low], None, None)
        part = update(part, rows, k[:, :, block], v[:, :, block], own, live[:, None, block])
        parts.append(jax.tree.map(lambda x: x.reshape(B, K, groups, DIAGONAL, *x.shape[3:]), part))
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=3), *parts)
    return jax.tree.map(lambda x: x.reshape(B, K, R, *x.shape[4:]), joined)


class Queries(NamedTuple):
    """Queries whose attention is wanted entry by entry, with the softmax they have over everything they see."""

    q: jax.Array  # [B,K,R,H] folded, scaled
    pos: jax.Array  # [B,R] int32
    weight: jax.Array  # [B,R] float32: 0 for queries that do not count
    maximum: jax.Array  # [B,K,R]
    total: jax.Array  # [B,K,R]


def probabilities(q, q_pos, weight, maximum, total, k, k_pos, live) -> jax.Array:
    """One head's softmax, weighted by row: q [...,R,H], k [...,S,H], k_pos, live [...,S] -> [...,R,S]."""
    mask = live[..., None, :] & (k_pos[..., None, :] <= q_pos[..., :, None])
    z = logits(q, k, mask)
    p = jnp.where(mask, jnp.exp(z - maximum[..., None]), 0.0)
    return p * (weight / jnp.where(total > 0, total, 1.0))[..., None]


def table_softmax(q: jax.Array, q_pos: jax.Array, k: jax.Array, pos: jax.Array, segments: Segments) -> Partial:
    """The softmax (maximum, sum) of folded queries over table rows with pos <= q_pos; its value is left at 0.

    q [B,K,R,H] scaled, q_pos [B,R], k [B,E,H], pos [B,E]. For queries that may be older than some rows of the table.
    """
    rows = k.shape[1]
    size = min(ONE_BY_ONE, rows)

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


def add_table_columns(
    acc: jax.Array,
    queries: Queries,
    k: jax.Array,
    pos: jax.Array,
    segments: Segments,
    reduce: Reduce | None = None,
) -> jax.Array:
    """Adds to acc [B,E,J] the attention each row of these K heads receives, summed in J equal groups of the R queries.

    J = 1 sums over all queries; J = G keeps query groups apart; `reduce` takes the place of these sums. One block of
    columns at a time: never [T,S] for all S.
    """
    rows, J = k.shape[1], acc.shape[2]
    size = min(ONE_BY_ONE, rows)

    def head(acc, x):
        b, q, q_pos, weight, maximum, total, start, count = x

        def body(i, acc):
            first, _, live = _block(start, count, i, size, rows)
            kb = lax.dynamic_slice(k, (b, first, 0), (1, size, k.shape[2]))[0]
            pb = lax.dynamic_slice(pos, (b, first), (1, size))[0]
            p = probabilities(q, q_pos, weight, maximum, total, kb, pb, live)
            new = (p.reshape(J, -1, size).sum(axis=1) if reduce is None else reduce(p)).T
            old = lax.dynamic_slice(acc, (b, first, 0), (1, size, J))
            return lax.dynamic_update_slice(acc, old + new[None], (b, first, 0))

        return lax.fori_loop(0, (count + size - 1) // size, body, acc), None

    B, K, _, _ = queries.q.shape
    rows_of = _for_heads(queries.pos, K), _for_heads(queries.weight, K)
    xs = _pairs(B, K, queries.q, *rows_of, queries.maximum, queries.total, segments.start, segments.count)
    return lax.scan(head, acc, xs)[0]


def tail_columns(
    queries: Queries, k: jax.Array, tail_pos: jax.Array, groups: int, reduce: Reduce | None = None
) -> jax.Array:
    """The same for the tail: k [B,K,C,H], tail_pos [B,C] -> [B,K,C,J] with J = groups, or as `reduce` gives."""
    q_pos, weight, pos = queries.pos[:, None], queries.weight[:, None], tail_pos[:, None]
    p = probabilities(queries.q, q_pos, weight, queries.maximum, queries.total, k, pos, pos >= 0)  # [B,K,R,C]
    B, K, _, C = p.shape
    return jnp.moveaxis(p.reshape(B, K, groups, -1, C).sum(axis=3) if reduce is None else reduce(p), 2, 3)
