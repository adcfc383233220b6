"""Random: a control. score ~ U(0,1), drawn in float32 and replayable from the buffer's key.

`sticky=False` draws anew at every eviction (a token must win every time); `sticky=True` draws once, when the entry is
written, so that an entry's luck does not compound.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers.base import Call, Entries, Scorer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomDraw(Scorer):
    """score ~ U(0,1)."""

    sticky: bool = False  # draw once for each entry, not anew at every eviction

    @property
    def aux(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("draw",) if self.sticky else ()

    def write(self, call: Call) -> dict[str, jax.Array]:
        if not self.sticky:
            return {}
        K = call.k.shape[1]
        layer = jax.vmap(jax.random.fold_in, (0, None))(call.rng, call.layer)
        by_pos = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(layer, jnp.maximum(call.pos, 0))
        draw = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (K,))))(by_pos)  # [B,T,K]
        return {"draw": jnp.moveaxis(draw, 1, 2)}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        if self.sticky:
            return entries.aux("draw")
        return jax.vmap(lambda key: jax.random.uniform(key, entries.pos.shape[1:]))(rng)
