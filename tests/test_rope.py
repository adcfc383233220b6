"""nexus/rope.py against formulas written out in NumPy; the llama3 scaling meets transformers in the model fixtures."""

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import rope

LLAMA31 = rope.Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)


def test_frequencies_fall_from_one_to_theta():
    freq = rope.inv_freq(rope.RopeConfig(theta=10000.0), 8)
    np.testing.assert_allclose(freq, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)
    assert freq.dtype == np.float32


def test_llama3_scaling_keeps_short_waves_and_divides_long_ones():
    """Between the two bands the blend is monotone, so that no frequency jumps over its neighbour."""
    plain = rope.inv_freq(rope.RopeConfig(theta=500000.0), 128)
    scaled = rope.inv_freq(rope.RopeConfig(theta=500000.0, scaling=LLAMA31), 128)
    wavelength = 2 * np.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    np.testing.assert_allclose(scaled[short], plain[short], rtol=1e-6)
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-6)
    between = ~short & ~long
    assert between.any()
    assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))
    assert np.all(np.diff(scaled) < 0)


def test_linear_and_stored_factors_divide():
    plain = rope.inv_freq(rope.RopeConfig(theta=10000.0), 8)
    linear = rope.RopeConfig(theta=10000.0, scaling=rope.LinearScaling(factor=4.0))
    stored = rope.RopeConfig(theta=10000.0, scaling=rope.FactorScaling(factors=(1.0, 2.0, 4.0, 8.0)))
    np.testing.assert_allclose(rope.inv_freq(linear, 8), plain / 4, rtol=1e-6)
    np.testing.assert_allclose(rope.inv_freq(stored, 8), plain / [1, 2, 4, 8], rtol=1e-6)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="head_dim=7"):
        rope.inv_freq(rope.RopeConfig(theta=1e4), 7)
    with pytest.raises(ValueError, match="3, head_dim=8"):
        rope.inv_freq(rope.RopeConfig(theta=1e4, scaling=rope.FactorScaling(factors=(1.0, 1.0, 1.0))), 8)


def test_rotate_pairs_halves():
    """Coordinate i turns with i + H/2; pairing neighbours instead still gives fluent text from a wrong model."""
    x = jnp.asarray([[1.0, 2.0, 3.0, 4.0]])
    freq = np.asarray([np.pi / 2, np.pi], np.float32)
    out = rope.rotate(x, *rope.cos_sin(jnp.asarray([1], jnp.int32), freq))
    np.testing.assert_allclose(out, [[-3.0, -2.0, 1.0, -4.0]], atol=1e-6)


def test_products_depend_on_distance_alone():
    rng = np.random.default_rng(0)
    q, k = jnp.asarray(rng.normal(size=(2, 1, 64)), jnp.float32)
    freq = rope.inv_freq(rope.RopeConfig(theta=10000.0, scaling=LLAMA31), 64)

    def product(at_q, at_k):
        turned = [rope.rotate(x, *rope.cos_sin(jnp.asarray([p], jnp.int32), freq)) for x, p in ((q, at_q), (k, at_k))]
        return float(jnp.sum(turned[0] * turned[1]))

    assert product(105, 100) == pytest.approx(product(5, 0), abs=1e-3)
    assert product(105, 100) != pytest.approx(product(105, 90), abs=1e-1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rotating_back_restores(dtype):
    """Rotate then un-rotate was not the identity (huggingface/transformers#33691)."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 2, 3, 5, 16)), dtype)
    pos = jnp.arange(5, dtype=jnp.int32) + 1000
    cos, sin = rope.cos_sin(pos, rope.inv_freq(rope.RopeConfig(theta=10000.0), 16))
    back = rope.rotate(rope.rotate(x, cos, sin), cos, -sin)
    assert back.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 5e-2
    np.testing.assert_allclose(back.astype(jnp.float32), x.astype(jnp.float32), atol=tolerance)


def test_positions_per_sequence():
    """A batch of sequences at different positions equals each sequence alone."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 4, 5, 8)), jnp.float32)
    pos = jnp.asarray([[0, 1, 2, 3, 4], [70, 71, 72, 73, 74]], jnp.int32)
    freq = rope.inv_freq(rope.RopeConfig(theta=10000.0), 8)
    cos, sin = rope.cos_sin(pos, freq)
    together = rope.rotate(x, cos[:, None, None], sin[:, None, None])
    for row in range(2):
        np.testing.assert_array_equal(together[row], rope.rotate(x[row], *rope.cos_sin(pos[row], freq)))
