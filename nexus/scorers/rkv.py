"""R-KV: recent attention less redundancy.

Paper: Cai et al., "R-KV", arXiv 2505.24133.
    z     = max over the group of q.k / sqrt(H)              before the softmax
    I     = max pool of (mean over the W rows of softmax(z))  over the entries before the window only
    r     = redundancy.py, softmax over all entries of the head
    score = lam I - (1 - lam) r                               lam .1 (G-KV's R-KV mode; .07 in the official code)

Nexus cuts after every chunk of a prompt as well (official code: once after the prompt, then every R tokens).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus.scorers import redundancy, ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class RedundancyAware(Scorer):
    """score = lam * importance - (1 - lam) * redundancy."""

    window: int = 8  # W
    kernel: int = 7  # odd; 1 = no pooling
    lam: float = 0.1  # 1: attention alone; 0: redundancy alone

    def __post_init__(self) -> None:
        for name in ("window", "kernel"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam must lie between 0 and 1, got {self.lam!r}")

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        score = self.lam * self.importance(entries, state)
        if self.lam == 1:
            return score
        r = entries.head_softmax(redundancy.of_entries(entries)[..., None], entries.valid)[..., 0]
        return score - (1 - self.lam) * r

    def importance(self, entries: Entries, state: Any) -> jax.Array:
        """I [B,P,n]; 0 for the window's own entries."""
        W, there, oldest = self.window, ring.there(state), ring.oldest(state)
        before = jnp.broadcast_to(oldest[None, :, None] - 1, state["pos"].shape)  # every row sees the context alone

        def most_of_the_group(p: jax.Array) -> jax.Array:
            return p.reshape(*p.shape[:-2], -1, W, p.shape[-1]).max(axis=-3)

        e = entries.attention_of(state["q"], before, there, most_of_the_group, W, one_scale=True)
        total = jnp.stack([entries.head_sum(e[..., w]) for w in range(W)], axis=-1)
        rows = jnp.maximum(there[0].sum(axis=-1), 1.0)[:, None, None]
        importance = (e / jnp.where(total > 0, total, 1.0)).sum(axis=-1) / rows
        if self.kernel == 1:
            return importance
        return entries.pooled(importance[..., None], self.kernel, "max", before=oldest)[..., 0]
