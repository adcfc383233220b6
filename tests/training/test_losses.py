"""Losses of training against their dense forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.training import losses
from tests import tiny
from tests.training import dense

DOC = np.array([[0] * 9 + [1] * 11 + [-1] * 4, [0] * 24])
PLACE = np.array([[*range(9), *range(11), 0, 0, 0, 0], [*range(24)]])


def rates(seed: int = 0) -> np.ndarray:
    return -np.random.default_rng(seed).uniform(0.001, 0.8, (2, 3, 24))


@pytest.mark.parametrize("tile", [1, 7, 24])
def test_occupancy_in_tiles(tile):
    """S_t has no recursion, since every token fades at its own rate; tiles and their remainder are the dense sum."""
    at = np.array([3, 0, 23, 11, 12, 5, 19, 8])
    got = losses.occupancy(jnp.asarray(rates(), jnp.float32), jnp.asarray(DOC), jnp.asarray(at), tile)
    np.testing.assert_allclose(
        got, np.where(DOC[:, None, at] >= 0, dense.occupancy(rates(), DOC)[..., at], got), rtol=1e-5
    )


def test_no_fading_counts_the_document():
    """beta = 1: S_t = t + 1, document by document."""
    got = losses.occupancy(jnp.zeros((2, 3, 24)), jnp.asarray(DOC), jnp.arange(24))
    np.testing.assert_allclose(np.asarray(got)[0, 0, :20], PLACE[0, :20] + 1)
    np.testing.assert_allclose(np.asarray(got)[1, 2], np.arange(24) + 1)


def test_the_gradient_of_occupancy():
    """sum over t of g_t (t - j) exp((t - j) log_beta_j)."""
    g = np.random.default_rng(1).normal(size=(2, 3, 24)) * (DOC >= 0)[:, None]

    def total(x):
        return (losses.occupancy(x, jnp.asarray(DOC), jnp.arange(24), 7) * g).sum()

    got = jax.grad(total)(jnp.asarray(rates(), jnp.float32))
    age = np.maximum(np.arange(24)[:, None] - np.arange(24), 0)
    terms = age * np.exp(age * rates()[:, :, None]) * dense.visible(DOC)[:, None]
    np.testing.assert_allclose(got, np.einsum("bkt,bktj->bkj", g, terms), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("heads", [1, 3])
def test_capacity(heads):
    """Mean of the positive hinges alone; padding counts for nothing."""
    alive = dense.occupancy(rates(), DOC)
    alive = alive if heads == 1 else alive.sum(axis=1, keepdims=True)
    valid = jnp.asarray(DOC >= 0)[:, None]
    got = losses.capacity(*losses.hinge(jnp.asarray(alive), jnp.asarray(PLACE)[:, None] + 1, 2.0, heads, valid))
    np.testing.assert_allclose(got, dense.capacity(alive, PLACE[:, None], DOC[:, None], 2.0, heads), rtol=1e-5)


def test_capacity_of_what_fits_is_zero_and_never_nan():
    """No positive entry: a mean over nothing."""
    nothing = losses.hinge(jnp.ones((2, 4)), jnp.full((2, 4), 50), 8.0, 1, jnp.ones((2, 4), bool))
    assert float(losses.capacity(*nothing)) == 0.0


def test_the_hinge_never_exceeds_one():
    """Everything alive is exactly 1."""
    age = jnp.arange(1, 40)
    total, positive = losses.hinge(age * 3.0, age, 8.0, 3, age > 0)
    np.testing.assert_allclose(total / positive, 1.0, rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 7, 200])
def test_divergence_in_blocks(rows, monkeypatch):
    """KL and cross-entropies row by row against log-softmax in float64; blocks do not change them."""
    monkeypatch.setattr(losses, "ROWS", rows)
    params, rng = tiny.model().params, np.random.default_rng(0)
    teacher, student = (rng.normal(size=(7, tiny.CFG.dim)).astype(np.float32) for _ in range(2))
    target = rng.integers(0, tiny.CFG.vocab_size, 7)
    got = losses.divergence(tiny.CFG, params, jnp.asarray(teacher), jnp.asarray(student), jnp.asarray(target))
    head = np.asarray(params["head"] if "head" in params else params["embed"].T, np.float64)

    def logs(h):
        z = h @ head
        return z - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)) - z.max(-1, keepdims=True)

    t, s = logs(teacher), logs(student)
    want = (np.exp(t) * (t - s)).sum(-1), -s[np.arange(7), target], -t[np.arange(7), target]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_weighted_mean_ignores_what_has_no_weight():
    """NaN times zero is NaN."""
    x, w = jnp.asarray([1.0, jnp.nan, 3.0]), jnp.asarray([1.0, 0.0, 3.0])
    assert float(losses.weighted_mean(x, w)) == 2.5 and float(losses.weighted_mean(x, w * 0)) == 0.0
