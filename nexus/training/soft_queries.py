"""The training step of Judge Q's soft tokens: a frozen model, and rows that learn to look where its responses look.

Liu et al., arXiv 2509.10798.   a_soft, a_resp = mean over rows of A[row, i], i < P, per layer and query head
                                loss = P * mean (a_soft - a_resp)^2
A is the softmax over all that a row sees; the share of soft or response keys is left out and not renormalised. The
prompt's keys and values do not depend on the rows: they are computed once per step without a gradient, and only Ns +
|response| rows of attention are ever formed, never P x P. Times P (ours): a column is about 1 / P, and the plain mean's
gradients vanish with length. Only the rows have gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from nexus import attention, rope
from nexus.models import transformer
from nexus.models.config import ModelConfig


class Batch(NamedTuple):
    """Prompts and what the model itself answered; right-padded."""

    prompt: jax.Array  # [B,P] int32
    prompt_length: jax.Array  # [B] int32
    response: jax.Array  # [B,R] int32
    response_length: jax.Array  # [B] int32, at least 1


class State(NamedTuple):
    """What a step changes."""

    rows: jax.Array  # [Ns,D] float32
    optimizer: Any


class Prompt(NamedTuple):
    """A prompt as later rows see it."""

    k: jax.Array  # [L,B,K,P,H] rotated
    v: jax.Array
    length: jax.Array  # [B] int32


def _rotated(cfg: ModelConfig, q: jax.Array, k: jax.Array, pos: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q [B,K,G,T,H] rotated and scaled, k [B,K,T,H] rotated; pos [B,T]."""
    cos, sin = (x[:, None] for x in rope.cos_sin(pos, rope.inv_freq(cfg.rope, cfg.head_dim)))
    return rope.rotate(q, cos[:, :, None], sin[:, :, None]) / math.sqrt(cfg.head_dim), rope.rotate(k, cos, sin)


def read(cfg: ModelConfig, params: Any, tokens: jax.Array, length: jax.Array) -> Prompt:
    """Keys and values of prompts [B,P]; attention goes in blocks of rows where P is a multiple of 128."""
    B, P = tokens.shape
    pos = jnp.broadcast_to(jnp.arange(P), (B, P))
    seen = jnp.where(pos < length[:, None], pos, -1)

    def attend(layer, into, q, k, v, x):
        q, k = _rotated(cfg, q, k, pos)
        mask = attention.tail_mask(seen, seen, cfg.num_groups)
        part = attention.chunk_attention(attention.fold(q), k, v, mask, seen >= 0, cfg.num_groups)
        into = jax.tree.map(lambda all_, one: all_.at[layer].set(one), into, (k, v))
        return attention.finish(part).reshape(q.shape).astype(v.dtype), into

    shape = (cfg.num_layers, B, cfg.num_kv_heads, P, cfg.head_dim)
    into = (jnp.zeros(shape, jnp.dtype(cfg.activations)), jnp.zeros(shape, jnp.dtype(cfg.activations)))
    _, (k, v) = transformer.forward(cfg, params, jnp.where(seen >= 0, tokens, 0), attend, into)
    return Prompt(k, v, length)


def looked_at(cfg: ModelConfig, params: Any, prompt: Prompt, tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Mean attention of rows behind a prompt to each of its tokens: [L,B,K,G,P] float32.

    Args:
        tokens: [B,n] int32, or embeddings [B,n,D]. length: [B] int32, rows that count.
    """
    (B, n), P = tokens.shape[:2], prompt.k.shape[3]
    pos = prompt.length[:, None] + jnp.arange(n)
    context = jnp.broadcast_to((jnp.arange(P) < prompt.length[:, None])[:, None], (B, n, P))
    own = jnp.broadcast_to(jnp.tril(jnp.ones((n, n), bool)), (B, n, n))
    mask = jnp.concatenate([context, own], axis=-1)[:, None, None]
    weight = (jnp.arange(n) < length[:, None]) / jnp.maximum(length[:, None], 1)

    def attend(layer, into, q, k, v, x):
        q, k = _rotated(cfg, q, k, pos)
        keys = jnp.concatenate([prompt.k[layer], k], axis=2)
        values = jnp.concatenate([prompt.v[layer], v], axis=2)
        z = jnp.einsum("BKGTH,BKSH->BKGTS", q, keys, preferred_element_type=jnp.float32)
        A = jax.nn.softmax(jnp.where(mask, z, attention.MASKED), axis=-1)
        out = jnp.einsum("BKGTS,BKSH->BKGTH", A.astype(values.dtype), values)
        return out, into.at[layer].set(jnp.einsum("BKGTS,BT->BKGS", A[..., :P], weight))

    into = jnp.zeros((cfg.num_layers, B, cfg.num_kv_heads, cfg.num_groups, P), jnp.float32)
    return transformer.forward(cfg, params, tokens, attend, into)[1]


def loss(cfg: ModelConfig, params: Any, rows: jax.Array, batch: Batch) -> jax.Array:
    """P * mean over layers, query heads and prompt tokens of (a_soft - a_resp)^2, averaged over the batch."""
    B, (Ns, D) = batch.prompt.shape[0], rows.shape
    prompt = jax.lax.stop_gradient(read(cfg, params, batch.prompt, batch.prompt_length))
    target = looked_at(cfg, params, prompt, batch.response, batch.response_length)
    soft = jnp.broadcast_to(rows.astype(jnp.dtype(cfg.activations)), (B, Ns, D))
    got = looked_at(cfg, params, prompt, soft, jnp.full((B,), Ns))
    return ((got - jax.lax.stop_gradient(target)) ** 2).sum(axis=-1).mean()  # P * mean over P is the sum


def make_step(
    cfg: ModelConfig, optimizer: optax.GradientTransformation
) -> Callable[[Any, State, Batch], tuple[State, jax.Array]]:
    """(params, state, batch) -> (state, loss)."""

    def step(params: Any, state: State, batch: Batch) -> tuple[State, jax.Array]:
        value, gradient = jax.value_and_grad(lambda rows: loss(cfg, params, rows, batch))(state.rows)
        change, memory = optimizer.update(gradient, state.optimizer, state.rows)
        return State(optax.apply_updates(state.rows, change), memory), value

    return step
