"""A side pass: the model runs once more against table and tail, and leaves nothing in them.

For scorers that ask the model before an eviction (`Scorer.look`): soft tokens appended to the sequence, a replay of the
context, a pass in which the future predicts the past. Nothing is appended and no position is used up; what a layer
shows of itself is collected by a callback that threads a pytree through the layers. Memory: the keys and values of one
layer of the side tokens, never a row of attention for more than one block of queries.

Only for true positions (keys stored rotated) and methods whose evicted entries leave nothing behind.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nexus import attention, rope
from nexus import buffer as kv
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.shapes import EMPTY

Attend = Callable[[jax.Array, Any, jax.Array, jax.Array, jax.Array], tuple[attention.Partial, Any]]
"""(layer, into, q [B,K,R,H] folded, rotated and scaled, k [B,K,T,H] rotated, v [B,K,T,H]) -> (Partial, into)"""
Collect = Callable[[jax.Array, Any, jax.Array, jax.Array, attention.Partial], Any]
"""(layer, into, q, k, Partial of q over all it sees) -> into"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """What a scorer may run before an eviction."""

    cfg: ModelConfig
    params: Any  # of `decode.with_weights`
    buffer: kv.KVBuffer

    @property
    def weights(self) -> Any:
        """Of `Scorer.weights`, leaves [L,...] (or [1,...])."""
        return self.params["method"]

    def run(self, tokens: jax.Array, pos: jax.Array, attend: Attend, into: Any) -> tuple[jax.Array, Any]:
        """Runs tokens through all layers, with an attention of the caller's.

        Args:
            tokens: [B,T] int32, or embeddings [B,T,D]. pos: [B,T] int32, their positions (EMPTY: padding).
            into: pytree threaded through the layers.
        Returns:
            Hidden states [B,T,D] after the final norm, and `into`.
        """

        def fn(layer, into, q, k, v, x):
            out, into = self.attend(q, k, v, pos, lambda *qkv: attend(layer, into, *qkv))
            return out, into

        return transformer.forward(self.cfg, self.params, tokens, fn, into)

    def attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, pos: jax.Array, attend: Callable[..., Any]
    ) -> tuple[jax.Array, Any]:
        """One block's attention: rotates, folds and scales q [B,K,G,T,H], rotates k; output [B,K,G,T,H]."""
        freq = jnp.asarray(rope.inv_freq(self.cfg.rope, self.cfg.head_dim))
        cos, sin = (x[:, None] for x in rope.cos_sin(jnp.maximum(pos, 0), freq))  # [B,1,T,H/2]
        folded = attention.fold(rope.rotate(q, cos[:, :, None], sin[:, :, None]) * (1 / math.sqrt(self.cfg.head_dim)))
        part, into = attend(folded, rope.rotate(k, cos, sin), v)
        return attention.finish(part).reshape(q.shape).astype(v.dtype), into

    def follow(self, tokens: jax.Array, pos: jax.Array, collect: Collect, into: Any) -> tuple[jax.Array, Any]:
        """Runs tokens behind the sequence: each sees all entries and those before it.

        Args:
            tokens: [B,T] int32, or embeddings [B,T,D]. pos: [B,T] int32, increasing from seen on, EMPTY for padding;
                `positions` gives those that come next. More than attention.DIAGONAL tokens should be a multiple of
                it: their own attention then goes in blocks.
        Returns:
            As `run`.
        """
        buf = self.buffer
        groups = buf.layout.num_groups
        stride = buf.layout.budget if buf.layout.dense else None

        def attend(layer, into, q, k, v):
            tail_k, tail_v = kv.of_layer((buf.tail_k, buf.tail_v), layer)
            part = attention.table_attention(q, buf.k, buf.v, kv.segments(buf, layer), stride=stride)
            mask = attention.tail_mask(pos, buf.tail_pos, groups)
            part = attention.merge(part, attention.tail_attention(q, tail_k, tail_v, mask, buf.tail_pos >= 0))
            own = attention.chunk_attention(q, k, v, attention.tail_mask(pos, pos, groups), pos >= 0, groups)
            part = attention.merge(part, own)
            return part, collect(layer, into, q, k, part)

        return self.run(tokens, pos, attend, into)

    def received(self, tokens: jax.Array, pos: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Attention that entries get from tokens behind the sequence: table [B,E,G] and tail [L,B,K,C,G], float32.

        Args:
            tokens, pos: as for `follow`. weight: [B,T] float32, of each token in the sum.
        """
        buf, layout = self.buffer, self.buffer.layout
        (B, C), G = buf.tail_pos.shape, layout.num_groups
        row_pos, row_weight = jnp.tile(pos, (1, G)), jnp.tile(weight, (1, G))

        def collect(layer, into, q, k, part):
            table, tail = into
            queries = attention.Queries(q, row_pos, row_weight, part.maximum, part.total)
            table = attention.add_table_columns(table, queries, buf.k, buf.pos, kv.segments(buf, layer))
            got = attention.tail_columns(queries, kv.of_layer(buf.tail_k, layer), buf.tail_pos, G)
            return table, kv.set_layer(tail, layer, got)

        table = jnp.zeros((B, layout.rows, G), jnp.float32)
        tail = jnp.zeros((layout.num_layers, B, layout.num_kv_heads, C, G), jnp.float32)
        return self.follow(tokens, pos, collect, (table, tail))[1]

    def positions(self, valid: jax.Array) -> jax.Array:
        """[B,T] int32: seen, seen + 1, ... for tokens that come next; EMPTY where not valid [B,T] (a prefix)."""
        after = self.buffer.seen[:, None] + jnp.arange(valid.shape[1], dtype=jnp.int32)
        return jnp.where(valid, after, EMPTY)
