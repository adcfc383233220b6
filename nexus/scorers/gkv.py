"""G-KV: recent attention with a memory of what earlier evictions saw, less redundancy.

Paper: Liao et al., "G-KV: Decoding-Time KV Cache Eviction with Global Attention", arXiv 2512.00504.

    A     = attention of the last W queries, softmax per query head over all entries, max over the group;
            window columns dropped after the softmax
    s_i   = mean over the W rows of A, divided by its maximum in the head
    old_i = f_i of the last eviction, or s_i for an entry that is new
    f_i   = max(alpha old_i, s_i)             memory "mean": alpha old + (1 - alpha) s;  "sum": alpha old + s, old 0
    score = lam f - (1 - lam) r               r: redundancy.py, softmax over the head, divided by its maximum outside
                                              of the window; lam = 1: none

f is stored with the entries that are kept, before the redundancy. As in the official code the maximum is over what is
present at an eviction, so f of different evictions is on different scales. Entries of the window have no f yet: they
stay new. Nexus cuts after every chunk of a prompt as well (official code: once after the prompt, then every R tokens).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nexus import attention
from nexus.scorers import redundancy, ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout

MEMORIES = ("max", "mean", "sum")
NEW = -1.0  # f of an entry that no eviction has judged


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalAttention(Scorer):
    """score = lam * decayed attention memory - (1 - lam) * redundancy."""

    aux: ClassVar[tuple[str, ...]] = ("global",)

    window: int = 16  # W
    alpha: float = 0.8  # what is left of the memory at the next eviction
    memory: str = "max"  # how old and new are joined: max | mean | sum
    lam: float = 0.5  # 1: attention alone; 0: redundancy alone

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise ValueError(f"window must be an integer of at least 1, got {self.window!r}")
        for name in ("alpha", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if self.memory not in MEMORIES:
            raise ValueError(f"memory {self.memory!r}; allowed: {', '.join(MEMORIES)}")

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def write(self, call: Call) -> dict[str, jax.Array]:
        return {"global": jnp.full(call.k.shape[:3], NEW, jnp.float32)}

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def remember(self, entries: Entries, state: Any) -> dict[str, jax.Array]:
        s, old = self.local(entries, state), entries.aux("global")
        new = old < 0
        arrived = (entries.buffer.tail_pos >= 0).any(axis=1)[:, None, None]  # else a longer row of the batch was cut
        f = {
            "max": jnp.where(new, s, jnp.maximum(self.alpha * old, s)),
            "mean": jnp.where(new, s, self.alpha * old + (1 - self.alpha) * s),
            "sum": jnp.where(new, s, self.alpha * old + s),
        }[self.memory]
        return {"global": jnp.where(_context(entries, state), jnp.where(arrived, f, old), NEW)}

    def local(self, entries: Entries, state: Any) -> jax.Array:
        """s [B,P,n]: attention of this window alone; 0 for the window's own entries."""
        W, there = self.window, ring.there(state)
        weight = there / jnp.maximum(there.sum(axis=-1, keepdims=True), 1.0)

        def most_of_the_group(p: jax.Array) -> jax.Array:
            return p.reshape(*p.shape[:-2], -1, W, p.shape[-1]).max(axis=-3).sum(axis=-2, keepdims=True)

        received: attention.Reduce = most_of_the_group
        A = entries.attention_of(state["q"], state["pos"], weight, received, 1)[..., 0]
        A = jnp.where(_context(entries, state), A, 0.0)
        top = entries.head_max(A)
        return A / jnp.where(top > 0, top, 1.0)

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        context = _context(entries, state)
        f = jnp.where(context, jnp.maximum(entries.aux("global"), 0.0), 0.0)
        if self.lam == 1:
            return f
        r = entries.head_softmax(redundancy.of_entries(entries)[..., None], entries.valid)[..., 0]
        top = entries.head_max(jnp.where(context, r, 0.0))
        return self.lam * f - (1 - self.lam) * r / jnp.where(top > 0, top, 1.0)


def _context(entries: Entries, state: Any) -> jax.Array:
    """[B,P,n] bool: live entries older than the window."""
    return entries.valid & (entries.pos < ring.oldest(state)[:, None, None])
