"""Observation window: attention of the last W queries. SnapKV and, with W = 1 and a mean over the layer's heads, TOVA.

SnapKV, Li et al., arXiv 2404.14469:   score = mean over G of pool(mean over window rows of A)
    A = softmax over all entries, window columns dropped after the softmax (not renormalised)
    official code sums over rows and keeps one set per query head; as kvpress we pool, then average the group.
TOVA, Oren et al., arXiv 2401.06104:   score = mean over all N heads of the last query's attention
    one set per layer: equal scores in all heads give equal sets, so heads stay in step under a budget per head.

The last W queries are kept in a ring, so a chunk, a decode step and a new turn all score with true queries.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowAttention(Scorer):
    """score = pooled attention of the last `window` queries."""

    scale = "mass"

    window: int = 32  # W
    kernel: int = 5  # odd; 1 = no pooling
    pool: str = "avg"  # avg | max
    layer_mean: bool = False  # average over all heads of the layer (TOVA)
    group_first: bool = False  # average the group before pooling (Ada-KV); no difference for avg pooling

    def __post_init__(self) -> None:
        ring.check_options(self.window, self.kernel, self.pool)

    @property
    def one_set(self) -> bool:  # type: ignore[override]
        return self.layer_mean

    def check(self, budget: int, layout: Layout) -> None:
        if self.layer_mean and not layout.dense:
            raise ValueError("layer_mean shares one set of entries per layer and needs the allocator per_head")

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        score = ring.mean_attention(state, entries, self.kernel, self.pool, group_first=self.group_first)
        if self.layer_mean:
            K = entries.buffer.layout.num_kv_heads
            by_layer = score.reshape(score.shape[0], -1, K, score.shape[-1])
            score = jnp.broadcast_to(by_layer.mean(axis=2, keepdims=True), by_layer.shape).reshape(score.shape)
        return score
