"""Recency: the score of StreamingLLM, the newest entries are worth most.

Paper: Xiao et al., arXiv 2309.17453.   score[b,e] = pos[b,e]; sinks are protected by the method.
Differs from the paper: true positions are kept unless the method says positions="cache".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers.base import Entries, Scorer


class Recency(Scorer):
    """score = position."""

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return entries.pos.astype(jnp.float32)
