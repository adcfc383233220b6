"""Retrieval heads: only a few listed query heads of each layer vote, for all of its kv heads.

CompressKV, Lin et al., arXiv 2508.02401 and 2606.24467 (code: TUDa-HWAI/CompressKV). The heads were found offline, by
the attention they pay to a needle while it is repeated; see `nexus/calibration.py`.

    A = softmax over all entries of the last W queries, window columns dropped (`wa`)
    score = mean over the J listed heads of avg_pool(sum over the window's rows of A)       J = 4, W = 8, kernel 5

Listed head n reads kv head n // G. The score is one for all kv heads of a layer, so they keep one set of positions
(also under a cap per layer, and under one ranking for all, since ties go by position). Fewer than W queries so far:
those there are. Equal to the paper's score; with all heads listed it is the layer's mean of SnapKV's sums.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from nexus import calibration
from nexus.models.config import ModelConfig
from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalHeads(Scorer):
    """score = pooled attention of the layer's listed heads."""

    window: int = 8  # W
    kernel: int = 5  # odd; 1 = no pooling
    calibration: str = ""  # path of a JSON, or a model's name; "" = the model's own

    def __post_init__(self) -> None:
        ring.check_options(self.window, self.kernel, "avg")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """heads [L,J] int32 and layer_weight [L] float32. Raises ValueError where there is no calibration."""
        found = calibration.load(self.calibration, cfg)
        return {"heads": jnp.asarray(found.heads), "layer_weight": jnp.asarray(found.layer_weight)}

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        received = entries.window_attention(state["q"], state["pos"], ring.there(state))  # [B,P,n,G]
        if self.kernel > 1:
            received = entries.pooled(received, self.kernel, "avg", before=ring.oldest(state))
        return of_heads(entries, received, entries.weights["heads"])


def of_heads(entries: Entries, x: jax.Array, heads: jax.Array) -> jax.Array:
    """Mean of x [B,P,n,G] over listed query heads [L,J], for every entry of the layer: [B,P,n].

    The kv heads of a layer hold the same positions, so entry i of one stands beside entry i of another.
    """
    B, P, n, G = x.shape
    cand, K = entries.cand, entries.buffer.layout.num_kv_heads
    pool = jnp.arange(P)[None, :, None] * n
    start = (cand.first[..., :-1] + pool).reshape(B, -1)  # [B,O], in the entries of all pools in a row
    b = jnp.arange(B)[:, None, None]
    within = jnp.arange(n) + pool - start[b, cand.owner]
    chosen = heads[cand.owner // K]  # [B,P,n,J]
    other = cand.owner[..., None] // K * K + chosen // G
    at = jnp.clip(start[b[..., None], other] + within[..., None], 0, P * n - 1)
    votes = x.reshape(B, P * n, G)[b[..., None], at, chosen % G]
    return jnp.where(entries.valid, votes.mean(axis=-1), 0.0)
