"""One decoder for every supported family: pre-norm blocks with grouped-query attention and a gated feed-forward.

The block knows no cache: it hands q, k, v and its normed input to an injected attend function, which rotates, stores
and attends as it likes. Dense training, gated training and streaming decode are three such functions.

Parameters, stacked over layers and scanned; every matrix is [in, out], so that `x @ w` is one plain product:
    embed [V,D]   final_norm [D]   head [D,V] (untied models only)
    blocks: attn_norm [L,D]  wqkv [L,D,(N+2K)*H]  wo [L,N*H,D]  ffn_norm [L,D]  w_gate_up [L,D,2F]  w_down [L,F,D]
            bqkv [L,(N+2K)*H] (qkv_bias)   q_norm k_norm [L,H] (qk_norm)
Query head n belongs to kv head n // G. On CPU large matrices are tuples of L arrays: nexus/models/product.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nexus.models import product as matrices
from nexus.models.config import ModelConfig
from nexus.models.product import OfLayer, product

Params = dict[str, Any]
BlockAttendFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""(q [B,K,G,T,H], k [B,K,T,H], v [B,K,T,H], x [B,T,D]) -> (out [B,K,G,T,H], extra); q and k are not rotated yet."""
AttendFn = Callable[[jax.Array, Any, jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""(layer, state, q, k, v, x) -> (out, state): a BlockAttendFn that is told its layer (int32) and threads a state.

Where `forward` is asked for it, it also gets `entering` [B,T,D]: what came into the layer, before its norm."""


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm over the last axis, computed in float32; same dtype as x."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    weight = weight.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
    return (wide * scale * weight).astype(x.dtype)


class Block(nn.Module):
    """One layer: x [B,T,D] -> (x [B,T,D], whatever the attend function returned beside its output)."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, attend_fn: BlockAttendFn) -> tuple[jax.Array, Any]:
        cfg = self.cfg
        h = rms_norm(x, self._norm("attn_norm", cfg.dim), cfg.rms_eps)
        q, k, v = self._project(h)
        out, extra = attend_fn(q, k, v, h)
        width = cfg.num_heads * cfg.head_dim
        out = jnp.moveaxis(out, 3, 1).reshape(*x.shape[:2], width).astype(x.dtype)
        x = x + product(out, self._matrix("wo", width, cfg.dim))
        h = rms_norm(x, self._norm("ffn_norm", cfg.dim), cfg.rms_eps)
        gate, up = jnp.split(product(h, self._matrix("w_gate_up", cfg.dim, 2 * cfg.ffn_dim)), 2, axis=-1)
        x = x + product(nn.silu(gate) * up, self._matrix("w_down", cfg.ffn_dim, cfg.dim))
        return x, extra

    def _project(self, h: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """h [B,T,D] -> q [B,K,G,T,H], k and v [B,K,T,H]."""
        cfg = self.cfg
        B, T, _ = h.shape
        K, G, H = cfg.num_kv_heads, cfg.num_groups, cfg.head_dim
        columns = (K * G + 2 * K) * H
        qkv = product(h, self._matrix("wqkv", cfg.dim, columns))
        if cfg.qkv_bias:
            qkv = qkv + self.param("bqkv", nn.initializers.normal(0.1), (columns,), self._dtype).reshape(1, 1, -1)
        q, k, v = jnp.split(qkv, [K * G * H, (K * G + K) * H], axis=-1)
        q, k, v = q.reshape(B, T, K, G, H), k.reshape(B, T, K, H), v.reshape(B, T, K, H)
        if cfg.qk_norm:
            q = rms_norm(q, self._norm("q_norm", H), cfg.rms_eps)
            k = rms_norm(k, self._norm("k_norm", H), cfg.rms_eps)
        return jnp.moveaxis(q, 1, 3), jnp.moveaxis(k, 1, 2), jnp.moveaxis(v, 1, 2)

    @property
    def _dtype(self) -> jnp.dtype:
        return jnp.dtype(self.cfg.activations)

    def _matrix(self, name: str, rows: int, columns: int) -> jax.Array | OfLayer:
        """For `product`."""
        return self.param(name, nn.initializers.lecun_normal(), (rows, columns), jnp.dtype(self.cfg.matrices))

    def _norm(self, name: str, size: int) -> jax.Array:
        return self.param(name, nn.initializers.ones, (size,), self._dtype)


def forward(
    cfg: ModelConfig, params: Params, tokens: jax.Array, attend_fn: Callable[..., tuple[jax.Array, Any]], state: Any,
    *, remat: bool = False, entering: bool = False,
) -> tuple[jax.Array, Any]:  # fmt: skip
    """tokens int32 [B,T], or embeddings [B,T,D] -> (hidden [B,T,D] after the final norm, state after the last layer).

    An id beyond the vocabulary gives NaN, not the last row of the embedding. remat: a backward pass keeps what enters a
    layer and computes the layer again. attend_fn: an AttendFn, called with `entering` as well where that is asked for.
    """
    block = Block(cfg)
    scanned, picked = matrices.split(params["blocks"])

    def layer_step(carry, inputs):
        x, state = carry
        layer, weights = inputs
        weights = weights | {name: OfLayer(every, layer) for name, every in picked.items()}
        more = {"entering": x} if entering else {}
        return block.apply({"params": weights}, x, functools.partial(attend_fn, layer, state, **more)), None

    carry = (tokens if tokens.ndim == 3 else jnp.take(params["embed"], tokens, axis=0), state)
    layers = jnp.arange(cfg.num_layers, dtype=jnp.int32)
    (x, state), _ = jax.lax.scan(jax.checkpoint(layer_step) if remat else layer_step, carry, (layers, scanned))
    return rms_norm(x, params["final_norm"], cfg.rms_eps), state


def logits(cfg: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Next-token logits float32 [..., V] of hidden [..., D]; pass only the positions that are wanted."""
    if cfg.tied_embeddings:
        return jnp.einsum("...d,vd->...v", hidden, params["embed"], preferred_element_type=jnp.float32)
    return jnp.einsum("...d,dv->...v", hidden, params["head"], preferred_element_type=jnp.float32)


def init_params(cfg: ModelConfig, rng: jax.Array) -> Params:
    """Random parameters in the dtypes of the config."""
    embed_rng, block_rng, head_rng = jax.random.split(rng, 3)
    dtype, scale = jnp.dtype(cfg.activations), cfg.dim**-0.5
    params: Params = {
        "embed": scale * jax.random.normal(embed_rng, (cfg.vocab_size, cfg.dim), dtype),
        "final_norm": jnp.ones((cfg.dim,), dtype),
        "blocks": _init_blocks(cfg, jax.random.split(block_rng, cfg.num_layers)),
    }
    if not cfg.tied_embeddings:
        params["head"] = scale * jax.random.normal(head_rng, (cfg.dim, cfg.vocab_size), dtype)
    return params


def _init_blocks(cfg: ModelConfig, keys: jax.Array) -> Params:
    def one(rng: jax.Array) -> Params:
        x = jnp.zeros((1, 1, cfg.dim), jnp.dtype(cfg.activations))
        return Block(cfg).init(rng, x, lambda q, k, v, h: (q, None))["params"]

    blocks = jax.vmap(one)(keys)
    return {name: matrices.stored(w) if w.ndim == 3 else w for name, w in blocks.items()}


def output_projection(cfg: ModelConfig, params: Params) -> jax.Array:
    """The output projection by head, [L,K,G,H,D], of stacked parameters: what a head adds to the residual stream."""
    wo = matrices.stacked(params["blocks"]["wo"])
    return wo.reshape(cfg.num_layers, cfg.num_kv_heads, cfg.num_groups, cfg.head_dim, cfg.dim)


def param_shapes(cfg: ModelConfig) -> Params:
    """Shapes and dtypes (ShapeDtypeStruct) of all parameters, nothing allocated."""
    return jax.eval_shape(lambda: init_params(cfg, jax.random.key(0)))
