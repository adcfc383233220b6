"""Samplers: is the ranking of a score taken as it is, or drawn? A sampler makes the keys that are ranked.

    top         the score itself
    reservoir   weighted draws without replacement: whatever has a weight can survive, the heavier the likelier

Reservoir, Efraimidis & Spirakis 2006, as in Nexus Sampling, arXiv 2606.23961: the largest mean_i u_i^(1/w) survive, u
uniform on (0,1), i = 1..n draws. u^(1/w) underflows for nearly every w of a softmax, so keys are formed in logs: with
Exp(1) variates e = -log(u) and the log weight l = log(w)

    n = 1    log(u) / w = -exp(log e - l)                    ranked as     key = l - log e      (a Gumbel maximum)
    n > 1    s = logsumexp_i(log(u_i) / w), at most log n     ranked as     key = -log(log n - s)

both monotone in the mean above, and finite in float32 for any weight. The order of n = 1 does not change when all
weights are multiplied by one number; for n > 1 it does, and for n -> inf it becomes that of w.

What a score says about weights is stated by its scorer (`Scorer.scale`), `power` is the exponent of the weight:

    mass   w = score^power, a score of 0 or less having next to no weight (attention received, or any sum of shares)
    log    w = exp(power * score), the score being a log weight (log probabilities, log retention)
    rank   w = exp(power * (score - mean) / standard deviation), over the live entries of a pool: only differences
           within a pool mean something (positions, norms, differences of scores). Unchanged by a shift or a scale
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from nexus.scorers.base import Entries

SCALES = ("mass", "log", "rank")
LEAST = 1e-37  # weight of an entry without mass: last, and still drawn among its like


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Base: key(entries, score [B,P,n], rng [B]) -> [B,P,n] float32; the entries with the largest keys survive."""

    name: ClassVar[str]

    @property
    def in_step(self) -> bool:
        """Heads of a layer with equal entries and equal scores keep equal sets."""
        return True

    def key(self, entries: Entries, score: jax.Array, rng: jax.Array) -> jax.Array:
        """The numbers that the allocator ranks."""
        raise NotImplementedError


class Top(Sampler):
    """Deterministic: the ranking itself."""

    name = "top"

    def key(self, entries: Entries, score: jax.Array, rng: jax.Array) -> jax.Array:
        return score


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reservoir(Sampler):
    """Weighted draws. The random number of an entry is made from (sequence, eviction, layer, head, position) alone, so
    it depends on no slot and on no neighbour, and a run can be replayed."""

    name = "reservoir"
    draws: int = 1  # n
    power: float = 1.0  # of the weight: above 1 closer to the ranking, below 1 closer to chance
    block: int = 0  # entries with one pos // block share their draw; 0: as the scorer groups them
    share_heads: bool = False  # ... and those of all heads of a layer

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("block", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not 0 < self.power < math.inf:
            raise ValueError(f"power must be above 0 and finite, got {self.power!r}")

    @property
    def in_step(self) -> bool:
        return self.share_heads

    def key(self, entries: Entries, score: jax.Array, rng: jax.Array) -> jax.Array:
        cand = entries.cand
        stream = cand.owner // cand.layout.num_kv_heads if self.share_heads else cand.owner
        block = jnp.maximum(entries.pos, 0) // (self.block or entries.unit)
        log_e = log_exponential(rng, stream, block, self.draws)
        log_w = self.power * log_weight(entries, score)
        return jnp.where(entries.valid, reservoir_key(log_w, log_e), -jnp.inf)


def log_weight(entries: Entries, score: jax.Array) -> jax.Array:
    """[B,P,n] float32: the log weight that a score stands for, by the scale of its scorer; NaN reads as the smallest.

    Raises ValueError for a scale that is not known.
    """
    score = jnp.where(jnp.isnan(score), -jnp.inf, score.astype(jnp.float32))
    if entries.scale == "mass":
        return jnp.log(jnp.maximum(score, LEAST))
    if entries.scale == "log":
        return score
    if entries.scale != "rank":
        raise ValueError(f"scale {entries.scale!r} of a scorer; allowed: {', '.join(SCALES)}")
    live = entries.valid & jnp.isfinite(score)
    count = jnp.maximum(live.sum(axis=-1, keepdims=True), 1)
    off = score - jnp.where(live, score, 0.0).sum(axis=-1, keepdims=True) / count
    deviation = jnp.sqrt(jnp.where(live, off**2, 0.0).sum(axis=-1, keepdims=True) / count)
    return jnp.where(live, off / jnp.where(deviation > 0, deviation, 1.0), score)


def log_exponential(rng: jax.Array, stream: jax.Array, block: jax.Array, draws: int) -> jax.Array:
    """log(-log(u)) [B,P,n,draws] float32 of uniform u: the same number for the same (rng, stream, block).

    rng [B] typed keys; stream, block [B,P,n] int32. Of 32 bits each: with 23 the largest keys of a long cache tie.
    """

    def one(rng: jax.Array, stream: jax.Array, block: jax.Array) -> jax.Array:
        rng = jax.random.fold_in(jax.random.fold_in(rng, stream), block)
        return jax.random.bits(rng, (draws,), jnp.uint32)

    of_pool = jax.vmap(one, (None, 0, 0))
    bits = jax.vmap(jax.vmap(of_pool, (None, 0, 0)))(rng, stream, block)
    complement = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)  # 1 - u
    return jnp.log(-jnp.log1p(-complement))


def reservoir_key(log_w: jax.Array, log_e: jax.Array) -> jax.Array:
    """[...] float32, in the order of mean_i u_i^(1/w): log_w [...], log_e = log(-log(u_i)) [...,n]."""
    a = log_e - log_w[..., None]  # log of -log(u_i) / w
    least = a.min(axis=-1, keepdims=True)
    above = jnp.where(a == least, 0.0, jnp.exp(least) * jnp.expm1(a - least))
    rest = -jnp.log1p(jnp.mean(jnp.expm1(-above), axis=-1))  # log n - s, less the least
    return -jnp.logaddexp(least[..., 0], jnp.log(rest))


SAMPLERS: dict[str, type[Sampler]] = {cls.name: cls for cls in (Top, Reservoir)}
