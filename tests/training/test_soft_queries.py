"""The training step of soft tokens, on the tiny random model."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nexus import probes
from nexus.training import soft_queries
from nexus.training.soft_queries import Batch, State
from tests import oracle, tiny

PROMPTS, RESPONSES = tiny.prompts(20, 13), tiny.prompts(4, 4, seed=1)


def batch() -> Batch:
    def padded(rows, width):
        out = np.zeros((2, width), np.int32)
        for row, ids in zip(out, rows, strict=True):
            row[: len(ids)] = ids
        return jnp.asarray(out), jnp.asarray([len(ids) for ids in rows], jnp.int32)

    return Batch(*padded(PROMPTS, 24), *padded(RESPONSES, 6))


@functools.cache
def loss():
    model = tiny.model()
    return jax.jit(lambda rows: soft_queries.loss(model.config, model.params, rows, batch()))


def test_the_target_is_the_attention_of_the_response():
    """Per layer and query head, mean over the response's rows, the prompt's columns only; padding does not count."""
    model, b = tiny.model(), batch()
    prompt = soft_queries.read(model.config, model.params, b.prompt, b.prompt_length)
    got = soft_queries.looked_at(model.config, model.params, prompt, b.response, b.response_length)
    for i, (text, answer) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        row = tiny.stream(oracle.Rules(score=None, budget=0))
        row.step(text + answer)
        at, q_pos = np.arange(row.seen), np.arange(len(text), row.seen)
        for layer, head in np.ndindex(tiny.CFG.num_layers, tiny.CFG.num_kv_heads):
            A = oracle.probabilities(row.queries[layer][head][:, q_pos], q_pos, row.keys(layer, head, at), at)
            np.testing.assert_allclose(got[layer, i, head, :, : len(text)], A[..., : len(text)].mean(axis=1), atol=1e-5)
        assert (np.asarray(got[:, i, :, :, len(text) :]) == 0).all()


def test_soft_tokens_that_are_the_response_have_no_loss():
    """Conformance 5: and others have one."""
    model = tiny.model()
    b = jax.tree.map(lambda x: x[:1], batch())
    rows = model.params["embed"][jnp.asarray(RESPONSES[0])]
    assert float(soft_queries.loss(model.config, model.params, rows, b)) < 1e-12
    assert float(soft_queries.loss(model.config, model.params, rows[::-1] * 2, b)) > 1e-6


def test_every_row_has_a_gradient_that_is_the_slope():
    """Conformance 4: a row that no gradient reaches stays untrained; the model has none by construction."""
    rows = probes.init(tiny.model().params["embed"], 3)
    gradient = jax.grad(lambda r: loss()(r))(rows)
    assert (np.abs(gradient).sum(axis=1) > 0).all()
    direction = gradient / jnp.linalg.norm(gradient)
    step = 1e-2
    slope = (loss()(rows + step * direction) - loss()(rows - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, jnp.linalg.norm(gradient), rtol=0.05)


def test_the_loss_goes_down():
    """Only the rows move."""
    model, optimizer = tiny.model(), optax.adam(3e-2)
    step = jax.jit(soft_queries.make_step(model.config, optimizer))
    rows = probes.init(model.params["embed"], 3)
    state, losses = State(rows, optimizer.init(rows)), []
    for _ in range(30):
        state, value = step(model.params, state, batch())
        losses.append(float(value))
    assert losses[-1] < 0.8 * losses[0]
