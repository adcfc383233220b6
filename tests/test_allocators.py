"""Selection against a sort in Python: two strategies, every tie."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.allocators import ALLOCATORS, STRATEGIES, keep_best
from nexus.shapes import EMPTY, Layout
from tests import oracle

CASES, N = 3000, 24


@functools.cache
def small_cases():
    """Scores full of ties, infinities and signed zeros; positions that repeat between heads; holes; protection."""
    rng = np.random.default_rng(0)
    score = rng.choice(np.array([-np.inf, -2.5, -0.0, 0.0, 1e-40, 1.0, 257.0, np.inf], np.float32), (CASES, N))
    spread = np.where(rng.random((CASES, 1)) < 0.3, rng.normal(size=(CASES, N)), 0)
    score = np.where(np.isfinite(score), score + spread, score).astype(np.float32)
    heads = rng.integers(1, 5, CASES)  # 1 head: all positions differ; more heads: positions repeat
    pos = np.full((CASES, N), EMPTY, np.int32)
    owner = np.zeros((CASES, N), int)
    for i, h in enumerate(heads):
        owner[i] = np.sort(rng.integers(0, h, N))
        for o in range(h):
            at = np.flatnonzero(owner[i] == o)
            pos[i, at] = np.sort(rng.choice(N + 8, len(at), replace=False))
    pos[rng.random((CASES, N)) < rng.choice([0.0, 0.3, 0.9], (CASES, 1))] = EMPTY
    protect = rng.random((CASES, N)) < 0.15
    return score, pos, protect, owner


def trimmed(protect: np.ndarray, pos: np.ndarray, cap: int) -> np.ndarray:
    """At most cap protected entries, as promised."""
    return protect & (np.cumsum(protect & (pos != EMPTY), axis=1) <= cap)


def by_sorting(score, pos, protect, owner, cap) -> np.ndarray:
    big = float(np.finfo(np.float32).max)
    keep = np.zeros(len(pos), bool)
    live = np.flatnonzero(pos != EMPTY)
    score = np.clip(score, -big, big)
    entries = [(bool(protect[i]), float(score[i]), int(pos[i]), int(owner[i])) for i in live]
    keep[live[oracle.select(entries, cap)]] = True
    return keep


@pytest.mark.parametrize("cap", [1, 7, 15, 23])
def test_both_strategies_equal_the_sort(cap):
    """The fast threshold must keep the very set of the reference (openxla/xla#25487, pytorch/helion#3104): thousands of
    small cases, many ties. Ties go to the newer entry, between equals to the lower owner."""
    score, pos, protect, owner = small_cases()
    protect = trimmed(protect, pos, cap)
    got = {
        s: np.asarray(jax.jit(functools.partial(keep_best, cap=cap, strategy=s))(score, pos, protect))
        for s in STRATEGIES
    }
    np.testing.assert_array_equal(got["threshold"], got["top_k"])
    np.testing.assert_array_equal(got["top_k"].sum(axis=1), np.minimum((pos != EMPTY).sum(axis=1), cap))
    for i in range(0, CASES, 5):
        np.testing.assert_array_equal(
            got["top_k"][i], by_sorting(score[i], pos[i], protect[i], owner[i], cap), err_msg=f"case {i}"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_dropped_while_it_fits(strategy):
    """cap at or above the number of entries: an exact no-op, whatever the scores."""
    score, pos, protect, _ = small_cases()
    for cap in (N, N + 5):
        np.testing.assert_array_equal(keep_best(score[:50], pos[:50], protect[:50], cap, strategy), pos[:50] != EMPTY)
    few = np.where(np.arange(N) < 5, pos[:50], EMPTY)
    np.testing.assert_array_equal(keep_best(score[:50], few, protect[:50] & False, 7, strategy), few != EMPTY)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ties_go_to_the_newer_entry(strategy):
    """`lax.top_k` prefers the lower index, which evicted the recent window on uniform scores (NVIDIA/kvpress#226)."""
    pos = np.array([[0, 1, 2, 3, 4, 5]], np.int32)
    keep = keep_best(np.zeros((1, 6), np.float32), pos, np.zeros((1, 6), bool), 2, strategy)
    np.testing.assert_array_equal(keep, [[False] * 4 + [True] * 2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_protection_is_a_mask_and_not_a_large_score(strategy):
    """`max + 1` is absorbed in bfloat16 above 256, and infinities beat any finite sentinel (NVIDIA/kvpress#226)."""
    pos = np.array([[0, 1, 2, 3, 4, 5]], np.int32)
    protect = np.array([[True, False, False, True, False, False]])
    for score in (np.full((1, 6), 300.0), np.array([[-np.inf, np.inf, np.inf, np.nan, np.inf, np.inf]])):
        keep = keep_best(jnp.asarray(score, jnp.bfloat16), pos, protect, 3, strategy)
        np.testing.assert_array_equal(keep, [[True, False, False, True, False, True]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_not_a_number_is_worth_least(strategy):
    """A NaN sorts anywhere, and then the kept set depends on the sort routine."""
    pos = np.arange(4, dtype=np.int32)[None]
    keep = keep_best(np.array([[1.0, np.nan, 0.5, np.nan]]), pos, np.zeros((1, 4), bool), 3, strategy)
    np.testing.assert_array_equal(keep, [[True, False, True, True]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_global_with_equal_scores_equals_per_head(strategy):
    """Heads that tie everywhere must share equally: the newest M positions of every head."""
    L, K, M, n = 2, 2, 3, 7
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=1, head_dim=4, budget=M, tail=4, pools=1)
    score = np.tile(np.random.default_rng(0).integers(0, 3, n), (1, 1, L * K)).astype(np.float32)
    pos = np.tile(np.arange(n, dtype=np.int32), (1, 1, L * K))
    whole = ALLOCATORS["global"](strategy=strategy).select(score, pos, np.zeros(pos.shape, bool), layout)
    alone = keep_best(score.reshape(1, L * K, n), pos.reshape(1, L * K, n), np.zeros((1, L * K, n), bool), M, strategy)
    np.testing.assert_array_equal(np.asarray(whole).reshape(alone.shape), alone)


def test_pools_by_allocator():
    """The number of pools is the whole difference between allocators."""
    assert {name: cls().pools(5, 3) for name, cls in ALLOCATORS.items()} == {
        "per_head": 15, "per_layer": 5, "global": 1, "everything": 15,
    }  # fmt: skip


def test_an_unknown_strategy_is_refused():
    """It names the allowed ones."""
    with pytest.raises(ValueError, match="strategy 'sort'; allowed: threshold, top_k"):
        ALLOCATORS["global"](strategy="sort")
