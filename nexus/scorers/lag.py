"""LagKV: tokens that stand out from the tokens that follow, compared without any query.

Paper: Liang et al., "LagKV", arXiv 2504.04704. The first `skip` positions aside, positions form partitions of `lag`.
For partition p, channel by channel, with minimum and maximum over the entries of partition p + 1:

    x     = (t - min) / (max - min)     for keys and for values; 0 where max = min
    g     = softmax over the entries of p of the standard deviation of x over the channels (unbiased)
    score = place of (g of keys + g of values) / 2 among the entries of p, from the top: (lag - 1) / lag, ..., 0

A partition is scored once, at the first eviction at which its successor is complete, and keeps its score. Entries that
are not scored yet have 1: they stay until then where the budget allows, the newest first where it does not. So with
less than `skip` + 2 lag tokens, and with a budget of less than about three partitions, this is recency. lag = 0 means
min(128, M // 4), 128 being the paper's.

Same place in different partitions ties, and the newer entry wins (public code: the sort's choice); entries that were
evicted before their partition was complete are left out of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus.scorers.base import Call, Entries, Scorer

LARGEST, PARTS = 128, 4  # an automatic partition: at most 128 positions, and a quarter of the budget
UNSCORED = -1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LagRelative(Scorer):
    """score = place of an entry in its partition, judged by the partition that follows."""

    aux: ClassVar[tuple[str, ...]] = ("place",)

    lag: int = 0  # positions of a partition; 0: min(128, M // 4)
    skip: int = 4  # first positions that belong to none

    def __post_init__(self) -> None:
        for name in ("lag", "skip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")

    def size(self, budget: int) -> int:
        """Positions of a partition under a budget of M."""
        return self.lag or max(1, min(LARGEST, budget // PARTS))

    def write(self, call: Call) -> dict[str, jax.Array]:
        return {"place": jnp.full(call.k.shape[:3], UNSCORED, jnp.float32)}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        place = entries.aux("place")
        return jnp.where(place < 0, 1.0, place)

    def remember(self, entries: Entries, state: Any) -> dict[str, jax.Array]:
        lag = self.size(entries.cand.layout.budget)
        done = (entries.buffer.seen - self.skip) // lag - 1  # [B] partitions before this one have their successor
        place = jnp.where(entries.valid, entries.aux("place"), UNSCORED)
        partition = (entries.pos - self.skip) // lag
        waiting = entries.valid & (entries.pos >= self.skip) & (place < 0)
        waiting &= partition < done[:, None, None]
        from_, to = jnp.where(waiting, partition, done.max()).min(), done.max()

        def one(i: jax.Array, place: jax.Array) -> jax.Array:
            return _score_partition(entries, place, self.skip + i * lag, lag, done > i)

        return {"place": lax.fori_loop(jnp.maximum(from_, 0), to, one, place)}


def _score_partition(entries: Entries, place: jax.Array, begin: jax.Array, lag: int, ready: jax.Array) -> jax.Array:
    """Fills in the places of the unscored entries at positions begin .. begin + lag - 1 of the ready [B] sequences."""
    at, own = _span(entries, begin, lag)
    b, p = jnp.ogrid[: at.shape[0], : at.shape[1]]
    b, p = b[..., None, None], p[..., None, None]
    own = own & ready[:, None, None, None] & (place[b, p, at] < 0)
    ref_at, ref = _span(entries, begin + lag, lag)
    g = sum(_stand_out(_values(entries, at, name), own, _values(entries, ref_at, name), ref) for name in ("k", "v"))
    g = jnp.where(own, g, -jnp.inf)
    above = (g[..., None, :] > g[..., :, None]) | ((g[..., None, :] == g[..., :, None]) & _later(lag))
    new = (lag - 1 - (above & own[..., None, :]).sum(axis=-1)) / lag
    return place.at[b, p, jnp.where(own, at, place.shape[-1])].set(new, mode="drop")


def _later(lag: int) -> jax.Array:
    """[lag,lag] bool: entry j comes after entry i."""
    return jnp.arange(lag)[None] > jnp.arange(lag)[:, None]


def _span(entries: Entries, begin: jax.Array, lag: int) -> tuple[jax.Array, jax.Array]:
    """Candidates [B,P,Q,lag] of every head from position begin on, and which of them lie below begin + lag."""
    cand, n = entries.cand, entries.pos.shape[-1]
    older = entries.valid & (entries.pos < begin)
    through = jnp.pad(jnp.cumsum(older, axis=-1, dtype=jnp.int32), ((0, 0), (0, 0), (1, 0)))
    ends = jnp.take_along_axis(through, jnp.minimum(cand.first, n), axis=-1)
    at = (cand.first[..., :-1] + jnp.diff(ends, axis=-1))[..., None] + jnp.arange(lag)
    inside = at < cand.first[..., 1:, None]
    at = jnp.minimum(at, n - 1)
    b, p = jnp.ogrid[: at.shape[0], : at.shape[1]]
    pos = entries.pos[b[..., None, None], p[..., None, None], at]
    return at, inside & (pos >= begin) & (pos < begin + lag)


def _values(entries: Entries, at: jax.Array, name: str) -> jax.Array:
    """Keys ("k") or values ("v") of candidates at [B,P,Q,lag]: [B,P,Q,lag,H]."""
    cand, flat = entries.cand, at.reshape(*at.shape[:2], -1)
    names = ("pos", "owner", "row", "column", "in_table")
    chosen: dict[str, Any] = {field: jnp.take_along_axis(getattr(cand, field), flat, axis=-1) for field in names}
    x = getattr(dataclasses.replace(entries, cand=dataclasses.replace(cand, **chosen)), name)()
    return x.reshape(*at.shape, -1)


def _stand_out(x: jax.Array, own: jax.Array, ref: jax.Array, there: jax.Array) -> jax.Array:
    """g [...,lag] of x [...,lag,H] against ref [...,lag,H]; own, there [...,lag] say which entries exist."""
    low = jnp.where(there[..., None], ref, jnp.inf).min(axis=-2, keepdims=True)
    high = jnp.where(there[..., None], ref, -jnp.inf).max(axis=-2, keepdims=True)
    wide = high > low
    x = jnp.where(wide, (x - jnp.where(wide, low, 0.0)) / jnp.where(wide, high - low, 1.0), 0.0)
    spread = jnp.std(x, axis=-1, ddof=1)
    spread = jnp.where(own, spread, -jnp.inf)
    top = spread.max(axis=-1, keepdims=True)
    e = jnp.where(own, jnp.exp(spread - jnp.where(jnp.isfinite(top), top, 0.0)), 0.0)
    return e / jnp.maximum(e.sum(axis=-1, keepdims=True), 1e-30)
