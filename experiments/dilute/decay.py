"""How the attention that a token receives falls with its age, on plain text under full attention.

Of a text of S tokens the queries of the second half look back: each sees every age up to A = S/2 - 4 (the first four
positions, which draw attention whatever their age, are never counted), and

    received[age] = mean over queries t of p(t, t - age)

so every age is averaged over the same queries. With retention gates ("Make Each Token Count", arXiv 2605.09649, and
TRIM-KV, arXiv 2512.03324) the tokens of a (layer, kv head) are sorted into four quarters by their log_beta, and each
quarter's attention stands beside what the gates say of the same tokens, mean of beta^age.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nexus import attention, gates, rope
from nexus import buffer as kv
from nexus.models import transformer
from nexus.models.config import ModelConfig

BLOCK = 128  # query rows whose attention exists at once
SINKS = 4
QUARTERS = 4  # of the tokens, by log_beta: forgotten soonest first
Bins = list[tuple[int, int]]


def ages(length: int) -> int:
    """A: ages 0 ... A-1 are seen by every query of the second half."""
    return length // 2 - SINKS


@functools.partial(jax.jit, static_argnums=0)
def profile(cfg: ModelConfig, params: Any, tokens: jax.Array, weights: Any) -> dict[str, jax.Array]:
    """Means by age, float32. tokens: [S] int32, S a multiple of 256. weights: of the gates, [L,...] (or None).

    Returns:
        received [L,K,G,A]. With gates also predicted [L,K,A], mean of beta^age over all tokens, and by quarter
        quarter_received and quarter_predicted [L,K,Q,A].
    """
    S = tokens.shape[0]
    at = jnp.arange(S, dtype=jnp.int32)
    cos, sin = rope.cos_sin(at, rope.inv_freq(cfg.rope, cfg.head_dim))
    mask, live = attention.tail_mask(at[None], at[None], cfg.num_groups), jnp.ones((1, S), bool)

    def attend(layer, found, q, k, v, x):
        folded = attention.fold(rope.rotate(q, cos, sin) * (1 / math.sqrt(cfg.head_dim)))
        k = rope.rotate(k, cos, sin)
        part = attention.chunk_attention(folded, k, v, mask, live, cfg.num_groups)
        rates = None if weights is None else gates.any_log_beta(kv.of_layer(weights, layer), x)[0]
        shape = q.shape[1:4]  # K, G, S
        rows = folded[0].reshape(*shape, -1), part.maximum[0].reshape(shape), part.total[0].reshape(shape)
        found = kv.set_layer(found, layer, _by_age(*rows, k[0], rates))
        return attention.finish(part).reshape(q.shape).astype(v.dtype), found

    return transformer.forward(cfg, params, tokens[None], attend, _nothing(cfg, ages(S), weights is not None))[1]


def _nothing(cfg: ModelConfig, A: int, gated: bool) -> dict[str, jax.Array]:
    L, K = cfg.num_layers, cfg.num_kv_heads
    shapes: dict[str, tuple[int, ...]] = {"received": (L, K, cfg.num_groups, A)}
    if gated:
        shapes |= {"predicted": (L, K, A), "quarter_received": (L, K, QUARTERS, A)}
        shapes |= {"quarter_predicted": (L, K, QUARTERS, A)}
    return {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}


def _by_age(
    q: jax.Array, maximum: jax.Array, total: jax.Array, k: jax.Array, rates: jax.Array | None
) -> dict[str, jax.Array]:
    """One layer's means: q [K,G,S,H] scaled, its softmax maximum and total [K,G,S], k [K,S,H], log_beta [K,S]."""
    S, A = k.shape[1], ages(k.shape[1])
    at, age = jnp.arange(S), jnp.arange(A)
    quarter = None if rates is None else jnp.argsort(jnp.argsort(rates, axis=1), axis=1) * QUARTERS // S

    def block(i):
        first = S // 2 + i * BLOCK
        t = first + jnp.arange(BLOCK)
        of_block = lambda x: lax.dynamic_slice_in_dim(x, first, BLOCK, axis=2)  # noqa: E731
        p = attention.probabilities(
            of_block(q), t, jnp.ones(BLOCK), of_block(maximum), of_block(total), k[:, None], at, jnp.ones(S, bool)
        )  # [K,G,BLOCK,S]
        index = t[:, None] - age  # [BLOCK,A], the key of that age
        aged = p[:, :, jnp.arange(BLOCK)[:, None], index]
        sums = {"received": aged.sum(axis=2)}
        if rates is not None and quarter is not None:
            said = jnp.exp(rates[:, index] * age)  # [K,BLOCK,A]
            mine = quarter[:, index][:, None] == jnp.arange(QUARTERS)[:, None, None]  # [K,Q,BLOCK,A]
            of_quarter = lambda x: jnp.where(mine, x[:, None], 0.0).sum(axis=2)  # noqa: E731
            sums |= {"predicted": said.sum(axis=1), "pairs": mine.sum(axis=2).astype(jnp.float32)}
            sums |= {"quarter_received": of_quarter(aged.mean(axis=1)), "quarter_predicted": of_quarter(said)}
        return sums

    sums = {name: x.sum(axis=0) for name, x in lax.map(block, jnp.arange(S // 2 // BLOCK)).items()}
    pairs = sums.pop("pairs", None)
    count = lambda name: S // 2 if pairs is None or "quarter" not in name else jnp.maximum(pairs, 1.0)  # noqa: E731
    return {name: x / count(name) for name, x in sums.items()}


# --- bins of ages -----------------------------------------------------------------------------------------------------
def bins(length: int, count: int) -> Bins:
    """About `count` ranges [low, high) of ages 1 ... A-1, each longer than the one before by the same factor."""
    edges = np.unique(np.geomspace(1, ages(length), count + 1).round().astype(int))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def binned(x: Any, where: Bins) -> np.ndarray:
    """Means over the bins: [...,A] -> [...,bins] float64."""
    wide = np.asarray(x, np.float64)
    return np.stack([wide[..., low:high].mean(axis=-1) for low, high in where], axis=-1)


def curves(found: dict[str, np.ndarray]) -> dict[str, list]:
    """What is written of a text: received [L][N][bins], predicted [L][K][bins], quarters [Q][bins], mean over heads."""
    received = found["received"]  # [L,K,G,bins]
    out = {"received": received.reshape(received.shape[0], -1, received.shape[-1])}
    out |= {name: x if name == "predicted" else x.mean(axis=(0, 1)) for name, x in found.items() if name != "received"}
    return {name: _short(x) for name, x in out.items()}


def _short(x: np.ndarray) -> list:
    """Four significant digits."""
    return np.vectorize(lambda value: float(f"{value:.4g}"))(x).tolist()
