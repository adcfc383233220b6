"""Selection against a sort in Python: two strategies, every tie, one cap for all and a cap for each."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.selection import STRATEGIES, count_by_segment, keep_best, keep_caps
from nexus.shapes import EMPTY
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


# --- a cap for every segment -------------------------------------------------------------------------------------

Q = 4


@functools.cache
def segmented(n: int = N, cases: int = 300):
    """The small cases as pools of four segments, some of them empty, with entries that belong to none at the end."""
    score, pos, protect, _ = (x[:cases] for x in small_cases())
    rng = np.random.default_rng(5)
    ends = np.sort(rng.integers(0, n + 1, (cases, Q)), axis=1)
    first = np.concatenate([np.zeros((cases, 1), int), ends], axis=1).astype(np.int32)
    segment = np.minimum((np.arange(n) >= first[:, 1:, None]).sum(axis=1), Q - 1).astype(np.int32)
    pos = np.where(np.arange(n) < first[:, -1:], pos, EMPTY)
    caps = rng.integers(0, 9, (cases, Q)).astype(np.int32)
    pool = lambda x: x.reshape(cases // 2, 2, -1)  # noqa: E731  two pools per sequence
    return tuple(map(pool, (score, pos, protect, segment, first, caps)))


def test_caps_equal_the_sort_in_both_strategies():
    """The bisection of one segment must not see another's entries, and ties go to the newer entry in each of them."""
    arrays = segmented()
    got = {s: np.asarray(jax.jit(functools.partial(keep_caps, strategy=s))(*arrays)) for s in STRATEGIES}
    np.testing.assert_array_equal(got["threshold"], got["top_k"])
    flat = [x.reshape(-1, x.shape[-1]) for x in (*arrays, got["top_k"])]
    for i, (score, pos, protect, segment, _, caps, keep) in enumerate(zip(*flat, strict=True)):
        for q in range(Q):
            here = np.flatnonzero(segment == q)
            cap = max(caps[q], (protect & (pos != EMPTY))[here].sum())
            expected = by_sorting(score[here], pos[here], protect[here], here, cap)
            np.testing.assert_array_equal(keep[here], expected, err_msg=f"case {i}, segment {q}")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_segment_with_the_whole_cap_is_keep_best(strategy):
    """Caps that say nothing new change nothing, in segments of several heads too, where positions repeat."""
    score, pos, protect, _ = (x[:400][None] for x in small_cases())
    protect = trimmed(protect[0], pos[0], 7)[None]
    first = np.broadcast_to(np.array([0, N], np.int32), (1, 400, 2))
    got = keep_caps(score, pos, protect, np.zeros_like(pos), first, np.full((1, 400, 1), 7), strategy)
    np.testing.assert_array_equal(got, keep_best(score, pos, protect, 7, strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_segment_leaves_what_it_cannot_use_and_keeps_what_is_protected(strategy):
    """A cap above the entries, a cap of nothing, and more protected entries than the cap."""
    pos = np.array([[[0, 1, EMPTY, 0, 1, 0, 1, 2]]], np.int32)
    segment = np.array([[[0, 0, 0, 1, 1, 2, 2, 2]]], np.int32)
    first, caps = np.array([[[0, 3, 5, 8]]], np.int32), np.array([[[9, 0, 1]]], np.int32)
    protect = np.array([[[False] * 5 + [True, True, False]]])
    keep = keep_caps(np.ones(pos.shape, np.float32), pos, protect, segment, first, caps, strategy)
    np.testing.assert_array_equal(keep, [[[True, True, False, False, False, True, True, False]]])


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_marks_are_counted_by_segment(n):
    """Boundaries inside a block, on its edge, and at the very end."""
    rng = np.random.default_rng(n)
    mark = rng.random((2, 3, n)) < 0.4
    first = np.sort(rng.integers(0, n + 1, (2, 3, 6)), axis=-1)
    first[..., 0], first[0, :, -1] = 0, n
    expected = [[[mark[b, p, x:y].sum() for x, y in zip(f, f[1:], strict=False)] for p, f in enumerate(row)]
                for b, row in enumerate(first)]  # fmt: skip
    np.testing.assert_array_equal(count_by_segment(jnp.asarray(mark), jnp.asarray(first)), expected)
