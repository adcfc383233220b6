"""Attention of training: causal, inside documents, with retention fading old keys, in blocks that are computed again.

    logit(t, i) = q_t k_i / sqrt(H) + (t - i) log_beta_i          TRIM-KV, arXiv 2512.03324 (the additive form)

log_beta of the first tokens of a document (sinks) is taken as 0: they never fade, as they are never evicted later.
What is added may also be the worth of a key after the cuts so far, see `cuts`; with nothing added this is the teacher's
plain attention. One block of queries meets the keys up to its end (in rows above `KEPT` tokens, all of it):
[block, T] and never [T, T]. In such long rows a backward pass computes each block again, one at a time.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

BLOCKS = 16  # at most; so that the unrolled program stays small
LEAST_BLOCK, LONG_BLOCK = 128, 512
FAR = -1e30  # finite, so that a row which sees nothing has no NaN in its gradient
KEPT = 2048  # tokens up to which a layer that is computed again may keep its probabilities meanwhile


class Added(Protocol):
    """What is added to the logits, a pytree."""

    def of(self, rows: jax.Array, S: int) -> jax.Array:
        """[B,K,R,S] for the queries at `rows` [R] and the first S keys."""
        ...


class Fading(NamedTuple):
    """The age term: log_beta [B,K,T] float32, already 0 for sinks."""

    log_beta: jax.Array

    def of(self, rows: jax.Array, S: int) -> jax.Array:
        return (rows[:, None] - jnp.arange(S)) * self.log_beta[:, :, None, :S]


def block_size(T: int) -> int:
    """Queries of one block."""
    return LONG_BLOCK if T > KEPT else min(T, max(LEAST_BLOCK, -(-T // BLOCKS)))


def gated_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, doc: jax.Array, added: Added | None, block: int | None = None
) -> jax.Array:
    """[B,K,G,T,H] float32.

    Args:
        q: [B,K,G,T,H], k and v: [B,K,T,H]; rotated, not scaled.
        doc: [B,T] int32, the document of each token; attention stays inside. Negative: padding.
        added: to the logits; None for plain attention.
        block: queries per block; by default `block_size`.
    """
    T, size = q.shape[3], block or block_size(q.shape[3])
    one = functools.partial(_block, scale=1 / math.sqrt(q.shape[-1]))
    if T > KEPT:
        return _in_turn(jax.checkpoint(one), q, k, v, doc, added, size)
    out = []
    for low in range(0, T, size):
        high = min(low + size, T)
        docs = doc[:, low:high], doc[:, :high]
        out.append(one(q[:, :, :, low:high], k[:, :, :high], v[:, :, :high], *docs, added, jnp.arange(low, high)))
    return jnp.concatenate(out, axis=3)


def received(q: jax.Array, k: jax.Array, doc: jax.Array, block: int | None = None) -> jax.Array:
    """Attention that every key gets from the later queries of its document, summed over them and their group: [B,K,T].

    q, k, doc, block: as in `gated_attention`. Probabilities of one block of queries are live at a time.
    """
    B, K, G, T, H = q.shape
    size = min(block or LEAST_BLOCK, T)
    pad = -T % size
    queries = jnp.moveaxis(jnp.pad(q, ((0, 0),) * 3 + ((0, pad), (0, 0))).reshape(B, K, G, -1, size, H), 3, 0)
    own = jnp.moveaxis(jnp.pad(doc, ((0, 0), (0, pad)), constant_values=-1).reshape(B, -1, size), 1, 0)

    def add(total: jax.Array, x: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        p, later = _probabilities(x[0], k, x[1], doc, None, x[2], scale=1 / math.sqrt(H))
        real = later[None] & (x[1] >= 0)[:, :, None]  # [B,R,S]
        return total + jnp.where(real[:, None, None], p, 0.0).sum(axis=(2, 3)), None

    rows = jnp.arange(T + pad).reshape(-1, size)
    total, _ = jax.lax.scan(add, jnp.zeros((B, K, T), jnp.float32), (queries, own, rows))
    return total


def _in_turn(one, q, k, v, doc, added, size: int) -> jax.Array:
    """One block after another against all keys: twice the products of a triangle, and never two blocks at a time."""
    B, K, G, T, H = q.shape
    pad = -T % size
    rows = jnp.arange(T + pad).reshape(-1, size)
    q = jnp.moveaxis(jnp.pad(q, ((0, 0),) * 3 + ((0, pad), (0, 0))).reshape(B, K, G, -1, size, H), 3, 0)
    own = jnp.moveaxis(jnp.pad(doc, ((0, 0), (0, pad)), constant_values=-1).reshape(B, -1, size), 1, 0)
    out = jax.lax.map(lambda x: one(x[0], k, v, x[1], doc, added, x[2]), (q, own, rows))
    return jnp.moveaxis(out, 0, 3).reshape(B, K, G, T + pad, H)[:, :, :, :T]


def _block(q, k, v, q_doc, k_doc, added, rows, *, scale: float) -> jax.Array:
    B, K, G, R, H = q.shape
    p, _ = _probabilities(q, k, q_doc, k_doc, added, rows, scale=scale)
    return jnp.einsum("bkrs,bksh->bkrh", p.reshape(B, K, G * R, -1).astype(v.dtype), v).reshape(B, K, G, R, H)


def _probabilities(q, k, q_doc, k_doc, added, rows, *, scale: float) -> tuple[jax.Array, jax.Array]:
    """([B,K,G,R,S] float32 of a block of queries, [R,S] whether a key is older than the query)."""
    B, K, G, R, H = q.shape
    S = k.shape[2]
    z = jnp.einsum("bkrh,bksh->bkrs", q.reshape(B, K, G * R, H) * scale, k, preferred_element_type=jnp.float32)
    z = z.reshape(B, K, G, R, S)
    age = rows[:, None] - jnp.arange(S)  # [R,S]
    if added is not None:
        z = z + added.of(rows, S)[:, :, None]
    seen = (age >= 0) & (q_doc[:, :, None] == k_doc[:, None])  # [B,R,S]; padding sees padding: finite, never used
    return jax.nn.softmax(jnp.where(seen[:, None, None], z, FAR), axis=-1), age > 0
