"""Attention of training against the dense form, values and gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.training import attention
from tests.training import dense

B, K, G, T, H = 2, 2, 3, 24, 4
DOC = np.array([[0] * 9 + [1] * 11 + [-1] * 4, [0] * 24])


def drawn(seed: int = 0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(B, K, G, T, H)), rng.normal(size=(B, K, T, H)), rng.normal(size=(B, K, T, H))
    return q, k, v, -rng.uniform(0.001, 0.8, (B, K, T))


def as_float32(*arrays):
    return [jnp.asarray(x, jnp.float32) for x in arrays]


@pytest.mark.parametrize("block", [1, 5, 8, 24, None])
@pytest.mark.parametrize("fading", [True, False])
def test_blocks_are_the_dense_form(block, fading):
    """In blocks that divide the row and that do not; documents do not see each other, padding is never NaN."""
    q, k, v, beta = drawn()
    got = attention.gated_attention(
        *as_float32(q, k, v), jnp.asarray(DOC), attention.Fading(jnp.asarray(beta)) if fading else None, block
    )
    want = dense.attention(q, k, v, DOC, beta if fading else None)
    real = (DOC >= 0)[:, None, None, :, None]
    np.testing.assert_allclose(np.where(real, got, 0), np.where(real, want, 0), atol=2e-5)
    assert np.isfinite(got).all()


def test_no_fading_is_plain_attention():
    """beta = 1."""
    q, k, v, beta = drawn()
    args = (*as_float32(q, k, v), jnp.asarray(DOC))
    plain, gated = (attention.gated_attention(*args, x) for x in (None, attention.Fading(jnp.zeros(beta.shape))))
    np.testing.assert_allclose(gated, plain, atol=1e-6)


@pytest.mark.parametrize("kept", [2048, 8])
def test_the_gradient_of_the_rates(kept, monkeypatch):
    """Against finite differences of the dense form, with and without computing blocks again."""
    monkeypatch.setattr(attention, "KEPT", kept)
    q, k, v, beta = drawn(1)
    weight = np.random.default_rng(2).normal(size=(B, K, G, T, H)) * (DOC >= 0)[:, None, None, :, None]

    def loss(x):
        return (
            attention.gated_attention(*as_float32(q, k, v), jnp.asarray(DOC), attention.Fading(x), 8) * weight
        ).sum()

    got = np.asarray(jax.grad(loss)(jnp.asarray(beta, jnp.float32)))
    for b, head, t in [(0, 0, 0), (0, 1, 12), (1, 0, 5), (1, 1, 20)]:
        step = np.zeros_like(beta)
        step[b, head, t] = 1e-5
        high, low = ((dense.attention(q, k, v, DOC, beta + sign * step) * weight).sum() for sign in (1, -1))
        np.testing.assert_allclose(got[b, head, t], (high - low) / 2e-5, rtol=2e-3, atol=2e-4)


def test_no_square_array_in_a_long_row():
    """[T,T] for T above a block would be the memory of a quadratic method; the compiled program is asked."""
    T = 4096
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1, 1, 1, T, 4), (1, 1, T, 4), (1, 1, T, 4), (1, 1, T))]
    doc = jnp.zeros((1, T), jnp.int32)

    def loss(q, k, v, beta):
        return attention.gated_attention(q, k, v, doc, attention.Fading(beta)).sum()

    peak = jax.jit(jax.grad(loss, 3)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert peak < T * T * 4 * 0.75
