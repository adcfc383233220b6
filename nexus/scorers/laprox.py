"""Output-aware eviction: an entry is worth what its removal changes in the output of the attention block.

LaProx, "Reformulating KV Cache Eviction Problem for Long-Context LLM Inference", arXiv 2605.07234. The output of the
window's W rows is a sum of rank-1 terms, O = sum over heads n and entries i of A[n,:,i] outer (v_i Wo_n). Without one
of them, and without renormalising the softmax, O changes by a matrix of Frobenius norm

    p[n,i] = norm2(A[n,:,i]) * norm2(v_i Wo_n)      norm2(v Wo_n) = sqrt(v^T Mn v),  Mn = Wo_n Wo_n^T [H,H]

A is the attention of the last W queries, softmax over all entries. Mn is worked out once, v Wo is never formed. Where
one key serves G query heads, `gqa` says how they are joined (the paper only speaks of an average):

    mean    the mean over G of p
    sum     norm2 of the attention summed over G, times the mean over G of the value norms
    exact   the norm of the entry's joint term: squared, the sum over g, g' of
            <A[g,:,i], A[g',:,i]> * v_i^T Wo_g Wo_g'^T v_i     (ours)

Then the average pool over neighbouring slots, and last the layers are put on one scale:

    score = p / (sum of p over the layer's entries that are neither protected nor empty)

with one budget for the whole model. Ablations of the paper: `layer_scale=False` (no layer normalisation), the allocator
per_layer (heads flattened, layers alone), the allocator per_head (uniform). No code was published. Ours: the budget
includes the window, sinks are kept, and it is cut after every chunk and while decoding (the paper: once after the
prompt).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nexus.models.config import ModelConfig
from nexus.models.transformer import output_projection
from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout

GQA = ("mean", "sum", "exact")
POOL_ON = ("score", "attention")
Pairs = tuple[tuple[int, int], ...]  # of groups (g, h)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaProx(Scorer):
    """score = the entry's share of what its layer writes for the last `window` queries."""

    window: int = 32  # W
    kernel: int = 7  # of the average pool, odd; 1 = no pooling
    gqa: str = "mean"  # how a key's query heads are joined: mean | sum | exact
    pool_on: str = "score"  # what is pooled: the finished score, or the attention norm before the value norm
    layer_scale: bool = True  # divide by the layer's total

    scale: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        ring.check_options(self.window, self.kernel, "avg")
        if self.gqa not in GQA:
            raise ValueError(f"gqa {self.gqa!r}; allowed: {', '.join(GQA)}")
        if self.pool_on not in POOL_ON:
            raise ValueError(f"pool_on {self.pool_on!r}; allowed: {', '.join(POOL_ON)}")
        if self.gqa == "exact" and self.pool_on == "attention":
            raise ValueError("gqa='exact' has no attention norm of its own to pool: pool_on must be 'score'")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """The quadratic forms of the value norms, float32: [L,K,G,H,H], for `exact` [L,K,G(G+1)/2,H,H]."""
        return {"forms": _forms(self._pairs(cfg.num_groups), output_projection(cfg, params))}

    def recent(self, budget: int) -> int:
        return self.window

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        before = ring.oldest(state)
        p = self._terms(entries, state, before)
        if self.pool_on == "score":
            p = entries.pooled(p[..., None], self.kernel, "avg", before=before)[..., 0]
        return _of_layer(entries, p) if self.layer_scale else p

    def _terms(self, entries: Entries, state: Any, before: jax.Array) -> jax.Array:
        """p [B,P,n], not pooled where the score is."""
        layout = entries.buffer.layout
        forms = entries.weights["forms"][:, None]  # [L,1,K,J,H,H]
        values = entries.each(_quadratic, forms, forms.shape[3])  # [B,P,n,J]
        columns, numbers = self._columns(layout.num_groups)
        received = entries.attention_of(state["q"], state["pos"], ring.there(state), columns, numbers)
        if self.gqa == "exact":
            return jnp.sqrt(jnp.maximum((received * values).sum(axis=-1), 0.0))
        norms, attention = jnp.sqrt(jnp.maximum(values, 0.0)), jnp.sqrt(received)
        if self.pool_on == "attention":
            attention = entries.pooled(attention, self.kernel, "avg", before=before)
        return (attention * norms).mean(axis=-1)  # the one attention norm of `sum` meets every value norm

    def _pairs(self, groups: int) -> Pairs:
        """The groups whose projections make the forms, J of them."""
        return tuple((g, h) for g in range(groups) for h in range(g, groups if self.gqa == "exact" else g + 1))

    def _columns(self, groups: int):
        """How the attention [...,G*W,S] that entries receive becomes [...,J,S], and J."""
        first, second = np.transpose(self._pairs(groups))

        def columns(p: jax.Array) -> jax.Array:
            p = p.reshape(*p.shape[:-2], groups, -1, p.shape[-1])  # [...,G,W,S]
            if self.gqa == "exact":
                gram = jnp.einsum("...gWS,...hWS->...ghS", p, p, precision=lax.Precision.HIGHEST)
                return gram[..., first, second, :]
            if self.gqa == "sum":
                p = p.sum(axis=-3, keepdims=True)
            return (p * p).sum(axis=-2)

        return columns, 1 if self.gqa == "sum" else len(first)


@functools.partial(jax.jit, static_argnums=0)
def _forms(pairs: Pairs, wo: jax.Array) -> jax.Array:
    """Wo_g Wo_h^T of every pair of groups, those of two different groups twice: [L,K,G,H,D] -> [L,K,J,H,H] float32."""
    first, second = np.transpose(pairs)
    times = jnp.asarray(1.0 + (first != second), jnp.float32)[:, None, None]

    def layer(wo: jax.Array) -> jax.Array:
        wide = wo.astype(jnp.float32)
        a, b = wide[:, first], wide[:, second]
        return jnp.einsum("KJXD,KJYD->KJXY", a, b, precision=lax.Precision.HIGHEST) * times

    return lax.map(layer, wo)


def _quadratic(k: jax.Array, v: jax.Array, forms: jax.Array) -> jax.Array:
    """v^T M v: v [S,H], forms [J,H,H] -> [S,J]."""
    turned = jnp.einsum("SX,JXY->SJY", v, forms, precision=lax.Precision.HIGHEST)
    return (turned * v[:, None]).sum(axis=-1)


def _of_layer(entries: Entries, p: jax.Array) -> jax.Array:
    """p [B,P,n] divided by its sum over the layer's free entries; a layer that has nothing to choose from stays 0."""
    layout = entries.cand.layout
    layer = entries.cand.owner // layout.num_kv_heads
    member = (layer[..., None] == jnp.arange(layout.num_layers)) & entries.free[..., None]
    total = jnp.where(member, p[..., None], 0.0).sum(axis=(1, 2))  # [B,L]
    total = jnp.where(total > 0, total, 1.0)
    return p / total[jnp.arange(p.shape[0])[:, None, None], layer]
