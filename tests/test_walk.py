"""Rules over entries, head by head: every entry meets its own head's arrays and nobody else's."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import walk
from nexus.attention import Segments
from tests.scorers.views import H, K, L, by_head, filled


def rule(k, v, own):
    """Two numbers of one entry, both nonlinear, so that a row that is read twice shows."""
    return jnp.stack([(k @ own["a"]) ** 2, jnp.exp((v * own["b"]).sum(axis=-1))], axis=-1)


@pytest.mark.parametrize("shared", [False, True], ids=["of each sequence", "of all sequences"])
@pytest.mark.parametrize("pools", [1, L, L * K])
def test_every_entry_meets_its_head(pools, shared):
    """Heads lie side by side in the table: a block that reaches into the next segment must not write there, and dead
    rows hold NaN here."""
    entries, lists = filled(pools)
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=(L, 1 if shared else 2, K, H)).astype(np.float32) for _ in range(2))
    said = entries.each(rule, {"a": jnp.asarray(a), "b": jnp.asarray(b)}, 2)
    for (row, o), got in by_head(entries, said).items():
        had, own = lists[row][o // K][o % K], (o // K, 0 if shared else row, o % K)
        expected = [[(e.k @ a[own]) ** 2, np.exp(e.v @ b[own])] for e in had]
        np.testing.assert_allclose(got, np.reshape(expected, (-1, 2)), rtol=1e-5)
    assert (np.asarray(said)[~np.asarray(entries.valid)] == 0).all()


@pytest.mark.parametrize("block", [1, 4, 5, 64])
def test_blocks_do_not_matter(block):
    """The last block of the table is moved back into it and begins before the rows it stands for."""
    rng = np.random.default_rng(4)
    rows, count = 13, np.array([[6, 4]])
    k, v = (jnp.asarray(rng.normal(size=(1, rows, H)), jnp.float32) for _ in range(2))
    own = {name: jnp.asarray(rng.normal(size=(1, 2, H)), jnp.float32) for name in "ab"}
    before = jnp.full((1, rows, 2), -7.0)
    segments = Segments(jnp.asarray([[2, 9]]), jnp.asarray(count))
    got = np.asarray(walk.over_table(rule, before, k, v, segments, own, block=block))[0]
    for h, (start, n) in enumerate(((2, 6), (9, 4))):
        there = slice(start, start + n)
        mine = {name: x[0, h] for name, x in own.items()}
        np.testing.assert_allclose(got[there], rule(k[0, there], v[0, there], mine), rtol=1e-5)
    assert (got[[0, 1, 8]] == -7.0).all(), "rows of no head stay as they were"


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_a_softmax_over_a_head_sums_to_one(pools):
    """Over the pool, heads would take mass from each other; entries left out take none, large logits overflow not."""
    entries, lists = filled(pools)
    z = np.random.default_rng(5).normal(size=(*entries.pos.shape, 2)).astype(np.float32) * 50 + 300
    among = entries.valid & (entries.pos % 3 != 0)
    got, given, some = (by_head(entries, x) for x in (entries.head_softmax(jnp.asarray(z), among), z, among))
    for at, rows in got.items():
        wide = np.where(some[at][:, None], np.exp(given[at].astype(float) - given[at].max(initial=0)), 0.0)
        total = wide.sum(axis=0)
        np.testing.assert_allclose(rows, wide / np.where(total > 0, total, 1.0), atol=1e-5)


def test_free_entries_are_live_and_not_protected():
    """What a score does not decide about must not count in a total of scores."""
    entries, _ = filled(1)
    np.testing.assert_array_equal(entries.free, entries.valid)
    protect = entries.pos < 3  # true for empty slots as well
    some = dataclasses.replace(entries, protect=protect)
    np.testing.assert_array_equal(some.free, np.asarray(entries.pos) >= 3)
