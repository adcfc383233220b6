"""The score of keydiff. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from nexus.scorers import KeyDifference
from tests.scorers.views import K, M, by_head, filled


def test_keys_unlike_the_mean_are_worth_most():
    """The anchor is the mean of unit keys of the head's live entries, not of the pool's, and not of raw keys."""
    entries, lists = filled(1)
    for (b, o), score in by_head(entries, KeyDifference().score(entries, {}, entries.buffer.rng)).items():
        k = np.array([e.k for e in lists[b][o // K][o % K]], float).reshape(len(score), -1)
        if len(k):
            unit = k / np.linalg.norm(k, axis=1, keepdims=True)
            anchor = unit.mean(axis=0)
            np.testing.assert_allclose(score, -(unit @ anchor) / np.linalg.norm(anchor), atol=1e-6)


def test_a_copy_of_the_anchor_goes_first():
    """It says nothing that the others do not say."""
    entries, _ = filled(4)
    k = (
        jnp.zeros_like(entries.buffer.k)
        .at[0, M : 2 * M]
        .set(jnp.eye(4, dtype=jnp.float32)[jnp.asarray([0, 1, 2, 3, 0, 1])])
    )
    k = k.at[0, M + 3].set(1.0)
    tail_k = jnp.zeros_like(entries.buffer.tail_k)
    entries = dataclasses.replace(entries, buffer=dataclasses.replace(entries.buffer, k=k, tail_k=tail_k))
    score = by_head(entries, KeyDifference().score(entries, {}, entries.buffer.rng))[0, 1][:6]
    assert score.argmin() == 3
