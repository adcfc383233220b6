"""Unigram: a control for counter_causal. Rare tokens stay, whatever stands around them.

    score = -log(count of the token's id in the sequence so far / tokens so far)

Counted are all tokens the sequence has had, evicted ones included: an exact table [V] per sequence, which needs no
other text and no model. So what is rare is rare in this stream; a word's frequency in the language is not asked for.
Equal scores (two tokens that came equally often) go to the newer, as everywhere. One set of tokens for the whole model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout


class Unigram(Scorer):
    """score = -log frequency of the token in its own sequence."""

    token: ClassVar[tuple[str, ...]] = ("id",)
    one_set: ClassVar[bool] = True

    def init_state(self, layout: Layout, batch: int) -> Any:
        return {"count": jnp.zeros((1, batch, layout.vocab_size), jnp.int32)}  # one for all layers

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        new = ((call.pos >= 0) & (call.layer == 0)).astype(jnp.int32)
        b = jnp.arange(call.pos.shape[0])[:, None]
        return {"count": state["count"].at[b, call.tokens].add(new, mode="drop")}, table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        often = jnp.take_along_axis(state["count"][0], entries.token("id"), axis=1)
        seen = jnp.maximum(entries.buffer.seen, 1)[:, None]
        return entries.of_tokens(-jnp.log(jnp.maximum(often, 1) / seen))
