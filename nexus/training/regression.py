"""An optional first stage: gates learn to say how much attention a token will get from the tokens after it.

    a_i      = sum_{t > i} sum_g p_g(t, i)  /  sum_{t > i} G / (t + 1)          1 = as much as every token on average
    target_i = clip(log a_i, -FLOOR, 0),      loss = mean over tokens, heads, layers of huber(A log_beta_i - target_i)

The mean runs over tokens with at least LATER tokens of their document after them; p is the plain model's attention, t
counts from the start of the document, and A is an age (`Recipe.regress_age`): a token that will get a hundredth of the
average attention should have a hundredth of its worth left at that age. Own design after "regress log future attention"
in the notes on TRIM-KV (arXiv 2512.03324); the papers train end to end from the start. One forward pass of the model
and none backward: only the gates have gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nexus import gates, rope
from nexus.gates import GateConfig, Gates
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.training.attention import gated_attention, received
from nexus.training.retention import Batch, Recipe, State, moved

FLOOR = 8.0  # nats below the average
LATER = 32  # tokens that must follow for a target to mean something
EPS = 1e-6


def expected(doc: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """([B,T] sum of 1 / (t + 1) over the later tokens of a document, [B,T] int32 how many there are)."""
    T = doc.shape[1]
    share = jnp.where(doc >= 0, 1.0 / (place + 1.0), 0.0)
    through = jnp.cumsum(share, axis=1)
    last = jnp.concatenate([doc[:, 1:] != doc[:, :-1], jnp.ones_like(doc[:, :1], bool)], axis=1)
    end = jax.lax.cummin(jnp.where(last, through, jnp.inf), axis=1, reverse=True)  # running sums never fall
    where = jax.lax.cummin(jnp.where(last, jnp.arange(T), T), axis=1, reverse=True)
    return end - through, where - jnp.arange(T)


def loss_fn(
    cfg: ModelConfig, shape: GateConfig, recipe: Recipe, params: Any, batch: Batch, trained: Gates
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The regression loss of a batch; gradients reach `trained` alone."""
    freq = jnp.asarray(rope.inv_freq(cfg.rope, cfg.head_dim))
    cos, sin = (x[:, None] for x in rope.cos_sin(batch.place, freq))  # [B,1,T,H/2]
    uniform, later = expected(batch.doc, batch.place)
    counts = ((batch.doc >= 0) & (later >= LATER) & (batch.place >= recipe.sinks))[:, None]  # sinks never fade anyway
    layers = gates.by_layer(trained, cfg.num_layers)

    def attend(layer, total, q, k, v, x):
        q, k = rope.rotate(q, cos[:, :, None], sin[:, :, None]), rope.rotate(k, cos, sin)
        share = received(q, k, batch.doc) / jnp.maximum(cfg.num_groups * uniform[:, None], EPS)
        target = jnp.clip(jnp.log(share + EPS), -FLOOR, 0.0)
        beta = gates.log_beta(shape, jax.tree.map(lambda w: w[layer], layers), x)
        off = optax.losses.huber_loss(recipe.regress_age * beta, target)
        return gated_attention(q, k, v, batch.doc, None), total + jnp.where(counts, off, 0.0).sum()

    _, total = transformer.forward(cfg, params, batch.tokens, attend, jnp.zeros((), jnp.float32))
    heads = cfg.num_layers * cfg.num_kv_heads
    loss = total / (heads * jnp.maximum(counts.sum(), 1))
    return loss, {"loss": loss}


def make_step(
    cfg: ModelConfig, shape: GateConfig, recipe: Recipe, optimizer: optax.GradientTransformation
) -> Callable[[Any, State, Batch], tuple[State, dict[str, jax.Array]]]:
    """(params, state, batch) -> (state, numbers), as `retention.make_step`."""

    def step(params: Any, state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        return moved(optimizer, state, functools.partial(loss_fn, cfg, shape, recipe, params, batch))

    return step
