"""Entries of known worth in a cache that is cut again and again: who is still there after how many evictions?

An entry is born with a worth u = exp(spread * N(0,1)). At every eviction its weight is seen as u * exp(noise * N(0,1)),
anew, as attention varies from window to window; the `kept` largest weights stay (top), or as many are drawn with
these weights (reservoir). Entries are followed in thirds of their worth: light, middle, heavy.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from nexus.samplers import Reservoir, Sampler, reservoir_key

GROUPS = ("light", "middle", "heavy")
THIRDS = (-0.4307273, 0.4307273)  # of the normal distribution
LONG_AGO = -(10**6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is simulated."""

    kept: int
    arrivals: int  # between two evictions
    cohorts: int  # evictions whose arrivals are followed
    ages: int  # A, evictions they are followed over
    repeats: int  # N, independent caches
    spread: float
    noise: float


def survival(sampler: Sampler, setting: Setting, seed: int) -> dict[str, np.ndarray]:
    """group -> share of its entries that are alive after 1 ... A evictions, [N,A] float64."""
    c, rng = setting, np.random.default_rng(seed)
    shape = (c.repeats, c.kept + c.arrivals)
    worth, born = rng.normal(size=shape), np.full(shape, LONG_AGO)
    alive = np.zeros((c.repeats, len(GROUPS), c.ages))
    arrived = np.zeros((c.repeats, len(GROUPS)))
    for event in range(2 * c.ages + c.cohorts):  # the first `ages` evictions make the cache forget how it began
        worth[:, c.kept :], born[:, c.kept :] = rng.normal(size=(c.repeats, c.arrivals)), event
        followed = c.ages <= event < c.ages + c.cohorts
        if followed:
            arrived += np.stack([(_group(worth[:, c.kept :]) == g).sum(axis=1) for g in range(len(GROUPS))], axis=1)
        key = _key(sampler, c.spread * worth + c.noise * rng.normal(size=shape), rng)
        stay = np.argpartition(-key, c.kept - 1, axis=1)[:, : c.kept]
        worth[:, : c.kept], born[:, : c.kept] = (np.take_along_axis(x, stay, axis=1) for x in (worth, born))
        _count(alive, worth[:, : c.kept], event - born[:, : c.kept], born[:, : c.kept], c)
    return {name: alive[:, g] / np.maximum(arrived[:, g, None], 1) for g, name in enumerate(GROUPS)}


def _key(sampler: Sampler, log_weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the sampler ranks; weights sum to 1 in every cache."""
    if not isinstance(sampler, Reservoir):
        return log_weight
    log_weight = log_weight - np.log(np.exp(log_weight).sum(axis=1, keepdims=True))
    log_e = np.log(rng.exponential(size=(*log_weight.shape, sampler.draws)))
    return np.asarray(reservoir_key(jnp.asarray(sampler.power * log_weight), jnp.asarray(log_e)))


def _group(worth: np.ndarray) -> np.ndarray:
    return np.digitize(worth, THIRDS)


def _count(alive: np.ndarray, worth: np.ndarray, age: np.ndarray, born: np.ndarray, c: Setting) -> None:
    """Adds the followed entries among the survivors to alive [N,groups,A]."""
    row = np.broadcast_to(np.arange(len(worth))[:, None], worth.shape)
    ok = (age < c.ages) & (born >= c.ages) & (born < c.ages + c.cohorts)
    np.add.at(alive, (row[ok], _group(worth)[ok], age[ok]), 1)
