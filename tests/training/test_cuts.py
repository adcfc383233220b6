"""Soft cuts against evictions written out one by one."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.training import attention, cuts

L, B, K, T, EVERY, BUDGET = 2, 2, 2, 40, 8, 5
DOC = np.array([[0] * 21 + [1] * 15 + [-1] * 4, [0] * T])
CUT = np.zeros((B, T), bool)
CUT[0, [17, 30]] = CUT[1, 26] = True
PLACES = [[0, 8, 16, 17, 24, 30, 32], [0, 8, 16, 24, 26, 32, T]]  # T: this row has one mark less


DOCS, AT = jnp.asarray(DOC), jnp.asarray(PLACES)


def rates(seed: int = 0) -> np.ndarray:
    drawn = -np.exp(np.random.default_rng(seed).normal(-2, 1.5, (L, B, K, T))).astype(np.float32)
    drawn[..., :2] = 0.0  # sinks
    return drawn


def lasting_first(seed: int = 0) -> np.ndarray:
    """What stands early lasts longer: dropped keys would come back among the best if they still took part."""
    drawn = rates(seed)
    drawn[..., : T // 4] *= np.exp(-3)
    return drawn


def survivors(rate: np.ndarray, b: int, cut: int, sharing: str) -> np.ndarray:
    """[L,K,T] what is left of the document at `cut` after every cut up to it, dropped one after another."""
    own = DOC[b] == DOC[b, cut - 1]
    alive = np.zeros((L, K, T), bool)
    for before, c in itertools.pairwise(c for c in PLACES[b] if c <= cut):
        alive[..., before:c] = own[before:c]
        score = np.where(alive, rate[:, b] * (c + 1 - np.arange(T)), -np.inf)
        pools = score.reshape(1, -1) if sharing == "global" else score.reshape(L * K, T)
        for pool, left in zip(pools, alive.reshape(pools.shape), strict=True):
            for worst in np.argsort(pool)[: max(0, left.size - BUDGET * (left.size // T))]:
                left[worst] = False
    return alive


@pytest.mark.parametrize("drawn", [rates, lasting_first])
@pytest.mark.parametrize("sharing", ["global", "per_head"])
def test_a_narrow_cut_is_an_eviction(sharing, drawn):
    """What a query sees after a cut is what a cache cut so often would still hold, of its own document."""
    rate = drawn()
    tau = cuts.thresholds(jnp.asarray(rate), DOCS, AT, jnp.float32(BUDGET), 1e-5, sharing)
    for layer in range(L):
        found = cuts.cuts(jnp.asarray(rate[layer]), tau[layer], DOCS, AT, 1e-5)
        for b in range(B):
            for j, cut in enumerate(PLACES[b]):
                if cut in (0, T) or DOC[b, cut - 1] < 0:
                    continue
                inside = (np.arange(T) < cut) & (DOC[b] == DOC[b, cut - 1])
                seen = np.exp(np.asarray(found.worth[b, :, j])) * inside
                want = survivors(rate, b, cut, sharing)[layer]
                np.testing.assert_array_equal(seen > 0.4, want, err_msg=f"{layer} {b} {cut}")
                assert (found.worth[b, :, j, cut:] == 0).all()  # what no cut has met yet counts in full


def test_everything_fits():
    """A budget of the whole document adds nothing."""
    rate = jnp.asarray(rates())
    tau = cuts.thresholds(rate, DOCS, AT, jnp.float32(T), 0.5, "global")
    assert np.isinf(tau).all()
    assert (cuts.cuts(rate[0], tau[0], DOCS, AT, 0.5).worth == 0).all()


def test_places():
    """Every so many tokens, and at the marks of a row; the first of them where they are too many. A cut beyond the row
    fills up."""
    np.testing.assert_array_equal(cuts.places(jnp.asarray(CUT), EVERY, 2), [sorted(p) for p in PLACES])
    assert cuts.places(jnp.asarray(CUT), EVERY, 0).tolist() == [[0, 8, 16, 24, 32]] * B
    assert cuts.places(jnp.asarray(CUT), EVERY, 1).tolist() == [[0, 8, 16, 17, 24, 32], [0, 8, 16, 24, 26, 32]]


def test_queries_take_the_cut_before_them():
    """Those between two cuts share one line; a query at a cut's place already sees it."""
    worth = jnp.arange(7.0)[None, None, :, None] * jnp.ones((B, 1, 7, T))
    added = cuts.Cuts(worth, AT).of(jnp.arange(6, 18), 24)
    assert added.shape == (B, 1, 12, 24)
    np.testing.assert_array_equal(added[0, 0, :, 0], [0] * 2 + [1] * 8 + [2, 3])
    np.testing.assert_array_equal(added[1, 0, :, 0], [0] * 2 + [1] * 8 + [2, 2])


def test_the_gradient_lifts_what_lies_below():
    """A rate nearer 0 is never worth less, and is worth more where a cut was met; finite everywhere."""
    rate = jnp.asarray(rates(1))
    tau = cuts.thresholds(rate, DOCS, AT, jnp.float32(BUDGET), 0.5, "global")
    grad = np.asarray(jax.grad(lambda x: cuts.cuts(x, tau[0], DOCS, AT, 0.5).worth.sum())(rate[0]))
    assert np.isfinite(grad).all() and (grad >= 0).all() and (grad[1, :, 4:24] > 0).any()


@pytest.mark.parametrize("sharing", ["global", "per_head"])
def test_the_threshold_gives_way_as_a_soft_count_would(sharing):
    """Its gradient against finite differences of tau in sum sigmoid((tau - u) / width) = the same sum."""
    rate, cut, width = rates(2), EVERY, 0.5

    def tau_of(x):
        return cuts.thresholds(x, DOCS, AT, jnp.float32(BUDGET), width, sharing)[0, 1, 0, 1]

    grad = np.asarray(jax.grad(tau_of)(jnp.asarray(rate)))
    assert (grad[:, 0] == 0).all() and np.isfinite(grad).all()  # the other row
    inside = (slice(None), 1, slice(None), slice(0, cut)) if sharing == "global" else (0, 1, 0, slice(0, cut))
    outside = np.ones_like(grad, bool)
    outside[inside] = False
    assert (grad[outside] == 0).all()
    tau = float(tau_of(jnp.asarray(rate)))

    def soft(x, level):
        age = cut + 1 - np.arange(cut)
        size = np.log(age) + np.log(np.maximum(-x[inside].astype(np.float64), 1e-9))
        return (1 / (1 + np.exp(-(level - size) / width))).sum()

    def solved(x):
        low, high = tau - 5, tau + 5
        for _ in range(80):
            mid = (low + high) / 2
            low, high = (mid, high) if soft(x, mid) < soft(rate, tau) else (low, mid)
        return (low + high) / 2

    for at in ((0, 1, 0, 7), (0, 1, 0, 5)):
        by = np.zeros_like(rate, np.float64)
        by[at] = 1e-4 * abs(rate[at])
        want = (solved(rate + by) - solved(rate - by)) / (2 * by[at])
        np.testing.assert_allclose(grad[at], want, rtol=1e-3)


def test_padded_queries_of_a_long_row_stay_finite(monkeypatch):
    """Blocks of a long row are filled up with queries behind the last cut; padding of the row sees them."""
    monkeypatch.setattr(attention, "KEPT", 8)
    monkeypatch.setattr(attention, "LONG_BLOCK", 32)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((B, K, 2, T, 4), (B, K, T, 4), (B, K, T, 4)))

    def loss(rate, v):
        tau = cuts.thresholds(rate, DOCS, AT, jnp.float32(BUDGET), 0.5, "global")
        return attention.gated_attention(q, k, v, DOCS, cuts.cuts(rate[0], tau[0], DOCS, AT, 0.5)).sum()

    for found in jax.grad(loss, (0, 1))(jnp.asarray(rates()), v):
        assert np.isfinite(found).all()
