"""Redundancy of keys: tiles against the dense rule."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus.scorers import Entries, redundancy
from nexus.shapes import Layout
from tests import oracle_memory, tiny
from tests.scorers.views import K, L, by_head, filled


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_tiles_equal_the_dense_rule(pools):
    """Conformance 4: unequal and empty heads, NaN where nothing is."""
    entries, lists = filled(pools)
    for (b, o), got in by_head(entries, redundancy.of_entries(entries)).items():
        k = np.array([e.k for e in lists[b][o // K][o % K]], float)
        if len(k):
            np.testing.assert_allclose(got, oracle_memory.redundancy(k), atol=1e-6)


@pytest.mark.parametrize("pools", [1, 2])
def test_several_tiles(pools, monkeypatch):
    """The latest similar entry may stand in another tile than the one it is similar to, and before or after it."""
    monkeypatch.setattr(redundancy, "TILE", 8)
    counts = np.array([[[40, 3]]])
    layout = Layout(num_layers=1, num_kv_heads=2, num_groups=1, head_dim=3, budget=40, tail=7, pools=pools)
    buf, lists = tiny.filled(layout, counts, [5], dead=float("nan"))
    entries = Entries(buffer=buf, cand=kv.candidates(buf))
    got = redundancy.of_entries(entries)
    owner, valid = np.asarray(entries.cand.owner), np.asarray(entries.valid)
    for o in range(2):
        k = np.array([e.k for e in lists[0][0][o]], float)
        mine = np.concatenate([np.asarray(got)[0, p][valid[0, p] & (owner[0, p] == o)] for p in range(pools)])
        np.testing.assert_allclose(mine, oracle_memory.redundancy(k), atol=1e-6)
    assert not np.asarray(got)[~valid].any()


def keys(*rows: list[float]) -> Entries:
    """One head whose entries have these keys."""
    n = len(rows)
    layout = Layout(num_layers=1, num_kv_heads=1, num_groups=1, head_dim=len(rows[0]), budget=n, tail=1, pools=1)
    buf = kv.init(layout, 1)
    buf = dataclasses.replace(
        buf, k=jnp.asarray([rows], jnp.float32), pos=jnp.arange(n)[None], count=jnp.full((1, 1, 1), n)
    )
    return Entries(buffer=buf, cand=kv.candidates(buf))


def test_of_equal_keys_the_newest_is_least_redundant():
    """Conformance 5. The rule spares the latest match of every other key: of three equal keys the newest is spared
    twice, the one before once (its own latest match is not itself), the oldest never. Two alone spare each other."""
    r = np.asarray(redundancy.of_entries(keys([1, 0], [0, 1], [1, 0], [1, 0])))[0, 0, :4]
    np.testing.assert_allclose(r * 4, [2, 0, 1, 0], atol=1e-6)
    r = np.asarray(redundancy.of_entries(keys([1, 0], [0, 1], [1, 0])))[0, 0, :3]
    np.testing.assert_allclose(r, 0, atol=1e-6)


def test_a_key_without_a_match_takes_nothing_from_the_first():
    """The official code zeroes the similarity to entry 0 for every key without a match."""
    r = np.asarray(redundancy.of_entries(keys([1, 0], [0.4, 0.9165151], [-1, 0])))[0, 0, :3]
    np.testing.assert_allclose(r * 3, [0.4 - 1, 0.4 - 0.4, -1 - 0.4], atol=1e-6)


def test_a_key_of_zeros_is_similar_to_nothing():
    """Division by its norm."""
    r = np.asarray(redundancy.of_entries(keys([0, 0], [1, 0], [1, 1])))[0, 0, :3]
    assert np.isfinite(r).all() and r[0] == 0
