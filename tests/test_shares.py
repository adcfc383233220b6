"""Whole numbers with an exact sum, against fractions and loops."""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import shares
from tests import oracle_shares


def test_largest_remainder_keeps_the_sum_and_prefers_the_lower_index():
    """Rounded one by one, shares drift from the budget (FFY0/AdaKV, Zefan-Cai/KVCache-Factory#36)."""
    rng = np.random.default_rng(0)
    part = rng.integers(0, 60, (200, 7))
    part[:, -1] += -part.sum(axis=1) % 6
    got = np.asarray(shares.largest_remainder(jnp.asarray(part), 6))
    np.testing.assert_array_equal(got.sum(axis=1), part.sum(axis=1) // 6)
    for row, out in zip(part, got, strict=True):
        assert out.tolist() == oracle_shares.largest_remainder([Fraction(int(x), 6) for x in row])
    np.testing.assert_array_equal(shares.largest_remainder(jnp.asarray([1, 1, 1, 1]), 2), [1, 1, 0, 0])


@pytest.mark.parametrize("layers", [1, 2, 5, 30])
@pytest.mark.parametrize("beta", [1, 3, 20])
def test_a_pyramid_falls_and_adds_up(layers, beta):
    """Sum over layers = L M, monotone, never more than the text holds, equal while everything fits."""
    M, reserved = 64, 12
    seen = np.array([5, 64, 65, 80, 100, 150, 5000])
    got = np.asarray(shares.pyramid(M, layers, beta, jnp.full(len(seen), reserved), jnp.asarray(seen)))
    np.testing.assert_array_equal(got.sum(axis=1), M * layers)
    assert (np.diff(got, axis=1) <= 0).all() and (got >= reserved).all()
    for row, n in zip(got, seen, strict=True):
        assert row.tolist() == oracle_shares.pyramid(M, layers, beta, reserved, int(n))
        assert n < M or row.max() <= n


def test_a_pyramid_that_spreads_all_has_the_window_inside():
    """The kvpress form: M itself is spread, and where the last layer would hold less than its window all are equal."""
    wide = np.asarray(shares.pyramid(400, 5, 20, jnp.asarray([16]), jnp.asarray([5000]), "all"))[0]
    np.testing.assert_array_equal(wide, [780, 590, 400, 210, 20])
    same = np.asarray(shares.pyramid(300, 5, 20, jnp.asarray([16]), jnp.asarray([5000]), "all"))[0]
    np.testing.assert_array_equal(same, 300)


@pytest.mark.parametrize("alpha", ["0.0", "0.2", "0.37", "1.0"])
def test_adaptive_shares(alpha):
    """alpha = 0 is the flat ranking, alpha = 1 is uniform, and the sum is that of the ranking."""
    rng = np.random.default_rng(1)
    flat = rng.integers(0, 90, (50, 3, 4))
    fraction = Fraction(alpha)
    got = np.asarray(shares.adaptive(64, jnp.asarray(flat), fraction.numerator, fraction.denominator))
    np.testing.assert_array_equal(got.sum(axis=-1), flat.sum(axis=-1))
    for f, out in zip(flat.reshape(-1, 4), got.reshape(-1, 4), strict=True):
        assert out.tolist() == oracle_shares.adaptive(f.tolist(), fraction)
    if alpha == "0.0":
        np.testing.assert_array_equal(got, flat)
    if alpha == "1.0":
        assert (got.max(axis=-1) - got.min(axis=-1) <= 1).all()


@pytest.mark.parametrize("budget", [32, 33, 64, 256])
def test_calibrated_shares_add_up_between_floor_and_cap(budget):
    """sum M_l = L M and 32 <= M_l <= 3 M for any weights, and twice the same."""
    rng = np.random.default_rng(budget)
    for sharp in (0.1, 1.0, 6.0):
        w = rng.random(12) ** sharp
        w = (w / w.sum()).astype(np.float32)
        got = np.asarray(shares.calibrated(budget, jnp.asarray(w), 32, 3))
        assert got.sum() == 12 * budget and got.min() >= 32 and got.max() <= max(3 * budget, 32)
        assert got.tolist() == oracle_shares.calibrated(budget, w, 32, 3)
        np.testing.assert_array_equal(got, shares.calibrated(budget, jnp.asarray(w), 32, 3))


def test_calibrated_residue_goes_to_the_largest_weight():
    """Equal weights: the rounding residue is taken in the order of layers, the same on every machine."""
    got = shares.calibrated(34, jnp.asarray([0.26, 0.26, 0.24, 0.24]), 32, 3)
    np.testing.assert_array_equal(got, [34, 34, 34, 34])
    one = shares.calibrated(40, jnp.asarray([0.97, 0.01, 0.01, 0.01]), 32, 3)
    np.testing.assert_array_equal(one, [64, 32, 32, 32])
    capped = shares.calibrated(40, jnp.asarray([0.97, 0.02, 0.01]), 8, 2)
    np.testing.assert_array_equal(capped, [80, 31, 9])


@pytest.mark.parametrize("tau", [0.0, 0.01, 0.05, 0.3, 1.0])
def test_norm_loss_equals_brute_force(tau):
    """The running sum finds the very entry that trying every cut finds; heads in any order, batch rows apart."""
    rng = np.random.default_rng(3)
    B, L, K, n, G = 2, 2, 2, 40, 3
    a = rng.dirichlet(np.full(n, 1.0), (B, L, K, G)).swapaxes(-1, -2)
    count = np.array([[n, 25], [n, 7]])
    a = np.where(np.arange(n)[:, None] < count[:, :, None, None, None], a, 0.0)
    square = jnp.asarray(a**2, jnp.float32)
    per_head = jnp.asarray(np.broadcast_to(count[:, :, None], (B, L, K)))
    got = np.asarray(shares.norm_loss(square, per_head, tau))
    for b, layer in np.ndindex(B, L):
        rows = [a[b, layer, k, : count[b, layer], g] for k in range(K) for g in range(G)]
        assert got[b, layer] == oracle_shares.norm_loss(rows, tau), f"{b=} {layer=}"
    np.testing.assert_array_equal(shares.norm_loss(square[:, :, ::-1, :, ::-1], per_head, tau), got)
    np.testing.assert_array_equal(shares.norm_loss(square[1:], per_head[1:], tau), got[1:])


def test_norm_loss_keeps_what_nobody_attends_to_nothing():
    """N(0) = 0 evicts nothing; at tau = 0 even a tiny attention is kept, and the entries before it are not."""
    nothing = jnp.zeros((1, 1, 1, 5, 2))
    np.testing.assert_array_equal(shares.norm_loss(nothing, jnp.full((1, 1, 1), 5), 0.5), [[0]])
    tiny = jnp.asarray([0.0, 0.0, 1e-14, 0.0, 0.7]).reshape(1, 1, 1, 5, 1)
    np.testing.assert_array_equal(shares.norm_loss(tiny, jnp.full((1, 1, 1), 5), 0.0), [[2]])


def test_budgets_beyond_int32_are_refused():
    """Exact shares multiply: an overflow would give negative counts without an error."""
    with pytest.raises(ValueError, match="budget 1000000000 is too large"):
        shares.pyramid(10**9, 30, 20, jnp.asarray([4]), jnp.asarray([10]))
