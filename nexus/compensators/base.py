"""The interface of a compensator, and the one that leaves nothing behind.

A compensator sees what an eviction drops (`absorb`) and may add a partial softmax to every later attention (`read`).
Its memory is a pytree [L,B,...]; its bytes are fixed and count as cache.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax

from nexus.attention import Partial
from nexus.buffer import Candidates, KVBuffer
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compensator:
    """Base class: a compensator that keeps nothing overrides nothing."""

    name: ClassVar[str] = "nothing"

    def init_memory(self, layout: Layout, batch: int) -> Any:
        """The empty memory, a pytree of arrays [L,B,...]."""
        return {}

    def absorb(self, memory: Any, buffer: KVBuffer, cand: Candidates, keep: jax.Array) -> Any:
        """The memory after the candidates that are valid and not in keep [B,P,n] have been evicted from the buffer."""
        return memory

    def read(self, memory: Any, q: jax.Array) -> Partial | None:
        """What the layer's memory (leaves [B,...]) answers to folded, scaled queries q [B,K,R,H]; None for nothing."""
        return None


class Nothing(Compensator):
    """Evicted entries are gone."""
