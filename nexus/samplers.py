"""Samplers: is the ranking of a score taken as it is, or drawn? A sampler makes the keys that are ranked."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax

from nexus.scorers.base import Entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Base: key(entries, score [B,P,n], rng [B]) -> [B,P,n] float32; the entries with the largest keys survive."""

    name: ClassVar[str]

    def key(self, entries: Entries, score: jax.Array, rng: jax.Array) -> jax.Array:
        """The numbers that the allocator ranks."""
        raise NotImplementedError


class Top(Sampler):
    """Deterministic: the ranking itself."""

    name = "top"

    def key(self, entries: Entries, score: jax.Array, rng: jax.Array) -> jax.Array:
        return score


SAMPLERS: dict[str, type[Sampler]] = {cls.name: cls for cls in (Top,)}
