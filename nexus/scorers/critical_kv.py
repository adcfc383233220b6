"""Two stages: what is attended to most, then what weighs most in the output.

CriticalKV, "Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective", arXiv 2502.03805.
With s the score of SnapKV (attention of the last W queries, pooled, mean over the group):

    stage 1   the best `first_stage` of the head's budget by s
    stage 2   the rest by (s + epsilon) * mean over G of norm1(v_i Wo_g)

The first stage is a mask and not a large score, so it is certain under any sampler and no number stands for it; the
protected entries stand first in it, as in the public code, where the window scores more than everything else. The
1-norm has no quadratic form: v Wo is formed in blocks of D, once, when the entry is written, and kept as one number.
Differs from the code: sinks are kept, and it is cut after every chunk and while decoding (the code: once after the
prompt).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus.models.config import ModelConfig
from nexus.models.transformer import output_projection
from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.selection import keep_best
from nexus.shapes import Layout

COLUMN = "projected"
BLOCK = 128  # columns of D that are projected at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticalKV(Scorer):
    """score = (attention of the last `window` queries + epsilon) times the projected value, after a first stage."""

    window: int = 32  # W
    kernel: int = 5  # odd; 1 = no pooling
    pool: str = "avg"  # avg | max
    first_stage: float = 0.5  # share of the budget that attention alone chooses
    epsilon: float = 1e-4  # added to attention: without any, the value still counts

    aux: ClassVar[tuple[str, ...]] = (COLUMN,)
    scale: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        ring.check_options(self.window, self.kernel, self.pool)
        if not 0 <= self.first_stage <= 1:
            raise ValueError(f"first_stage must lie between 0 and 1, got {self.first_stage}")
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    def check(self, budget: int, layout: Layout) -> None:
        if not layout.dense:
            raise ValueError("the first stage takes a share of every head's budget and needs the allocator per_head")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """The output projection in blocks of D, the last one filled up with zeros: [L,J,K,G,H,BLOCK]."""
        wo = output_projection(cfg, params)
        size = min(BLOCK, cfg.dim)
        wo = jnp.pad(wo, [(0, 0)] * 4 + [(0, -cfg.dim % size)])
        return {"blocks": jnp.moveaxis(wo.reshape(*wo.shape[:4], -1, size), 4, 1)}

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def write(self, call: Call) -> dict[str, jax.Array]:
        def add(total: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
            y = jnp.einsum(
                "BKTH,KGHD->BKTGD", call.v, block, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
            )
            return total + jnp.abs(y).sum(axis=(-2, -1)), None

        total, _ = lax.scan(add, jnp.zeros(call.v.shape[:3], jnp.float32), call.weights["blocks"])
        return {COLUMN: total / call.groups}

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return self.judge(entries, state, rng)[0]

    def judge(self, entries: Entries, state: Any, rng: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        base = ring.mean_attention(state, entries, self.kernel, self.pool)
        score = jnp.where(entries.valid, (base + self.epsilon) * entries.aux(COLUMN), 0.0)
        if not self.first_stage:
            return score, None
        certain = entries.valid & ~entries.free
        share = max(1, int(self.first_stage * entries.cand.layout.pool_rows))
        best = keep_best(base, entries.pos, certain, share)
        fits = certain.sum(axis=-1, keepdims=True) <= share
        return score, jnp.where(fits, best, certain)
