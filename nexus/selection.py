"""Selection: which entries of a pool are kept, given how many.

    keep_best   the `cap` best entries of each pool
    keep_caps   the same with a cap of its own for every segment (head, or layer) of a pool

The order is (protected, score, position), descending: a tie goes to the newer entry, and between entries of one
position to the lower (layer, head). Two strategies give identical sets: "top_k" sorts and is the reference;
"threshold" finds the last score kept by bisection over its 32 bits and never sorts. With a cap per segment the
bisections of all segments run side by side: one pass over the entries counts for each of them, by differences of a
running sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from nexus.shapes import EMPTY

STRATEGIES = ("threshold", "top_k")
BLOCK = 64  # entries summed at once when marks are counted by segment

Count = Callable[[jax.Array], jax.Array]  # marks [...,n] -> how many, per pool [...,1] or per segment [...,Q]


def keep_best(score: jax.Array, pos: jax.Array, protect: jax.Array, cap: int, strategy: str = "threshold") -> jax.Array:
    """The mask of the `cap` best entries of each pool.

    Args:
        score: [...,n] float32, higher = keep. Infinities are read as the largest finite number, NaN as the smallest.
        pos: [...,n] int32, EMPTY where there is no entry.
        protect: [...,n] bool; protected entries are kept first (at most `cap` of them may exist).
        cap: entries to keep; fewer are kept only where fewer exist.
    """
    if cap >= score.shape[-1]:
        return pos != EMPTY
    select = {"threshold": _by_threshold, "top_k": _by_top_k}[strategy]
    return select(_finite(score), pos, protect & (pos != EMPTY), cap)


def keep_caps(
    score: jax.Array,
    pos: jax.Array,
    protect: jax.Array,
    segment: jax.Array,
    first: jax.Array,
    caps: jax.Array,
    strategy: str = "threshold",
) -> jax.Array:
    """The mask of the best `caps[q]` entries of every segment q of every pool.

    A segment with fewer entries than its cap keeps them all and leaves the rest of its cap unused. Protected entries
    are kept always, also beyond the cap.

    Args:
        score, pos, protect: [B,P,n] as in `keep_best`; the entries of a segment stand together, in order.
        segment: [B,P,n] int32 in 0..Q-1.
        first: [B,P,Q+1] int32, where the segments begin and the last one ends.
        caps: [B,P,Q] int32.
    """
    protect = protect & (pos != EMPTY)
    select = {"threshold": _caps_by_threshold, "top_k": _caps_by_sort}[strategy]
    return select(_finite(score), pos, protect, segment, first, jnp.broadcast_to(caps, first[..., 1:].shape))


def count_by_segment(mark: jax.Array, first: jax.Array) -> jax.Array:
    """How many of mark [B,P,n] are true in each segment: [B,P,Q] int32; first [B,P,Q+1].

    Differences of a running sum at the boundaries: sums of whole blocks, and the rest of one block per boundary.
    """
    B, P, n = mark.shape
    size = min(BLOCK, n)
    blocks = jnp.pad(mark, ((0, 0), (0, 0), (0, -n % size))).reshape(B, P, -1, size).astype(jnp.int32)
    through = jnp.cumsum(blocks.sum(axis=-1), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(through[..., :1]), through], axis=-1)
    first = jnp.minimum(first, n)
    whole, rest = first // size, first % size
    last = jnp.minimum(whole, blocks.shape[2] - 1)  # a boundary at the very end has no rest
    part = jnp.take_along_axis(blocks, last[..., None], axis=2) * (jnp.arange(size) < rest[..., None])
    return jnp.diff(jnp.take_along_axis(before, whole, axis=-1) + part.sum(axis=-1), axis=-1)


def _finite(score: jax.Array) -> jax.Array:
    big = jnp.finfo(jnp.float32).max
    return jnp.nan_to_num(score.astype(jnp.float32), nan=-big, posinf=big, neginf=-big) + 0.0  # -0.0 equals 0.0


# --- the reference: by sorting -----------------------------------------------------------------------------------


def _by_top_k(score: jax.Array, pos: jax.Array, protect: jax.Array, cap: int) -> jax.Array:
    """One masked top_k; entries are listed from new to old, since top_k prefers the lower index among equals."""
    masked = jnp.where(protect, jnp.inf, jnp.where(pos != EMPTY, score, -jnp.inf))
    newest_first = jnp.argsort(pos, axis=-1, descending=True, stable=True)
    _, best = lax.top_k(jnp.take_along_axis(masked, newest_first, axis=-1), cap)
    chosen = jnp.take_along_axis(newest_first, best, axis=-1)
    keep = jnp.put_along_axis(jnp.zeros(score.shape, bool), chosen, True, axis=-1, inplace=False)
    return keep & (pos != EMPTY)


def _caps_by_sort(
    score: jax.Array, pos: jax.Array, protect: jax.Array, segment: jax.Array, first: jax.Array, caps: jax.Array
) -> jax.Array:
    """One sort by (segment, protected, score, position); an entry's rank in its segment decides."""
    Q = caps.shape[-1]
    owner = jnp.where(pos != EMPTY, segment, Q)
    at = jnp.broadcast_to(jnp.arange(pos.shape[-1], dtype=jnp.int32), pos.shape)
    by_owner, _, _, _, order = lax.sort((owner, ~protect, ~_sortable(score), -pos, at), dimension=-1, num_keys=5)
    begins = jnp.concatenate([jnp.ones_like(by_owner[..., :1], bool), by_owner[..., 1:] != by_owner[..., :-1]], axis=-1)
    rank = at - lax.cummax(jnp.where(begins, at, 0), axis=at.ndim - 1)
    cap = jnp.take_along_axis(jnp.concatenate([caps, jnp.zeros_like(caps[..., :1])], axis=-1), by_owner, axis=-1)
    keep = jnp.put_along_axis(jnp.zeros(pos.shape, bool), order, rank < cap, axis=-1, inplace=False)
    return (keep & (pos != EMPTY)) | protect


# --- the fast one: by bisection ----------------------------------------------------------------------------------


def _by_threshold(score: jax.Array, pos: jax.Array, protect: jax.Array, cap: int) -> jax.Array:
    """Bisection for the smallest score that is kept, then, only where it is tied, for the oldest tied position."""
    free = (pos != EMPTY) & ~protect
    room = cap - protect.sum(axis=-1, dtype=jnp.int32)[..., None]
    key = _sortable(score)
    last = _nth_largest(key, free, room, bits=32)
    above = free & (key > last)
    ties = free & (key == last)
    room = room - above.sum(axis=-1, dtype=jnp.int32)[..., None]

    def newest(_):
        upos = jnp.maximum(pos, 0).astype(jnp.uint32)
        oldest = _nth_largest(upos, ties, room, bits=31)
        newer, same = ties & (upos > oldest), ties & (upos == oldest)
        left = room - newer.sum(axis=-1, dtype=jnp.int32)[..., None]
        return newer | (same & (jnp.cumsum(same, axis=-1, dtype=jnp.int32) <= left))

    all_fit = (ties.sum(axis=-1, dtype=jnp.int32)[..., None] <= room).all()
    return protect | above | lax.cond(all_fit, lambda _: ties, newest, None)


def _caps_by_threshold(
    score: jax.Array, pos: jax.Array, protect: jax.Array, segment: jax.Array, first: jax.Array, caps: jax.Array
) -> jax.Array:
    """The same with a bisection per segment."""
    count = functools.partial(count_by_segment, first=first)
    of_entry = functools.partial(jnp.take_along_axis, indices=segment, axis=-1)  # [B,P,Q] -> [B,P,n]
    free = (pos != EMPTY) & ~protect
    room = jnp.maximum(caps - count(protect), 0)
    key = _sortable(score)
    last = of_entry(_nth_by_segment(key, free, room, 32, count, of_entry))
    above = free & (key > last)
    ties = free & (key == last)
    room = room - count(above)

    def newest(_):
        upos = jnp.maximum(pos, 0).astype(jnp.uint32)
        oldest = of_entry(_nth_by_segment(upos, ties, room, 31, count, of_entry))
        newer, same = ties & (upos > oldest), ties & (upos == oldest)
        through = jnp.cumsum(same, axis=-1, dtype=jnp.int32)
        earlier = jnp.cumsum(count(same), axis=-1) - count(same)  # in the segments before
        return newer | (same & (through - of_entry(earlier) <= of_entry(room - count(newer))))

    return protect | above | lax.cond((count(ties) <= room).all(), lambda _: ties, newest, None)


def _sortable(x: jax.Array) -> jax.Array:
    """float32 -> uint32 in the same order."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))


def nth_best(score: jax.Array, among: jax.Array, nth: jax.Array) -> jax.Array:
    """The nth largest score of each pool [...], the lowest number where fewer are; score, among [...,n], nth int32."""
    bits = _nth_largest(_sortable(_finite(score)), among, nth, bits=32)[..., 0]
    found = lax.bitcast_convert_type(jnp.where(bits >> 31 == 1, bits ^ jnp.uint32(0x80000000), ~bits), jnp.float32)
    return _finite(found)


def _nth_largest(key: jax.Array, among: jax.Array, nth: jax.Array, bits: int) -> jax.Array:
    """The nth largest uint32 key [...,1] among the marked ones, 0 where fewer exist; bit by bit from the top."""

    def step(i, found):
        trial = found | (jnp.uint32(1) << (bits - 1 - i).astype(jnp.uint32))
        enough = (among & (key >= trial)).sum(axis=-1, keepdims=True, dtype=jnp.int32) >= nth
        return jnp.where(enough, trial, found)

    return lax.fori_loop(0, bits, step, jnp.zeros((*key.shape[:-1], 1), jnp.uint32))


def _nth_by_segment(
    key: jax.Array, among: jax.Array, nth: jax.Array, bits: int, count: Count, of_entry: Count
) -> jax.Array:
    """The nth [B,P,Q] largest uint32 key of every segment, 0 where fewer exist; all ones where nth is 0."""

    def step(i, found):
        trial = found | (jnp.uint32(1) << (bits - 1 - i).astype(jnp.uint32))
        return jnp.where(count(among & (key >= of_entry(trial))) >= nth, trial, found)

    return lax.fori_loop(0, bits, step, jnp.zeros(nth.shape, jnp.uint32))
