"""Key norm: entries with small keys are worth most.

Paper: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", arXiv 2406.11430.
score = -norm2(k), in float32 (bfloat16 norms tie for most entries). The same before and after RoPE.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers.base import Entries, Scorer


class KeyNorm(Scorer):
    """score = -norm2(k)."""

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return -jnp.linalg.norm(entries.k(), axis=-1)
