"""Samplers: what is ranked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nexus.samplers import SAMPLERS, Top


def test_top_ranks_the_score_itself():
    """A sampler that changes scores would change every method of the table."""
    score = jnp.asarray([[[3.0, -1.0, jnp.inf]]])
    np.testing.assert_array_equal(Top().key(None, score, jax.random.split(jax.random.key(0), 1)), score)
    assert SAMPLERS["top"] is Top
