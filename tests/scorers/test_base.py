"""What scorers share: views of the candidates, means, pooling, window attention."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import scorers
from tests import oracle
from tests.scorers.views import G, H, K, L, by_head, filled


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_views_show_live_entries_and_zero_elsewhere(pools):
    """A dead slot holds NaN here: one in a mean or a norm spreads to every entry."""
    entries, lists = filled(pools, aux=("x",))
    k, v, x = by_head(entries, entries.k()), by_head(entries, entries.v()), by_head(entries, entries.aux("x"))
    for (b, o), rows in k.items():
        had = lists[b][o // K][o % K]
        for got, expected in (
            (rows, [e.k for e in had]),
            (v[b, o], [e.v for e in had]),
            (x[b, o], [e.aux for e in had]),
        ):
            np.testing.assert_array_equal(got, np.asarray(expected).reshape(got.shape))
    dead = ~np.asarray(entries.valid)
    assert (np.asarray(entries.k())[dead] == 0).all() and (np.asarray(entries.v())[dead] == 0).all()


@pytest.mark.parametrize("pools", [1, L * K])
def test_a_head_mean_is_over_its_own_live_entries(pools):
    """A mean over the pool mixes heads; one that counts empty slots shrinks."""
    entries, lists = filled(pools)
    for (b, o), rows in by_head(entries, entries.head_mean(entries.k())).items():
        if len(rows):
            mean = np.mean([e.k for e in lists[b][o // K][o % K]], axis=0)
            np.testing.assert_allclose(rows, np.tile(mean, (len(rows), 1)), atol=1e-6)


@pytest.mark.parametrize("pools", [1, L * K])
@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("kernel", [1, 3, 13])  # 13 reaches over a head's empty tail columns
def test_pooling_ends_at_the_borders_of_a_head(pools, kind, kernel):
    """Neighbours are slots of the same head before the window. Average pooling divides by k at the borders as well, as
    public code does; heads lie side by side in the table and must not leak into each other."""
    entries, lists = filled(pools)
    before = jnp.asarray([int(entries.buffer.tail_pos[0, 2]), 9])
    J = 2
    x = jnp.asarray(np.random.default_rng(0).normal(size=(*entries.pos.shape, J)), jnp.float32)
    got, given = by_head(entries, entries.pooled(x, kernel, kind, before=before)), by_head(entries, x)
    for (b, o), rows in got.items():
        pos = np.array([e.pos for e in lists[b][o // K][o % K]])
        context = pos < int(before[b])
        expected = np.zeros((len(pos), J))
        if context.any():
            expected[context] = oracle.pooled(given[b, o][context].T.astype(float), kernel, kind).T
        np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_pooling_by_hand():
    """avg 3 of (3, 6, 9) is (3, 6, 5): the border divides by 3."""
    np.testing.assert_array_equal(oracle.pooled(np.array([3.0, 6.0, 9.0]), 3, "avg"), [3.0, 6.0, 5.0])
    np.testing.assert_array_equal(oracle.pooled(np.array([3.0, -6.0, -9.0]), 3, "max"), [3.0, 3.0, -6.0])


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_window_attention_is_the_public_rule(pools):
    """Softmax over everything the query sees, window columns dropped after it and not renormalised; a missing row of a
    young window does not count; an empty head gives nothing."""
    entries, lists = filled(pools)
    W = 3
    rng = np.random.default_rng(1)
    q = rng.normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    newest = [int(entries.buffer.seen[b]) - 1 for b in range(2)]
    q_pos = np.array([[newest[0] - 2, newest[0] - 1, newest[0]], [-1, newest[1] - 1, newest[1]]])
    weight = np.array([[1 / 3] * 3, [0, 0.5, 0.5]], np.float32)
    stacked = [jnp.asarray(np.tile(x, (L, 1, 1))) for x in (q_pos.astype(np.int32), weight)]
    got = by_head(entries, entries.window_attention(jnp.asarray(q) / np.sqrt(H).astype(np.float32), *stacked))
    for (b, o), rows in got.items():
        had, real = lists[b][o // K][o % K], weight[b] > 0
        if had:
            k, pos = np.array([e.k for e in had], float), np.array([e.pos for e in had])
            A = oracle.window_attention(q[o // K, b, o % K][:, real].astype(float), q_pos[b][real], k, pos)
            np.testing.assert_allclose(rows, A.mean(axis=1).T, atol=1e-6)


SCORERS = [
    scorers.Recency(),
    scorers.KeyNorm(),
    scorers.KeyDifference(),
    scorers.RandomDraw(),
    scorers.RandomDraw(sticky=True),
    scorers.AccumulatedAttention(),
    scorers.WindowAttention(window=3, kernel=3),
]


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_scores_are_float32_under_bfloat16_caches(scorer):
    """bfloat16 norms of keys tie for most entries, and then the kept set is the sort's."""
    entries, _ = filled(L * K, dtype="bfloat16", aux=tuple(scorer.aux))
    assert entries.buffer.k.dtype == jnp.bfloat16
    score = scorer.score(entries, scorer.init_state(entries.buffer.layout, 2), entries.buffer.rng)
    assert score.dtype == jnp.float32 and score.shape == entries.pos.shape
    live = np.asarray(score)[np.asarray(entries.valid)]
    assert np.isfinite(live).all()


def test_a_scorer_must_score():
    """The base states no preference."""
    with pytest.raises(NotImplementedError):
        scorers.Scorer().score(None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_sums_and_maxima_of_a_head(pools):
    """Over its own live entries, given back to each of them; NaN of dead slots takes no part."""
    entries, lists = filled(pools, aux=("x",))
    x = entries.aux("x")
    total, top = by_head(entries, entries.head_sum(x)), by_head(entries, entries.head_max(x))
    for (b, o), rows in total.items():
        values = np.array([e.aux for e in lists[b][o // K][o % K]])
        if len(values):
            np.testing.assert_allclose(rows, values.sum(), atol=1e-5)
            np.testing.assert_allclose(top[b, o], values.max())


@pytest.mark.parametrize("pools", [1, L * K])
@pytest.mark.parametrize("one_scale", [False, True])
def test_attention_of_recent_queries_row_by_row(pools, one_scale):
    """`reduce` sees one head's rows (group, window); with one scale the group's softmaxes keep the order of logits."""
    entries, lists = filled(pools)
    W = 3
    q = np.random.default_rng(5).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(entries.buffer.seen)])
    most = lambda p: p.reshape(*p.shape[:-2], G, W, p.shape[-1]).max(axis=-3)  # noqa: E731
    got = entries.attention_of(
        jnp.asarray(q / np.sqrt(H)), jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32), jnp.ones((L, 2, W)), most, W,
        one_scale=one_scale,
    )  # fmt: skip
    for (b, o), rows in by_head(entries, got).items():
        at = np.array([e.pos for e in lists[b][o // K][o % K]])
        if not len(at):
            continue
        k = np.array([e.k for e in lists[b][o // K][o % K]], float)
        z = q[o // K, b, o % K].astype(float) @ k.T / np.sqrt(H)
        z = np.where(at[None] <= pos[b][:, None], z, -np.inf)
        if one_scale:
            top = np.where(np.isfinite(z), z, -1e30).max(axis=(0, 2))[:, None]
            expected = np.exp(z.max(axis=0) - top)
        else:
            expected = oracle.softmax(z).max(axis=0)
        np.testing.assert_allclose(rows, expected.T, atol=1e-5)
