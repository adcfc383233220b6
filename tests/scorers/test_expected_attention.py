"""Statistics of queries and what they expect. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.scorers import ExpectedAttention
from tests import oracle, oracle_output
from tests.scorers.views import G, H, K, L, by_head, filled

FREQ = np.array([1.0, 0.03], np.float32)  # [H/2]
B = 2


def observed(scorer: ExpectedAttention, raw: np.ndarray, cuts: list[int], lengths=(1 << 20,) * B):
    """One layer's state after raw [B,K,G,T,H], queries before RoPE, in chunks; beyond `lengths` they are NaN."""
    state = jax.tree.map(lambda x: x[0], scorer.init_state(filled(1)[0].buffer.layout, B))
    for low, high in zip(cuts, cuts[1:], strict=False):
        at = np.arange(low, high)
        pos = np.stack([np.where(at < n, at, -1) for n in lengths])
        q = oracle.rotate(raw[:, :, :, low:high].astype(float), at, FREQ) / np.sqrt(H)
        q = np.where((pos >= 0)[:, None, None, :, None], q, np.nan)
        call = SimpleNamespace(
            q=jnp.asarray(q.reshape(B, K, -1, H), jnp.float32), pos=jnp.asarray(pos, jnp.int32), groups=G,
            weights={"inv_freq": jnp.asarray(FREQ)},
        )  # fmt: skip
        state, _, _ = scorer.observe(call, state, {}, {})  # type: ignore[arg-type]
    return state


@pytest.mark.parametrize("cuts", [[0, 30], [0, 2, 3, 4, 11, 30], list(range(31))], ids=["whole", "chunks", "tokens"])
@pytest.mark.parametrize("far", [0.0, 1000.0])
def test_statistics_are_those_of_all_queries_at_once(cuts, far):
    """Sums of squares minus a squared mean lose a covariance whose mean is large (biased queries of Qwen2); the first
    tokens and padding, which is NaN here, do not count."""
    raw, lengths = np.random.default_rng(10).normal(size=(B, K, G, 30, H)) + far, (30, 17)
    state = observed(ExpectedAttention(), raw, cuts, lengths)
    for b, n in enumerate(lengths):
        mine = raw[b, :, :, 4:n]
        mean = mine.mean(axis=2)
        centred = mine - mean[:, :, None]
        assert float(state["count"][b]) == n - 4
        np.testing.assert_allclose(state["mean"][b], mean, rtol=1e-5, atol=1e-5)
        tolerance = 1e-3 * (1 + far)  # rotating by float32 costs 1e-7 of the length of a query
        np.testing.assert_allclose(state["scatter"][b], np.einsum("kgtx,kgty->kgxy", centred, centred), atol=tolerance)


def scored(scorer: ExpectedAttention, pools: int, spread: float = 1.0):
    """Scores of made-up statistics; entries, lists and the statistics."""
    entries, lists = filled(pools)
    rng = np.random.default_rng(11)
    mean, root = rng.normal(size=(L, B, K, G, H)), spread * rng.normal(size=(L, B, K, G, H, H))
    cov, count = root @ np.swapaxes(root, -1, -2), 7.0
    state = {"count": jnp.full((L, B), count), "mean": jnp.asarray(mean, jnp.float32)}
    state |= {"scatter": jnp.asarray(cov * count, jnp.float32)} if scorer.covariance else {}
    entries = dataclasses.replace(entries, weights={"inv_freq": jnp.tile(jnp.asarray(FREQ), (L, 1))})
    return entries, lists, mean, cov, scorer.score(entries, state, entries.buffer.rng)


@pytest.mark.parametrize("pools", [1, L, L * K])
@pytest.mark.parametrize("options", [{}, {"covariance": False}, {"value_norm": False, "skip": 0}, {"epsilon": 0.1}])
def test_the_expected_softmax_of_every_head(options, pools):
    """mu'.k / sqrt(H) + k Sg' k / 2H under the mean rotation; softmax per query head over its own head's entries
    without the first ones, then the group's mean, then the value. In this order."""
    scorer = ExpectedAttention(**({"future": 9, "skip": 4} | options))
    entries, lists, mean, cov, score = scored(scorer, pools)
    for (b, o), got in by_head(entries, score).items():
        had, own = lists[b][o // K][o % K], (o // K, b, o % K)
        if not had:
            continue
        k, v = (np.array([getattr(e, name) for e in had], float) for name in "kv")
        pos, R = np.array([e.pos for e in had]), oracle_output.mean_rotation(int(entries.buffer.seen[b]), 9, FREQ)
        z = mean[own] @ R.T @ k.T / np.sqrt(H)
        if scorer.covariance:
            z = z + np.einsum("sx,gxy,sy->gs", k, R @ cov[own] @ R.T, k) / (2 * H)
        p = oracle.softmax(np.where(pos >= scorer.skip, z, -np.inf)).mean(axis=0)
        expected = (p + scorer.epsilon) * np.linalg.norm(v, axis=-1) if scorer.value_norm else p
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_without_spread_it_is_the_attention_of_the_mean_query():
    """Conformance 9: Sg = 0 and one future position are a query at that position."""
    entries, lists, mean, _, score = scored(ExpectedAttention(future=1, skip=0, value_norm=False), 1, spread=0.0)
    for (b, o), got in by_head(entries, score).items():
        had, seen = lists[b][o // K][o % K], int(entries.buffer.seen[b])
        if had:
            q = oracle.rotate(mean[o // K, b, o % K][:, None], np.array([seen]), FREQ)
            k, pos = np.array([e.k for e in had], float), np.array([e.pos for e in had])
            expected = oracle.probabilities(q, np.array([seen]), k, pos)[:, 0].mean(axis=0)
            np.testing.assert_allclose(got, expected, atol=1e-5)


def test_before_any_query_counts_all_entries_are_alike():
    """A prompt no longer than the first tokens gives a mean of nothing: 0, not NaN."""
    scorer = ExpectedAttention(value_norm=False)
    state = jax.tree.map(lambda x: x[None], observed(scorer, np.ones((B, K, G, 3, H)), [0, 3]))
    state = jax.tree.map(lambda x: jnp.repeat(x, L, axis=0), state)
    entries = dataclasses.replace(filled(1)[0], weights={"inv_freq": jnp.tile(jnp.asarray(FREQ), (L, 1))})
    for got in by_head(entries, scorer.score(entries, state, entries.buffer.rng)).values():
        counted = got[got > 0]
        np.testing.assert_allclose(counted, np.full(len(counted), 1 / max(len(counted), 1)), rtol=1e-6)


def test_a_scorer_without_covariance_keeps_none():
    """H * H numbers per query head are most of its state."""
    layout = filled(1)[0].buffer.layout
    assert set(ExpectedAttention(covariance=False).init_state(layout, B)) == {"count", "mean"}


def test_scores_are_float32_under_a_bfloat16_cache():
    """Norms of bfloat16 values tie."""
    entries, _ = filled(1, dtype="bfloat16")
    entries = dataclasses.replace(entries, weights={"inv_freq": jnp.tile(jnp.asarray(FREQ), (L, 1))})
    scorer = ExpectedAttention()
    score = scorer.score(entries, scorer.init_state(entries.buffer.layout, B), entries.buffer.rng)
    assert score.dtype == jnp.float32 and np.isfinite(np.asarray(score)).all()


@pytest.mark.parametrize("options", [{"future": 0}, {"skip": -1}, {"epsilon": -0.5}])
def test_what_it_cannot_be_is_refused(options):
    """One line with name and value."""
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        ExpectedAttention(**options)
