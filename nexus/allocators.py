"""Allocators: how one budget is divided. An allocator names its pools and selects what each of them keeps.

    per_head     every head keeps its M best entries                                  P = L * K
    per_layer    every layer keeps its K * M best, heads compete                      P = L
    global       the whole model keeps its L * K * M best                             P = 1
    everything   nothing is evicted: the full cache                                   P = L * K
    pyramid      layers hold fewer and fewer, heads of a layer the same               P = 1
    adaptive     heads of a layer hold what a flat ranking gives them, smoothed       P = L
    calibrated   layers hold what a calibration gives them, heads of a layer the same P = 1
    norm_loss    heads hold what a loss of attention norm allows, at most M           P = L * K

All but the last fill the budget exactly: where a segment has fewer entries than its share, the best of the rest take
its place. `selection.py` holds the order of entries and the two strategies, `shares.py` the numbers.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import shares
from nexus.scorers.base import Entries
from nexus.selection import STRATEGIES, count_by_segment, keep_best, keep_caps
from nexus.shapes import EMPTY

SAFEGUARDS = ("blend", "floor")
MOST_PARTS = 100  # alpha is a multiple of 1 / MOST_PARTS: shares are exact in int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocator:
    """Names the pools of a budget; `strategy` selects how the best entries of a pool are found."""

    name: ClassVar[str]
    strategy: str = "threshold"  # how the best are found: threshold | top_k (sorts); the same sets

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"allocator strategy {self.strategy!r}; allowed: {', '.join(STRATEGIES)}")

    def check(self, budget: int, protected: int) -> None:
        """Raises ValueError when the fields do not fit the budget M or the number of protected entries per head."""

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        """P, the number of pools."""
        raise NotImplementedError

    def select(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        """The keep mask [B,P,n] of the entries with the largest keys [B,P,n]; protect [B,P,n] is kept always."""
        return keep_best(key, entries.pos, protect, entries.cand.layout.pool_rows, self.strategy)


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


# --- a share for every head --------------------------------------------------------------------------------------


class Shares(Allocator):
    """Base of allocators that give every head a number of its own; the numbers of a pool add up to its rows."""

    def caps(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        """[B,P,Q] int32, the entries each head of a pool may keep, protected ones included."""
        raise NotImplementedError

    def select(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        caps = self.caps(entries, key, protect)
        return self.filled(entries, key, self.capped(entries, key, protect, caps))

    def capped(self, entries: Entries, key: jax.Array, protect: jax.Array, caps: jax.Array) -> jax.Array:
        """The best caps[q] entries of every head."""
        cand = entries.cand
        head = cand.owner % cand.layout.pool_heads
        return keep_caps(key, cand.pos, protect, head, cand.first, caps, self.strategy)

    def filled(self, entries: Entries, key: jax.Array, keep: jax.Array) -> jax.Array:
        """Where heads had fewer entries than their share, the best of the rest of the pool fill it."""
        rows = entries.cand.layout.pool_rows
        short = keep.sum(axis=-1) < jnp.minimum(entries.valid.sum(axis=-1), rows)
        more = lambda keep: keep_best(key, entries.pos, keep, rows, self.strategy)  # noqa: E731
        return lax.cond(short.any(), more, lambda keep: keep, keep)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pyramid(Shares):
    """PyramidKV: a line over layers, lower layers hold more; see `shares.pyramid`.

    Every protected entry counts as the paper's window, and P is the number of tokens seen.
    """

    name = "pyramid"
    beta: int = 20  # larger: steeper
    spread: str = "free"  # what is not protected | all: the whole budget (kvpress)

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("beta", self.beta, 1)
        if self.spread not in shares.SPREADS:
            raise ValueError(f"spread {self.spread!r}; allowed: {', '.join(shares.SPREADS)}")

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return 1

    def caps(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        layout = entries.cand.layout
        reserved = _protected(entries, protect).max(axis=(1, 2))
        by_layer = shares.pyramid(
            layout.budget, layout.num_layers, self.beta, reserved, entries.buffer.seen, self.spread
        )
        return jnp.repeat(by_layer, layout.num_kv_heads, axis=-1)[:, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptive(Shares):
    """Ada-KV: heads of a layer share by a flat ranking, with a safeguard.

        f_h = free entries of head h among the K * M best of the layer      c = mean of f
        head h keeps its best  (1 - alpha) f_h + alpha c  free entries, and the protected ones

    safeguard="floor" is the variant of kvpress: the best floor(alpha M) of each head, protected ones among them, are
    safe; then the K * M best of the layer.
    """

    name = "adaptive"
    alpha: float = 0.2  # share that is free to go to other heads
    safeguard: str = "blend"  # blend | floor, see above

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1 or self._alpha.denominator > MOST_PARTS:
            raise ValueError(f"alpha must be a multiple of 1/{MOST_PARTS} between 0 and 1, got {self.alpha!r}")
        if self.safeguard not in SAFEGUARDS:
            raise ValueError(f"safeguard {self.safeguard!r}; allowed: {', '.join(SAFEGUARDS)}")

    @property
    def _alpha(self) -> Fraction:
        return Fraction(str(self.alpha))

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return num_layers

    def caps(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        layout, alpha = entries.cand.layout, self._alpha
        held = _protected(entries, protect)
        if self.safeguard == "floor":
            safe = max(layout.budget * alpha.numerator // alpha.denominator, 1 if alpha else 0)
            protect = self.capped(entries, key, protect, jnp.maximum(held, safe))
        flat = keep_best(key, entries.pos, protect, layout.pool_rows, self.strategy)
        free = count_by_segment(flat, entries.cand.first) - held
        if self.safeguard == "floor":
            return held + free
        return held + shares.adaptive(layout.budget, free, alpha.numerator, alpha.denominator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated(Shares):
    """CompressKV: layers share by weights measured in advance; see `shares.calibrated`.

    Needs a scorer that brings `layer_weight` [L]. Layers with fewer entries than M_l leave the rest to others (ours).
    """

    name = "calibrated"
    least: int = 32  # entries of every layer
    most: int = 3  # times M

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("least", self.least, 1)
        _at_least("most", self.most, 1)

    def check(self, budget: int, protected: int) -> None:
        if not protected <= self.least <= budget:
            raise ValueError(
                f"least={self.least} entries of every layer must lie between the {protected} protected entries and "
                f"the budget of {budget} slots per head"
            )

    def pools(self, num_layers: int, num_kv_heads: int) -> int:
        return 1

    def caps(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        layout = entries.cand.layout
        if "layer_weight" not in (entries.weights or {}):
            raise ValueError("allocator 'calibrated' needs a scorer that brings layer weights: method compresskv")
        by_layer = shares.calibrated(layout.budget, entries.weights["layer_weight"], self.least, self.most)
        return jnp.broadcast_to(jnp.repeat(by_layer, layout.num_kv_heads), (key.shape[0], 1, layout.owners))


# --- as many as it takes -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormLoss(PerHead):
    """DBudgetKV / ReFreeKV: entries go, lowest key first, until the last query's attention has lost a share tau of its
    norm; see `shares.norm_loss`. The same number for all heads of a layer; protected entries have no part in it.

    Fixed shapes need a ceiling: a head holds at most M. Where the rule keeps more, the next in the order go too: a head
    that holds M after a cut has met the ceiling. Needs a scorer whose state is a ring of queries (scorers/ring.py) and
    whose order is one for all heads of a layer.
    """

    name = "norm_loss"
    tau: float = 0.01  # share of the norm that may be lost
    full_layers: int = 2  # the first layers evict nothing below the ceiling

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tau <= 1:
            raise ValueError(f"tau must lie between 0 and 1, got {self.tau!r}")
        _at_least("full_layers", self.full_layers, 0)

    def select(self, entries: Entries, key: jax.Array, protect: jax.Array) -> jax.Array:
        layout, (B, _, n) = entries.cand.layout, key.shape
        by_layer = (B, layout.num_layers, layout.num_kv_heads)
        free = entries.valid & ~protect
        at = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), key.shape)
        *_, order = lax.sort((~free, key, entries.pos, at), dimension=-1, num_keys=3)  # first to go, first in order
        rank = jnp.put_along_axis(jnp.zeros_like(at), order, at, axis=-1, inplace=False)
        square = jnp.where(free[..., None], self._last_attention(entries), 0.0) ** 2  # [B,P,n,G]
        square = jnp.take_along_axis(square, order[..., None], axis=2).reshape(*by_layer, n, -1)
        going = shares.norm_loss(square, free.sum(axis=-1).reshape(by_layer), self.tau)
        going = jnp.where(jnp.arange(layout.num_layers) < self.full_layers, 0, going)  # [B,L]
        going = jnp.where(_has_news(entries)[:, None], going, 0)
        going = jnp.repeat(going, layout.num_kv_heads, axis=-1)
        over = entries.valid.sum(axis=-1, dtype=jnp.int32) - layout.pool_rows
        return entries.valid & ~(free & (rank < jnp.maximum(going, over)[..., None]))

    @staticmethod
    def _last_attention(entries: Entries) -> jax.Array:
        state = entries.buffer.state
        if not isinstance(state, dict) or not {"q", "pos"} <= state.keys():
            raise ValueError("allocator 'norm_loss' needs a scorer that remembers the last query: method dbudgetkv")
        pos = state["pos"][..., -1:]
        return entries.attention_of(state["q"][..., -1:, :], pos, (pos != EMPTY).astype(jnp.float32))


def _has_news(entries: Entries) -> jax.Array:
    """[B] bool: tokens have come since the last cut. A sequence that waits for longer ones is not cut again and again;
    the one cut of a full prefill, whose tail is already in the table, goes into another layout."""
    if entries.cand.layout != entries.buffer.layout:
        return jnp.ones(entries.buffer.seen.shape, bool)
    return (entries.buffer.tail_pos != EMPTY).any(axis=1)


def _protected(entries: Entries, protect: jax.Array) -> jax.Array:
    """[B,P,Q] protected entries of each head."""
    return count_by_segment(protect & entries.valid, entries.cand.first)


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


_CLASSES = (PerHead, PerLayer, Global, Everything, Pyramid, Adaptive, Calibrated, NormLoss)
ALLOCATORS: dict[str, type[Allocator]] = {cls.name: cls for cls in _CLASSES}
