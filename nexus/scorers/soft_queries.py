"""Soft queries: trained soft tokens, run behind the sequence, ask in place of the future response. Judge Q.

Liu et al., "Judge Q", arXiv 2509.10798.   per layer and query head:  a[i] = mean over the Ns soft rows of A[row, i]
                                           score = mean over G of pool(a)
A is the softmax over everything a soft row sees; the share of the soft tokens themselves is left out and not
renormalised. Before each eviction the soft tokens run at positions seen .. seen + Ns - 1 and are forgotten again: they
are never stored and use up no position. With the embeddings of real tokens in their place this is SnapKV's score.

Differs from the paper: pooling, group mean and the protected recent window are ours (SnapKV's; the paper is silent);
the paper cuts once, after the prompt: cutting again after each chunk and while decoding is an extension.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nexus import buffer as kv
from nexus import probes
from nexus.models.config import ModelConfig
from nexus.scorers.base import Entries, Scorer
from nexus.side import Side

POOLS = ("avg", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftQueries(Scorer):
    """score = pooled attention of trained soft tokens that follow the sequence."""

    probes: str = "judgeq"  # a file of soft tokens, the name of shipped ones, or untrained (a control)
    window: int = 32  # newest entries that always stay
    kernel: int = 5  # odd; 1 = no pooling
    pool: str = "avg"  # avg | max

    scale: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window must be at least 0, got {self.window}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and at least 1, got {self.kernel}")
        if self.pool not in POOLS:
            raise ValueError(f"pool {self.pool!r}; allowed: {', '.join(POOLS)}")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """The soft tokens [1,Ns,D], the same for all layers. Raises ValueError, see `nexus.probes`."""
        if self.probes == probes.UNTRAINED:
            rows = probes.init(params["embed"])
        else:
            rows = jnp.asarray(probes.load(self.probes, cfg))
        return {"rows": rows.astype(jnp.dtype(cfg.activations))[None]}

    def recent(self, budget: int) -> int:
        return self.window

    def look(self, side: Side) -> tuple[kv.KVBuffer, Any]:
        rows, batch = side.weights["rows"][0], side.buffer.seen.shape[0]
        tokens = jnp.broadcast_to(rows, (batch, *rows.shape))
        pos = side.positions(jnp.ones(tokens.shape[:2], bool))
        return side.buffer, side.received(tokens, pos, jnp.full(pos.shape, 1 / len(rows), jnp.float32))

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        got = jnp.where(entries.valid[..., None], kv.gather(entries.cand, *entries.looked), 0.0)  # [B,P,n,G]
        if self.kernel > 1:
            got = entries.pooled(got, self.kernel, self.pool, before=entries.buffer.seen)
        return got.mean(axis=-1)
