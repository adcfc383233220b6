"""The score of knorm. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import numpy as np

from nexus.scorers import KeyNorm
from tests.scorers.views import K, by_head, filled


def test_small_keys_are_worth_most():
    """The sign is the paper's: the entry with the largest norm goes first."""
    entries, lists = filled(1)
    for (b, o), score in by_head(entries, KeyNorm().score(entries, {}, entries.buffer.rng)).items():
        expected = [-np.sqrt((e.k.astype(float) ** 2).sum()) for e in lists[b][o // K][o % K]]
        np.testing.assert_allclose(score, expected, rtol=1e-6)
