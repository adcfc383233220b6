"""Allocators: how one budget is divided. An allocator names its pools, and the same selection fills each of them.

    per_head    every head keeps its M best entries                     P = L * K
    per_layer   every layer keeps its K * M best, heads compete         P = L
    global      the whole model keeps its L * K * M best                P = 1
    everything  nothing is evicted: the full cache

The order in a pool is (protected, score, position), descending: a tie goes to the newer entry, and between entries of
one position to the lower (layer, head). Two strategies give identical sets: "top_k" is one masked `lax.top_k` over the
flat score column, the reference; "threshold" finds the last score kept by bisection over its 32 bits and never sorts.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus.shapes import EMPTY, Layout

STRATEGIES = ("threshold", "top_k")


def keep_best(score: jax.Array, pos: jax.Array, protect: jax.Array, cap: int, strategy: str = "threshold") -> jax.Array:
    """The mask of the `cap` best entries of each pool.

    Args:
        score: [...,n] float32, higher = keep. Infinities are read as the largest finite number, NaN as the smallest.
        pos: [...,n] int32, EMPTY where there is no entry.
        protect: [...,n] bool; protected entries are kept first (at most `cap` of them may exist).
        cap: entries to keep; fewer are kept only where fewer exist.
    """
    big = jnp.finfo(jnp.float32).max
    score = jnp.nan_to_num(score.astype(jnp.float32), nan=-big, posinf=big, neginf=-big) + 0.0  # -0.0 equals 0.0
    if cap >= score.shape[-1]:
        return pos != EMPTY
    select = {"threshold": _by_threshold, "top_k": _by_top_k}[strategy]
    return select(score, pos, protect & (pos != EMPTY), cap)


def _by_top_k(score: jax.Array, pos: jax.Array, protect: jax.Array, cap: int) -> jax.Array:
    """One masked top_k; entries are listed from new to old, since top_k prefers the lower index among equals."""
    masked = jnp.where(protect, jnp.inf, jnp.where(pos != EMPTY, score, -jnp.inf))
    newest_first = jnp.argsort(pos, axis=-1, descending=True, stable=True)
    _, best = lax.top_k(jnp.take_along_axis(masked, newest_first, axis=-1), cap)
    chosen = jnp.take_along_axis(newest_first, best, axis=-1)
    keep = jnp.put_along_axis(jnp.zeros(score.shape, bool), chosen, True, axis=-1, inplace=False)
    return keep & (pos != EMPTY)


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


def _sortable(x: jax.Array) -> jax.Array:
    """float32 -> uint32 in the same order."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))


def _nth_largest(key: jax.Array, among: jax.Array, nth: jax.Array, bits: int) -> jax.Array:
    """The nth largest uint32 key [...,1] among the marked ones, 0 where fewer exist; bit by bit from the top."""

    def step(i, found):
        trial = found | (jnp.uint32(1) << (bits - 1 - i).astype(jnp.uint32))
        enough = (among & (key >= trial)).sum(axis=-1, keepdims=True, dtype=jnp.int32) >= nth
        return jnp.where(enough, trial, found)

    return lax.fori_loop(0, bits, step, jnp.zeros((*key.shape[:-1], 1), jnp.uint32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocator:
    """Names the pools of a budget; `strategy` selects how the best entries of a pool are found."""

    name: ClassVar[str]
    strategy: str = "threshold"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"allocator strategy {self.strategy!r}; allowed: {', '.join(STRATEGIES)}")

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        """P, the number of pools."""
        raise NotImplementedError

    def select(self, score: jax.Array, pos: jax.Array, protect: jax.Array, layout: Layout) -> jax.Array:
        """The keep mask [B,P,n]."""
        return keep_best(score, pos, protect, layout.pool_rows, self.strategy)


class PerHead(Allocator):
    """Every head keeps its M best entries."""

    name = "per_head"

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return num_layers * num_kv_heads


class PerLayer(Allocator):
    """Every layer keeps its K * M best entries; its heads may hold unequal numbers."""

    name = "per_layer"

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return num_layers


class Global(Allocator):
    """The whole model keeps its L * K * M best entries; a head may end up with none."""

    name = "global"

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return 1


class Everything(PerHead):
    """The full cache: nothing is selected, the tail is moved behind the rows in place."""

    name = "everything"


ALLOCATORS: dict[str, type[Allocator]] = {cls.name: cls for cls in (PerHead, PerLayer, Global, Everything)}
