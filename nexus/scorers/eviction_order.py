"""A fixed eviction order, and the memory of the last queries: what the allocator `norm_loss` cuts along.

DBudgetKV / ReFreeKV, Ni et al., arXiv 2502.16886. The first of the order go first, as many as the allocator says.

    position    score = pos                                             oldest first (paper)
    attention   score = sum of the last `window` queries' attention     least attended first (the code's example)

One order for all heads of a layer: attention is averaged over its N query heads (ours; the code stores expanded heads).
Attention columns of the window itself are dropped, the window is protected by the method's row in that mode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout

ORDERS = ("position", "attention")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictionOrder(Scorer):
    """score = place in the order; remembers the last `window` queries."""

    order: str = "position"  # what goes first: position: the oldest | attention: what the last queries see least
    window: int = 8  # W

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r}; allowed: {', '.join(ORDERS)}")
        ring.check_options(self.window, 1, "avg")

    def check(self, budget: int, layout: Layout) -> None:
        if not layout.dense:
            raise ValueError("one order for all heads of a layer needs an allocator with a pool for every head")

    def recent(self, budget: int) -> int:
        return self.window if self.order == "attention" else 0

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window if self.order == "attention" else 1)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        if self.order == "position":
            return entries.pos.astype(jnp.float32)
        received = entries.window_attention(state["q"], state["pos"], ring.there(state)).mean(axis=-1)  # [B,P,n]
        K = entries.buffer.layout.num_kv_heads
        by_layer = received.reshape(received.shape[0], -1, K, received.shape[-1])
        return jnp.broadcast_to(by_layer.mean(axis=2, keepdims=True), by_layer.shape).reshape(received.shape)
