"""What the calibration of retrieval heads looks at: one pass over a prompt and its answer with full attention.

    mass         attention of the rows that predict the answer on the needle, per query head
    layer_error  how far a layer's attention output moves when it reads only what the listed heads would keep

CompressKV, Lin et al., arXiv 2606.24467, after the authors' code; their prompt ends with "Answer:", ours goes on with
the beginning of the answer, so that small models copy. Attention goes in blocks of query rows; only the rows
that predict the answer, and the window at the end of the prompt, are kept as probabilities over all columns.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nexus import rope
from nexus.models import transformer
from nexus.models.config import ModelConfig

BLOCK = 128  # query rows whose logits exist at once
WINDOW, KERNEL, EPS = 8, 5, 1e-5
MASKED = -1e30


class Read(NamedTuple):
    """A prompt with its answer: tokens [S] int32 (a multiple of BLOCK), and where things stand in it."""

    tokens: jax.Array
    rows: jax.Array  # [R] int32, positions that predict the answer's tokens, -1 behind them
    prompt: jax.Array  # [] int32, tokens of the prompt
    needle: jax.Array  # [2] int32, begin and end


@functools.partial(jax.jit, static_argnums=0)
def mass(cfg: ModelConfig, params: Any, read: Read) -> jax.Array:
    """[L,N,R] float32: sum over the needle of each head's attention, 0 for rows that are none."""
    at = jnp.arange(read.tokens.shape[0])
    inside = (at >= read.needle[0]) & (at < read.needle[1])

    def look(layer, q, k, v):
        p = _probabilities(q[:, :, jnp.maximum(read.rows, 0)], k, read.rows)  # [K,G,R,S]
        return jnp.where(inside, p, 0.0).sum(axis=-1).reshape(cfg.num_heads, -1)

    return _pass(cfg, params, read, look, (cfg.num_heads, read.rows.shape[0]))


@functools.partial(jax.jit, static_argnums=(0, 4))
def layer_error(cfg: ModelConfig, params: Any, read: Read, heads: jax.Array, kept: int) -> jax.Array:
    """[L] float32: sum over the answer's rows of norm(cut - full) / (norm(full) + eps), after the output projection.

    heads: [L,J]. kept: static; entries of the prompt that the layer reads, the window of 8 included. The hidden stream
    stays on full attention, so layers do not disturb each other.
    """
    S = read.tokens.shape[0]
    at = jnp.arange(S)
    window = read.prompt - WINDOW + jnp.arange(WINDOW)
    context = at < window[0]
    wo = transformer.output_projection(cfg, params)  # [L,K,G,H,D]
    G = cfg.num_groups

    def look(layer, q, k, v):
        A = _probabilities(q[:, :, jnp.maximum(window, 0)], k, window).sum(axis=2)  # [K,G,S]
        A = jnp.where(context, A, 0.0)[heads[layer] // G, heads[layer] % G]
        half = KERNEL // 2
        wide = jnp.pad(A, ((0, 0), (half, half)))
        score = jnp.stack([wide[:, i : i + S] for i in range(KERNEL)]).sum(axis=0).mean(axis=0)
        _, best = lax.top_k(jnp.where(context, score, -1.0), kept - WINDOW)
        keep = jnp.zeros(S, bool).at[best].set(True) & context | (at >= window[0])
        rows = q[:, :, jnp.maximum(read.rows, 0)]
        outs = [
            jnp.einsum("kgrs,ksh,kghd->rd", _probabilities(rows, k, read.rows, only), v, wo[layer])
            for only in (None, keep)
        ]
        off, whole = (jnp.linalg.norm(x.astype(jnp.float32), axis=-1) for x in (outs[1] - outs[0], outs[0]))
        return jnp.where(read.rows >= 0, off / (whole + EPS), 0.0).sum()

    return _pass(cfg, params, read, look, ())


def head_scores(prompt: np.ndarray, needle: tuple[int, int], answer: list[int], masses: np.ndarray) -> np.ndarray:
    """[L,N]: sum over the answer's tokens y of (times y stands in the needle) * mass of the row that predicts y.

    A token that occurs m times in the needle adds m times, as the authors' loop over the needle does. masses [L,N,R].
    """
    times = np.array([(np.asarray(prompt[needle[0] : needle[1]]) == y).sum() for y in answer])
    return (masses[..., : len(answer)] * times).sum(axis=-1)


def _probabilities(q: jax.Array, k: jax.Array, rows: jax.Array, only: jax.Array | None = None) -> jax.Array:
    """Softmax of scaled rows q [K,G,R,H] at positions rows [R] over columns k [K,S,H]; 0 for rows below 0."""
    mask = jnp.arange(k.shape[1]) <= rows[:, None]
    mask = mask if only is None else mask & only
    z = jnp.where(mask, jnp.einsum("kgrh,ksh->kgrs", q, k, preferred_element_type=jnp.float32), MASKED)
    return jnp.where(mask, jax.nn.softmax(z, axis=-1), 0.0)


def _pass(cfg: ModelConfig, params: Any, read: Read, look: Any, shape: tuple[int, ...]) -> jax.Array:
    """Runs the model; look(layer, q [K,G,S,H] scaled, k, v [K,S,H]) -> `shape` of every layer, stacked [L,...]."""
    S = read.tokens.shape[0]
    cos, sin = rope.cos_sin(jnp.arange(S), rope.inv_freq(cfg.rope, cfg.head_dim))

    def attend(layer, found, q, k, v, x):
        q = rope.rotate(q[0], cos, sin) / math.sqrt(cfg.head_dim)
        k, v = rope.rotate(k[0], cos, sin), v[0]

        def block(i):
            rows = i * BLOCK + jnp.arange(BLOCK)
            part = lax.dynamic_slice_in_dim(q, i * BLOCK, BLOCK, axis=2)
            return jnp.einsum("kgrs,ksh->kgrh", _probabilities(part, k, rows), v)

        out = jnp.moveaxis(lax.map(block, jnp.arange(S // BLOCK)), 0, 2)  # [K,G,S/BLOCK,BLOCK,H]
        found = lax.dynamic_update_index_in_dim(found, look(layer, q, k, v), layer, 0)
        return out.reshape(1, *q.shape).astype(v.dtype), found

    start = jnp.zeros((cfg.num_layers, *shape), jnp.float32)
    return transformer.forward(cfg, params, read.tokens[None], attend, start)[1]
