"""Accumulated attention: the heavy-hitter score of H2O.

Paper: Zhang et al., arXiv 2306.14048.   acc[e] += sum over new queries of softmax attention to e
Summed per query head and averaged over the G query heads of a kv head, since one key serves them all (ours). The true
queries of every chunk are used, column sums go block by block, evicted sums are dropped. Not divided by age.
"""

from __future__ import annotations

from typing import Any

import jax

from nexus.scorers.base import Call, Entries, Scorer


class AccumulatedAttention(Scorer):
    """score = attention received so far."""

    aux = ("received",)
    scale = "mass"

    def recent(self, budget: int) -> int:
        return budget // 2  # half heavy hitters, half recent

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        new_table, new_tail = call.add_received(table["received"], tail["received"])
        return state, {"received": new_table}, {"received": new_tail}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return entries.aux("received")
