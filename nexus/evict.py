"""One eviction: score -> sample -> allocate -> repack -> compensate.

The same function cuts after a chunk of a prompt, during decoding, and once after a full prefill (`layout` given).
Protection is a boolean mask, made here once for every method: sinks, the recent window, and the best of each head.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus import buffer as kv
from nexus.methods import Method
from nexus.scorers.base import Entries
from nexus.selection import keep_caps
from nexus.shapes import EMPTY, Layout


def evict(
    method: Method, params: Any, buf: kv.KVBuffer, layout: Layout | None = None, looked: Any = None
) -> kv.KVBuffer:
    """Brings table and tail back to the budget: at most `layout.rows` entries are kept and the tail is empty.

    Args:
        params: the model's, with the method's weights under "method" (`decode.with_weights`).
        layout: of the resulting table; by default the buffer's own. The full cache commits instead.
        looked: what the scorer's look at this buffer brought (`decode.cut`).
    """
    if method.full:
        return kv.commit(buf)
    cand = kv.candidates(buf, layout)
    scorer = method.scorer
    entries = Entries(
        buffer=buf, cand=cand, weights=params["method"], scale=scorer.scale, unit=scorer.unit(cand.layout.budget),
        protect=_sinks_and_recent(method, cand, buf.seen), looked=looked,
    )  # fmt: skip
    event = jax.vmap(jax.random.fold_in)(buf.rng, buf.events)
    for_score, for_sample = jnp.moveaxis(jax.vmap(jax.random.split)(event), 1, 0)
    with jax.named_scope("score"):
        entries = dataclasses.replace(entries, fresh=scorer.remember(entries, buf.state))
        score, chosen = scorer.judge(entries, buf.state, for_score)
    with jax.named_scope("select"):
        key = method.sampler.key(entries, score, for_sample)
        protect = protected(method, cand, key, buf.seen)
        protect = protect if chosen is None else protect | chosen
        keep = method.allocator.select(entries, key, protect)
    with jax.named_scope("repack"):
        memory = method.compensator.absorb(buf.memory, buf, cand, keep)
        return dataclasses.replace(kv.repack(buf, cand, keep, entries.fresh), memory=memory)


def protected(method: Method, cand: kv.Candidates, key: jax.Array, seen: jax.Array) -> jax.Array:
    """[B,P,n] bool: entries that no score can evict."""
    mask = _sinks_and_recent(method, cand, seen)
    if method.min_per_head and not cand.layout.dense:  # a dense layout gives every head its M anyway
        mask = mask | _best_of_each_head(cand, key, mask, method.min_per_head)
    return mask


def _sinks_and_recent(method: Method, cand: kv.Candidates, seen: jax.Array) -> jax.Array:
    """[B,P,n] bool: what is protected by its position alone."""
    pos, unit = cand.pos, method.scorer.unit(cand.layout.budget)
    sinks = (pos != EMPTY) & (pos < -(-method.num_sinks // unit) * unit)
    newest = jnp.maximum(seen[:, None, None] - method.recent, 0)
    recent = pos >= (newest // unit * unit if method.recent else newest)
    return sinks | recent


def _best_of_each_head(cand: kv.Candidates, key: jax.Array, already: jax.Array, least: int) -> jax.Array:
    """The `least` best entries of each head beyond those already protected; ties as everywhere: the newer wins."""
    free = jnp.where(already, EMPTY, cand.pos)
    Q = cand.layout.pool_heads
    caps = jnp.full((*key.shape[:2], Q), least, jnp.int32)
    return keep_caps(key, free, jnp.zeros_like(already), cand.owner % Q, cand.first, caps)
