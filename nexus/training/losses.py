"""Losses of retention training: stay close to the full model, answer right, and fit into the capacity.

    KL    forward KL(teacher || student) over the vocabulary, averaged with weights over positions        (fwkl)
    NTP   cross-entropy of the next token at answer positions                                             (ntp)
    cap   mean over the positive entries of h_t, the hinge on the expected number of entries alive at t

Make Each Token Count, arXiv 2605.09649, one budget for the model:
    S_t = sum over layers, heads and i <= t of beta_i^(t-i),    h_t = max(0, (S_t - M L K) / max((t+1) L K - M L K, 1))
TRIM-KV, arXiv 2512.03324, one budget per head: the same with L = K = 1 for every head.
t counts from the start of the document. Differs from the code: (t + 1) for t in the denominator, so that h <= 1; S_t
is taken at sampled positions; vocabulary rows are computed in blocks, and computed again in the backward pass.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from nexus.models import transformer
from nexus.models.config import ModelConfig

TILE = 64  # positions whose sums over the past are live at a time
ROWS = 128  # positions whose logits are live at a time


def occupancy(log_beta: jax.Array, doc: jax.Array, at: jax.Array, tile: int = TILE) -> jax.Array:
    """S_t of every head at sampled positions: log_beta [B,K,T], doc [B,T], at [J] -> [B,K,J] float32."""
    J, T = at.shape[0], log_beta.shape[2]
    padded = jnp.pad(at, (0, -J % tile))

    @jax.checkpoint
    def sums(t: jax.Array) -> jax.Array:
        age = t[:, None] - jnp.arange(T)  # [tile,T]
        alive = (age >= 0) & (doc[:, t][:, :, None] == doc[:, None])  # [B,tile,T]
        fading = jnp.exp(jnp.maximum(age, 0) * log_beta[:, :, None])  # [B,K,tile,T]
        return jnp.where(alive[:, None], fading, 0.0).sum(axis=-1)

    tiles = lax.map(sums, padded.reshape(-1, tile))  # [n,B,K,tile]
    return jnp.moveaxis(tiles, 0, 2).reshape(*log_beta.shape[:2], -1)[..., :J]


def hinge(held: jax.Array, age: jax.Array, budget: float, heads: int, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum of h, number of positive h) over all entries.

    held: [...,J] expected entries of `heads` heads together. age: [...,J] tokens of the document so far. budget: M.
    valid: [...,J] bool.
    """
    h = (held - budget * heads) / jnp.maximum((age - budget) * heads, 1.0)
    h = jnp.where(valid, jnp.maximum(h, 0.0), 0.0)
    return h.sum(), (h > 0).sum()


def capacity(total: jax.Array, positive: jax.Array) -> jax.Array:
    """Mean of the positive h, 0 where there is none."""
    return total / jnp.maximum(positive, 1)


def divergence(
    cfg: ModelConfig, params: transformer.Params, teacher: jax.Array, student: jax.Array, target: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(KL, cross-entropy of the student, of the teacher) per position.

    teacher, student: hidden states [J,D]; target: [J] int32. Returns [J] float32 each.
    """
    J = target.shape[0]
    rows = min(ROWS, J)
    pad = functools.partial(_pad_rows, count=-J % rows)

    @jax.checkpoint
    def block(x):
        t, s, y = x
        log_t, log_s = (jax.nn.log_softmax(transformer.logits(cfg, params, h)) for h in (t, s))
        kl = (jnp.exp(log_t) * (log_t - log_s)).sum(axis=-1)
        pick = functools.partial(jnp.take_along_axis, indices=y[:, None], axis=-1)
        return kl, -pick(log_s)[:, 0], -pick(log_t)[:, 0]

    blocks = [pad(x).reshape(-1, rows, *x.shape[1:]) for x in (teacher, student, target)]
    return tuple(x.reshape(-1)[:J] for x in lax.map(block, tuple(blocks)))


def _pad_rows(x: jax.Array, count: int) -> jax.Array:
    return jnp.pad(x, ((0, count), *((0, 0),) * (x.ndim - 1)))


def weighted_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    """sum(x w) / sum(w), 0 where no weight is given; entries without weight may hold anything."""
    return jnp.where(weight > 0, x * weight, 0.0).sum() / jnp.maximum(weight.sum(), 1e-9)
