"""The first stage: targets against a dense oracle, and that gates learn them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nexus import gates, rope
from nexus.gates import GateConfig
from nexus.models import transformer
from nexus.training import attention, regression
from nexus.training.retention import Batch, Recipe, State
from tests import tiny
from tests.training import dense
from tests.training.test_attention import DOC, as_float32, drawn

CFG, SHAPE = tiny.CFG, GateConfig(width=8, bias=1.0)
RECIPE = Recipe(sinks=2, regress_age=16)
T = 24


@pytest.fixture
def soon(monkeypatch):
    """Short documents count."""
    monkeypatch.setattr(regression, "LATER", 3)


def batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    doc = np.array([[0] * 13 + [1] * 9 + [-1] * 2, [0] * T])
    place = np.array([[*range(13), *range(9), 0, 0], [*range(T)]])
    tokens = rng.integers(0, CFG.vocab_size, (2, T)).astype(np.int32)
    return Batch(*map(jnp.asarray, (tokens, doc, place, np.zeros((2, T), bool), np.zeros((2, T), bool))))


def dense_probabilities(q, k, doc):
    """[B,K,G,T,T] float64, 0 where nothing is seen."""
    z = np.einsum("bkgth,bksh->bkgts", np.asarray(q, np.float64), np.asarray(k, np.float64)) / np.sqrt(q.shape[-1])
    seen = dense.visible(doc)[:, None, None]
    e = np.where(seen, np.exp(z - z.max()), 0.0)
    return e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)


@pytest.mark.parametrize("block", [1, 5, 8, None])
def test_attention_received_is_the_dense_sum(block):
    """By later queries of the document alone: a token's attention on itself says nothing about its future."""
    q, k, _, _ = drawn()
    got = attention.received(*as_float32(q, k), jnp.asarray(DOC), block)
    p = dense_probabilities(q, k, DOC) * np.tril(np.ones((q.shape[3],) * 2), -1)
    np.testing.assert_allclose(np.where((DOC >= 0)[:, None], got, 0), p.sum(axis=(2, 3)), atol=2e-5)


def test_what_uniform_attention_would_give():
    b = batch()
    doc, place = np.asarray(b.doc), np.asarray(b.place)
    uniform, later = regression.expected(b.doc, b.place)
    for row, i in [(0, 0), (0, 5), (0, 12), (0, 13), (0, 21), (1, 3)]:
        after = [t for t in range(i + 1, T) if doc[row, t] == doc[row, i]]
        assert int(later[row, i]) == len(after)
        np.testing.assert_allclose(uniform[row, i], sum(1 / (place[row, t] + 1) for t in after), rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_the_equation(soon):
    """Every layer, head and token that counts, in float64 from the model's own attention."""
    b, trained = batch(), gates.init(CFG, SHAPE, jax.random.key(0))
    got, _ = regression.loss_fn(CFG, SHAPE, RECIPE, tiny.model().params, b, trained)
    doc, place = np.asarray(b.doc), np.asarray(b.place)
    uniform, later = (np.asarray(x) for x in regression.expected(b.doc, b.place))
    counts = (doc >= 0) & (later >= 3) & (place >= RECIPE.sinks)
    freq = jnp.asarray(rope.inv_freq(CFG.rope, CFG.head_dim))
    cos, sin = (x[:, None] for x in rope.cos_sin(b.place, freq))
    layers, total = gates.by_layer(trained, CFG.num_layers), []

    def attend(layer, state, q, k, v, x):
        q, k = rope.rotate(q, cos[:, :, None], sin[:, :, None]), rope.rotate(k, cos, sin)
        rates = gates.log_beta(SHAPE, jax.tree.map(lambda w: w[layer], layers), x)
        jax.debug.callback(lambda *a: total.append(a), q, k, rates, ordered=True)
        return attention.gated_attention(q, k, v, b.doc, None), state

    transformer.forward(CFG, tiny.model().params, b.tokens, attend, 0)
    jax.effects_barrier()
    off = 0.0
    for q, k, rates in total:
        p = dense_probabilities(q, k, doc) * np.tril(np.ones((T, T)), -1)
        share = p.sum(axis=(2, 3)) / np.maximum(CFG.num_groups * uniform[:, None], 1e-6)
        target = np.clip(np.log(share + regression.EPS), -regression.FLOOR, 0)
        d = np.abs(RECIPE.regress_age * np.asarray(rates, np.float64) - target)
        off += np.where(counts[:, None], np.where(d <= 1, d**2 / 2, d - 0.5), 0).sum()
    np.testing.assert_allclose(got, off / (CFG.num_layers * CFG.num_kv_heads * counts.sum()), rtol=1e-4)


def test_gates_learn_what_gets_attention(soon):
    """The loss falls, and only the gates move."""
    trained = gates.init(CFG, SHAPE, jax.random.key(0))
    optimizer = optax.adam(3e-2)
    step = jax.jit(regression.make_step(CFG, SHAPE, RECIPE, optimizer))
    state = State(jnp.zeros((), jnp.int32), trained, optimizer.init(trained), jax.random.key_data(jax.random.key(1)))
    losses = []
    for _ in range(60):
        state, numbers = step(tiny.model().params, state, batch())
        losses.append(float(numbers["loss"]))
    assert losses[-1] < 0.6 * losses[0] and int(state.step) == 60


def test_no_gradient_through_the_model(soon):
    """A backward pass through the layers would triple the price of a stage that needs none: with integer weights for
    the model (which have no gradient) the gradient of the gates is the same."""
    trained = gates.init(CFG, SHAPE, jax.random.key(0))
    fn = functools.partial(regression.loss_fn, CFG, SHAPE, RECIPE)
    grads = jax.grad(lambda g: fn(tiny.model().params, batch(), g)[0])(trained)
    text = str(jax.make_jaxpr(jax.grad(lambda g: fn(tiny.model().params, batch(), g)[0]))(trained))
    assert all(np.isfinite(x).all() and np.abs(x).max() > 0 for x in jax.tree.leaves(grads))
    assert text.count("reverse=True") <= 4  # the two running minima, and the scan of the gates' own gradients
