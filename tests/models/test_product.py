"""Products with stored matrices, and the model type `mixed` that is made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nexus
from nexus import methods
from nexus.generate import Session, Settings
from nexus.models import product, transformer
from nexus.models.load import load_model
from tests.models import dense


def pair(dtype):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 5, 48)).astype(np.float32), rng.normal(size=(48, 40)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(w, dtype)


def rounded(x):
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


def tupled(w):
    """A matrix the way one of a tuple comes to a layer, with another one before it."""
    return product.OfLayer((jnp.zeros_like(w), w), jnp.int32(1))


def test_large_matrices_are_a_tuple_on_cpu_and_small_ones_a_stack():
    large = jnp.arange(2 * 128 * 160, dtype=jnp.float32).reshape(2, 128, 160)
    kept = product.stored(large)
    assert isinstance(kept, tuple) and [w.shape for w in kept] == [(128, 160)] * 2
    np.testing.assert_array_equal(product.stacked(kept), large)
    small = large[:, :16, :16]
    assert product.stored(small) is small and product.stacked(small) is small
    scanned, picked = product.split({"norm": small[0], "wo": small, "wqkv": kept})
    assert set(scanned) == {"norm", "wo"} and picked == {"wqkv": kept}
    np.testing.assert_array_equal(product.of_layer({"wqkv": kept}, -1)["wqkv"], large[1])


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_layers_own_matrix_is_taken(rows, dtype):
    x, w = pair(dtype)
    x, every = x[0, :rows], (w, 2 * w, -w)
    take = jax.jit(lambda layer: product.product(x, product.OfLayer(every, layer)))
    for layer, factor in enumerate((1, 2, -1)):
        expected = factor * ((rounded(x) if dtype == jnp.bfloat16 else np.asarray(x)) @ np.asarray(w, np.float64))
        np.testing.assert_allclose(take(jnp.int32(layer)), expected, atol=1e-5)


@pytest.mark.parametrize("keep", [tupled, lambda w: w])
def test_mixed_product_rounds_its_inputs_and_nothing_else(keep):
    x, w = pair(jnp.bfloat16)
    y = product.product(x, keep(w))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(w), atol=1e-5)
    assert np.abs(np.asarray(y) - np.asarray(x, np.float64) @ rounded(w)).max() > 1e-3  # the check sees a rounding


def test_float32_is_the_plain_product_with_both_gradients():
    x, w = pair(jnp.float32)
    np.testing.assert_array_equal(product.product(x, w), x @ w)
    ours = jax.grad(lambda x, w: jnp.sin(product.product(x, w)).sum(), argnums=(0, 1))(x, w)
    plain = jax.grad(lambda x, w: jnp.sin(x @ w).sum(), argnums=(0, 1))(x, w)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keep", [tupled, lambda w: w])
def test_gradients_reach_the_input_and_a_frozen_matrix_says_that_it_has_none(keep):
    x, w = pair(jnp.bfloat16)
    loss = lambda x, w: (product.product(x, keep(w)) * jnp.arange(40.0)).sum()  # noqa: E731
    by_x, by_w = jax.grad(loss, argnums=(0, 1))(x, w)
    np.testing.assert_allclose(by_x, np.broadcast_to(np.arange(40.0) @ rounded(w).T, x.shape), rtol=1e-5, atol=1e-4)
    assert np.isnan(np.asarray(by_w, np.float32)).all()


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_a_scan_over_layers_is_the_same_with_tuples_and_with_stacks(dtype, monkeypatch):
    """Hidden states and their gradient, through the model with and without rematerialisation."""
    model = load_model("tiny-llama", dtype=dtype)
    cfg, stacks = model.config, model.params
    monkeypatch.setattr(product, "SMALL", 0)
    blocks = {name: product.stored(w) if w.ndim == 3 else w for name, w in stacks["blocks"].items()}
    assert {name for name, w in blocks.items() if isinstance(w, tuple)} == {"wqkv", "wo", "w_gate_up", "w_down"}
    attend = lambda layer, state, q, k, v, x: (q + k[:, :, None] * v[:, :, None], state)  # noqa: E731
    x = jax.random.normal(jax.random.key(0), (2, 5, cfg.dim))

    def run(params, remat):
        loss = lambda x: jnp.sin(transformer.forward(cfg, params, x, attend, (), remat=remat)[0]).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(x)

    for remat in (False, True):
        for a, b in zip(run(stacks, remat), run(stacks | {"blocks": blocks}, remat), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", dense.NAMES)
def test_mixed_is_nearer_to_float32_than_bfloat16_is(name):
    """Every family; what is not a matrix of a layer stays in float32."""
    with np.load(dense.directory(name) / "logits.npz") as expected:
        off = {}
        for dtype in ("mixed", "bfloat16"):
            model = load_model(dense.directory(name), dtype=dtype)
            logits = dense.all_logits(model.config, model.params, expected["tokens"])
            off[dtype] = np.abs(logits - expected["logits"]).mean() / expected["logits"].std()
    mixed = load_model(dense.directory(name), dtype="mixed").params
    matrices = {key for key, leaf in mixed["blocks"].items() if leaf.dtype == jnp.bfloat16}
    assert matrices == {"wqkv", "wo", "w_gate_up", "w_down"}
    assert all(leaf.dtype == jnp.float32 for key, leaf in mixed["blocks"].items() if key not in matrices)
    assert mixed["embed"].dtype == jnp.float32
    assert 0 < off["mixed"] < off["bfloat16"] < 0.05


@pytest.mark.parametrize("name", ["snapkv", "laprox", "criticalkv", "counter_causal", "kvzip"])
def test_mixed_model_runs_methods_that_use_its_matrices(name):
    """A budget as large as the prompt gives the full cache's tokens; the cache itself is float32."""
    lm = nexus.load("tiny-llama", dtype="mixed")
    prompt = "a long story about a short river " * 5
    full = lm.generate(prompt, method="full", max_new_tokens=8).tokens
    assert lm.generate(prompt, method=name, budget=512, max_new_tokens=8).tokens == full
    session = Session(lm.model, methods.build(name, budget=64), Settings(), 1)
    assert session.buffer.k.dtype == jnp.float32
