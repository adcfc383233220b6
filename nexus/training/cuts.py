"""Soft cuts: training under the evictions that come later, in place of an age term (ours).

At inference nothing fades: an entry counts in full until a cut drops it. Gates trained with the additive age term have
learnt with entries that grow ever weaker, and a top-k then drops what training still used. Here a document is cut where
a stream is, and a key counts by how clearly it survived every cut so far:

    u_i(c)     = log(c + 1 - i) + log(-log_beta_i)              size of the score at a cut after c tokens; low is kept
    tau(c)     = the N-th smallest u(c) of what earlier cuts of the document left; N = budget * L * K of all heads
                 together (global), or budget of each
    worth_i(c) = log sigmoid(min over cuts c' <= c of (tau(c') - u_i(c')) / width)
    logit(t, i) += worth_i(c) for keys older than the last cut c before t; younger keys count in full

As width goes to 0 this is the hard eviction of `scorers/retention.py` (lookahead 1, no least number per head). tau
comes from the gates on the teacher's pass. Its gradient is that of tau in sum_i sigmoid((tau - u_i) / width) = const:
what lifts one entry lowers those near the threshold, so that entries compete (without it everything rises together, and
learning stalls). Cuts stand at multiples of `every` of the row, also for documents that begin later, and where a
document says that a stream is cut (`records`): behind the text, before an answer, where a question has just taken its
places, and inside long answers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from nexus import selection
from nexus.gates import LEAST

SURE = 1e9  # a margin that nothing reaches


class Cuts(NamedTuple):
    """What older keys are worth, by the last cut before the query: worth [B,K,C,T] float32, places [B,C] int32.

    places: tokens before each cut, ascending; the first is 0 and drops nothing.
    """

    worth: jax.Array
    places: jax.Array

    def of(self, rows: jax.Array, S: int) -> jax.Array:
        """[B,K,R,S] to be added to the logits of queries at `rows` [R] and the first S keys."""
        last = (self.places[:, None] <= rows[:, None]).sum(axis=-1) - 1  # [B,R]
        # A product picks the line: its gradient is a product too, where that of an index is a scatter.
        pick = jax.nn.one_hot(last, self.places.shape[1], dtype=self.worth.dtype)  # [B,R,C]
        return jnp.einsum("brc,bkcs->bkrs", pick, self.worth[..., :S])


def places(cut: jax.Array, every: int, marks: int) -> jax.Array:
    """[B,C] int32, ascending: where rows are cut. cut [B,T] bool: before these tokens; marks: at most so many of them.

    A place beyond the row cuts nothing.
    """
    B, T = cut.shape
    marked = jnp.sort(jnp.where(cut, jnp.arange(T), T), axis=1)[:, :marks]
    regular = jnp.broadcast_to(jnp.arange(0, T, every), (B, -(-T // every)))
    return jnp.sort(jnp.concatenate([regular, marked], axis=1), axis=1)


def thresholds(
    log_beta: jax.Array, doc: jax.Array, places: jax.Array, budget: jax.Array, width: float, sharing: str
) -> jax.Array:
    """tau [L,B,K,C] float32; infinite where everything fits.

    Args:
        log_beta: [L,B,K,T] float32, 0 for sinks.
        doc: [B,T] int32. places: [B,C] int32, see `places`.
        budget: [] entries per layer and kv head.
        sharing: "global" or "per_head".
    """
    L, B, K, T = log_beta.shape

    @jax.checkpoint
    def at(alive: jax.Array, cut: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = jnp.moveaxis(_size(log_beta, cut[:, None]), 1, 0)  # [B,L,K,T]
        among = alive & _older(doc, cut)[:, None, None]  # what an earlier cut dropped takes no place
        pools = (B, 1, L * K * T) if sharing == "global" else (B, L * K, T)
        count = jnp.maximum(jnp.round(budget * (pools[2] // T)), 1).astype(jnp.int32)
        last = _nth_smallest(width, size.reshape(pools), among.reshape(pools), count)  # [B,P]
        fits = among.reshape(pools).sum(axis=-1) <= count
        tau = jnp.broadcast_to(jnp.where(fits, jnp.inf, last), (B, L * K)).reshape(B, L, K)
        return alive & ~(among & (size > tau[..., None])), jnp.moveaxis(tau, 1, 0)

    _, tau = lax.scan(at, jnp.ones((B, L, K, T), bool), places.T)
    return jnp.moveaxis(tau, 0, 3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _nth_smallest(width: float, size: jax.Array, among: jax.Array, nth: jax.Array) -> jax.Array:
    """[...] of size [...,n], with the gradient of the soft count."""
    return -selection.nth_best(-size, among, nth)


def _forward(width: float, size: jax.Array, among: jax.Array, nth: jax.Array) -> tuple[jax.Array, Any]:
    tau = _nth_smallest(width, size, among, nth)
    return tau, (size, among, tau)


def _backward(width: float, kept: Any, g: jax.Array) -> tuple[jax.Array, None, None]:
    size, among, tau = kept
    p = jax.nn.sigmoid((tau[..., None] - size) / width)
    near = jnp.where(among, p * (1 - p), 0.0)
    return g[..., None] * near / jnp.maximum(near.sum(axis=-1, keepdims=True), 1e-9), None, None


_nth_smallest.defvjp(_forward, _backward)


def cuts(log_beta: jax.Array, tau: jax.Array, doc: jax.Array, places: jax.Array, width: float) -> Cuts:
    """log_beta [B,K,T], tau [B,K,C] of one layer, doc [B,T], places [B,C]."""
    each = places.T  # one cut of every row at a time
    older = jax.vmap(lambda cut: _older(doc, cut), out_axes=1)(each)[:, None]  # [B,1,C,T]
    size = jax.vmap(lambda cut: _size(log_beta, cut[:, None]), out_axes=2)(each)  # [B,K,C,T]
    margin = jnp.where(older & jnp.isfinite(tau)[..., None], (tau[..., None] - size) / width, SURE)
    return Cuts(jax.nn.log_sigmoid(lax.cummin(margin, axis=2)), places)


def _older(doc: jax.Array, cut: jax.Array) -> jax.Array:
    """[B,T]: keys before the cut [B] that belong to the document it falls into."""
    own = jnp.take_along_axis(doc, jnp.maximum(cut - 1, 0)[:, None], axis=1)
    return (jnp.arange(doc.shape[1]) < cut[:, None]) & (doc == own)


def _size(log_beta: jax.Array, cut: jax.Array) -> jax.Array:
    """u of every key, the last axis of log_beta [...,B,K,T], at cut [B,1]."""
    age = jnp.maximum(cut[..., None] + 1 - jnp.arange(log_beta.shape[-1]), 1)
    return jnp.log(age.astype(jnp.float32)) + jnp.log(jnp.maximum(-log_beta, LEAST))
