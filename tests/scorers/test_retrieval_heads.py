"""Listed heads vote for all kv heads of their layer. Kept sets over whole runs: tests/test_allocators.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus.scorers import Entries, RetrievalHeads, WindowAttention
from nexus.scorers.retrieval_heads import of_heads
from nexus.shapes import Layout
from tests import oracle, tiny
from tests.scorers.views import C, G, H, K, L, by_head

M, W = 7, 3
N = K * G


def in_step(pools: int) -> tuple[Entries, Any]:
    """Layers of unequal length whose heads hold the same positions; what holds nothing is NaN."""
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=G, head_dim=H, budget=M, tail=C, pools=pools)
    counts = np.array([[[7, 7], [3, 3]], [[2, 2], [6, 6]]])
    buf, lists = tiny.filled(layout, counts, [C, 2], dead=float("nan"))
    pos = np.asarray(buf.pos).copy()
    for b, layer in np.ndindex(2, L):
        starts = np.asarray(buf.start)[b, layer]
        rows = [np.arange(s, s + counts[b, layer, 0]) for s in starts]
        pos[b, rows[1]] = pos[b, rows[0]]
        for i, r in enumerate(rows[1]):
            lists[b][layer][1][i] = dataclasses.replace(lists[b][layer][1][i], pos=int(pos[b, r]))
    buf = dataclasses.replace(buf, pos=jnp.asarray(pos))
    return Entries(buffer=buf, cand=kv.candidates(buf)), lists


def state_of(entries: Entries) -> tuple[Any, np.ndarray, np.ndarray]:
    q = np.random.default_rng(2).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(entries.buffer.seen)])
    state = {
        "q": jnp.asarray(q) / np.sqrt(H).astype(np.float32),
        "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32),
    }
    return state, q, pos


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_the_score_is_the_mean_of_the_listed_heads(pools):
    """Each listed head reads kv head n // G, whichever pool that head's entries lie in."""
    entries, lists = in_step(pools)
    heads = np.array([[5, 0], [3, 2]])
    entries = dataclasses.replace(entries, weights={"heads": jnp.asarray(heads)})
    state, q, pos = state_of(entries)
    got = by_head(entries, RetrievalHeads(window=W, kernel=3).score(entries, state, entries.buffer.rng))
    for (b, o), score in got.items():
        layer, votes = o // K, []
        for n in heads[layer]:
            had = lists[b][layer][n // G]
            at, k = np.array([e.pos for e in had]), np.array([e.k for e in had], float)
            A = oracle.window_attention(q[layer, b, n // G, n % G : n % G + 1].astype(float), pos[b], k, at)[0]
            vote, context = np.zeros(len(at)), at < pos[b][0]
            vote[context] = oracle.pooled(A.sum(axis=0)[context], 3, "avg")
            votes.append(vote)
        np.testing.assert_allclose(score, np.mean(votes, axis=0), atol=1e-6, err_msg=f"{b=} {o=}")


def test_all_heads_listed_is_the_layer_mean_of_snapkv():
    """With nothing selected the rule must fall back to what it refines, summed instead of averaged over the window."""
    entries, _ = in_step(L * K)
    everyone = dataclasses.replace(entries, weights={"heads": jnp.tile(jnp.arange(N), (L, 1))})
    state, _, _ = state_of(entries)
    listed = RetrievalHeads(window=W, kernel=5).score(everyone, state, entries.buffer.rng)
    snap = WindowAttention(window=W, kernel=5, layer_mean=True).score(entries, state, entries.buffer.rng)
    np.testing.assert_allclose(np.where(entries.valid, listed, 0), np.where(entries.valid, W * snap, 0), atol=1e-6)


@pytest.mark.parametrize("head", range(N))
def test_a_listed_head_reads_its_own_kv_head(head):
    """Heads split as (G, K) read a stranger's cache."""
    entries, _ = in_step(1)
    owner = entries.cand.owner[..., None] % K * 100.0 + jnp.arange(G)
    got = by_head(entries, of_heads(entries, owner, jnp.full((L, 1), head)))
    for score in got.values():
        np.testing.assert_array_equal(score, head // G * 100 + head % G)


def test_a_model_without_calibration_is_refused_with_the_command_that_makes_one():
    """A list of heads of another model is noise with a straight face."""
    with pytest.raises(ValueError, match="model 'test' .*is missing.*configs/calibrate_heads.py:model=test"):
        tiny.session(tiny.build("compresskv", calibration=""))
