"""The hook of a compensator: one that remembers everything makes eviction invisible."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nexus import attention
from nexus.attention import Partial
from nexus.buffer import Candidates, KVBuffer, gather
from nexus.compensators import Compensator, Nothing
from nexus.shapes import Layout
from tests import tiny


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everything(Compensator):
    """Keeps every evicted key and value (for equal heads): what is written here is all a newcomer has to write."""

    name = "everything evicted"
    capacity: int = 64

    def init_memory(self, layout: Layout, batch: int) -> Any:
        heads = (layout.num_layers, batch, layout.num_kv_heads, self.capacity)
        k, v = (jnp.zeros((*heads, layout.head_dim)) for _ in "kv")  # two arrays: the buffer that holds them is donated
        return {"k": k, "v": v, "n": jnp.zeros(heads[:3], jnp.int32)}

    def absorb(self, memory: Any, buffer: KVBuffer, cand: Candidates, keep: jax.Array) -> Any:
        L, B, K, S = memory["k"].shape[:4]
        lost = cand.valid & ~keep  # [B,L*K,n]
        by_head = lambda x: jnp.moveaxis(x.reshape(B, L, K, *x.shape[2:]), 0, 1)  # noqa: E731
        lost, n = by_head(lost), memory["n"][..., None]
        slot = jnp.where(lost, n + jnp.cumsum(lost, axis=-1) - 1, S)
        layer, b, k = (x[..., None] for x in jnp.ogrid[:L, :B, :K])
        put = lambda old, new: old.at[layer, b, k, slot].set(by_head(new), mode="drop")  # noqa: E731
        return {
            "k": put(memory["k"], gather(cand, buffer.k, buffer.tail_k)),
            "v": put(memory["v"], gather(cand, buffer.v, buffer.tail_v)),
            "n": memory["n"] + lost.sum(axis=-1),
        }

    def read(self, memory: Any, q: jax.Array) -> Partial | None:
        live = jnp.arange(self.capacity) < memory["n"][..., None]
        return attention.update(attention.empty_partial(q), q, memory["k"], memory["v"], live[:, :, None], live)


def test_a_memory_of_everything_is_the_full_cache():
    """absorb must see what is dropped, once, with its own key and value, and read must enter the same softmax."""
    method = dataclasses.replace(tiny.build("streaming_llm"), compensator=Everything())
    s, full, plain = (tiny.session(m) for m in (method, tiny.build("full"), tiny.build("streaming_llm")))
    for one in (s, full, plain):
        one.feed(tiny.prompts(37, 5, 20))
    np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=1e-4)
    assert np.abs(tiny.logits(plain)[0] - tiny.logits(full)[0]).max() > 0.05, "the eviction did change something"
    assert s.generate(20, end=()) == full.generate(20, end=())
    np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=1e-4)
    np.testing.assert_array_equal(s.counts().max(axis=(1, 2)), tiny.BUDGET)


def test_nothing_leaves_nothing():
    """The default costs neither bytes nor a term in the softmax."""
    layout = tiny.session(tiny.build("streaming_llm")).layout
    assert jax.tree.leaves(Nothing().init_memory(layout, 3)) == []
    assert Nothing().read({}, jnp.zeros((1, 1, 1, 8))) is None
