"""KeyDiff: entries whose keys point away from the average key are worth most.

Paper: Park et al., "KeyDiff", arXiv 2504.15364.
    anchor = mean over live entries of the head of k / norm2(k);   score = -cos(k, anchor)
As in the paper the anchor is taken over what is kept plus the new chunk, and keys are post-RoPE.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers.base import Entries, Scorer


class KeyDifference(Scorer):
    """score = -cos(k, mean unit key of the head)."""

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        k = entries.k()
        unit = k / jnp.maximum(jnp.linalg.norm(k, axis=-1, keepdims=True), 1e-12)
        anchor = entries.head_mean(unit)
        anchor = anchor / jnp.maximum(jnp.linalg.norm(anchor, axis=-1, keepdims=True), 1e-8)
        return -(unit * anchor).sum(axis=-1)
