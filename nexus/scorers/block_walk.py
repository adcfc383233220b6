"""Blocks of positions by recent attention and a short walk over it: the weight of Nexus Sampling.

Paper: Duong et al., "Forget Without Compromise", arXiv 2606.23961 (v1). No official code is public; the equations are
those of an earlier draft of its authors. Blocks are pos // b, S the entries of the cache, W the window of queries:

    p   = softmax(qbar kbar^T / sqrt(H)) [W,S]     q averaged over all heads of the layer, k over its kv heads
    s_j = sum of p over the entries of block j     each row sums to 1 over the blocks
    a   = mean_w s                                 direct term
    c   = 0; for i = 1..J: c <- c + s_i * (1 + <s_i, c>),   s_i = row (i-1) mod W       walk
    w   = a + lam c / sum(c) + eps r,              r_j = j / (NB - 1): equal blocks rank newest first

`hub` takes c = sum_w s instead (the draft's prefill form). Since every row sums to 1, c / sum(c) is then a itself, and
lam changes next to nothing; a test shows it. With `sampler=top` the best blocks are kept, with `reservoir` drawn.

Ours: a query sees keys up to its own position (the draft says nothing); the walk takes the oldest rows of the window in
order (the draft's literal reading; `newest_first` for the other); both phases use the walk; the first two layers are
evicted like the others; forced are the sink block, the block before the current one and the current one, by protection
in whole blocks; b = min(64, M // 16) unless given. Budgets are exact, so where the current block is unfinished, what it
leaves free goes to the newest entries of the best block that does not fit whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import attention
from nexus.scorers import ring
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout

LARGEST, PARTS = 64, 16  # an automatic block: at most 64 positions, and a 16th of the budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockWalk(Scorer):
    """score of an entry = weight w of its block."""

    scale: ClassVar[str] = "mass"

    window: int = 16  # W
    block: int = 0  # b; 0: min(64, M // 16)
    walk: int = 3  # J
    lam: float = 0.5  # weight of the walk
    eps: float = 1e-6  # for the order of equal blocks, newest first
    hub: bool = False  # the walk's draft form, see above
    newest_first: bool = False  # order of the walk's rows
    share_heads: bool = True  # one set of blocks per layer; else one per kv head, p averaged over its query heads

    def __post_init__(self) -> None:
        for name, least in (("window", 1), ("block", 0), ("walk", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name in ("lam", "eps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}")

    @property
    def one_set(self) -> bool:  # type: ignore[override]
        return self.share_heads

    def check(self, budget: int, layout: Layout) -> None:
        if self.share_heads and not layout.dense:
            raise ValueError("share_heads keeps one set of blocks per layer and needs the allocator per_head")

    def unit(self, budget: int) -> int:
        return self.block or max(1, min(LARGEST, budget // PARTS))

    def recent(self, budget: int) -> int:
        return self.unit(budget) + 1

    def init_state(self, layout: Layout, batch: int) -> Any:
        return ring.init(layout, batch, self.window)

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        return ring.push(state, call), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        layout = entries.cand.layout
        self.check(layout.budget, layout)
        if not self.share_heads:
            return self.weight(entries, self._rows_of_heads(entries, state), ring.there(state)[0])
        K = layout.num_kv_heads
        first = {name: getattr(entries.cand, name)[:, ::K] for name in ("pos", "owner", "row", "column", "in_table")}
        layers = dataclasses.replace(entries, cand=dataclasses.replace(entries.cand, **first))  # one head of each
        w = self.weight(layers, self._rows_of_layers(entries, state), ring.there(state)[0])
        return jnp.repeat(w, K, axis=1)

    def _rows_of_heads(self, entries: Entries, state: Any) -> jax.Array:
        """p of every kv head [B,P,n,W], mean over its query heads."""
        W = self.window
        mean: attention.Reduce = lambda p: p.reshape(*p.shape[:-2], -1, W, p.shape[-1]).mean(axis=-3)  # noqa: E731
        return entries.attention_of(state["q"], state["pos"], ring.there(state), mean, W)

    def _rows_of_layers(self, entries: Entries, state: Any) -> jax.Array:
        """p of every layer [B,L,n,W], from queries and keys averaged over its heads, which hold the same positions."""
        K = entries.cand.layout.num_kv_heads
        k = entries.k()
        k = k.reshape(k.shape[0], -1, K, *k.shape[2:]).mean(axis=2)  # [B,L,n,H]
        q = state["q"].astype(jnp.float32).mean(axis=(2, 3))  # [L,B,W,H]
        z = jnp.einsum("BLSH,LBWH->BLSW", k, q, precision=lax.Precision.HIGHEST)
        pos, row = entries.pos[:, ::K, :, None], jnp.moveaxis(state["pos"], 0, 1)[:, :, None]  # [B,L,n,1], [B,L,1,W]
        seen = (pos >= 0) & (pos <= row)
        top = jnp.where(seen, z, -jnp.inf).max(axis=2, keepdims=True)
        e = jnp.where(seen, jnp.exp(z - jnp.where(jnp.isfinite(top), top, 0.0)), 0.0)
        total = e.sum(axis=2, keepdims=True)
        return e / jnp.where(total > 0, total, 1.0)

    def weight(self, entries: Entries, p: jax.Array, there: jax.Array) -> jax.Array:
        """w of every entry's block [B,P,n], from p [B,P,n,W] with rows of 0 where there [B,W] is 0."""
        run, rank = self.blocks(entries)
        s = block_sums(p, run)
        real = jnp.maximum(there.sum(axis=-1), 1).astype(jnp.int32)  # [B]
        direct = s.sum(axis=-1) / real[:, None, None]
        if self.hub:
            c, total = s.sum(axis=-1), entries.head_sum(p.sum(axis=-1))
        else:
            c, total = self._walk(entries, p, s, real)
        walked = c / jnp.where(total > 0, total, 1.0)
        return jnp.where(entries.valid, direct + self.lam * walked + self.eps * rank, 0.0)

    def _walk(self, entries: Entries, p: jax.Array, s: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
        """c of every entry's block and its sum over the blocks of the head. Inner products run over entries:
        <s_i, c> = sum over entries of p_i times the c of their block."""
        W = self.window
        c, total = jnp.zeros(s.shape[:-1], jnp.float32), jnp.zeros(s.shape[:-1], jnp.float32)
        for i in range(self.walk):
            at = W - 1 - i % real if self.newest_first else W - real + i % real
            row = at[:, None, None, None]
            s_i, p_i = (jnp.take_along_axis(x, row, axis=-1)[..., 0] for x in (s, p))
            step = 1 + entries.head_sum(p_i * c)
            c, total = c + s_i * step, total + step * entries.head_sum(p_i)  # 0 where the head has nothing so old
        return c, total

    def blocks(self, entries: Entries) -> tuple[jax.Array, jax.Array]:
        """[B,P,n] int32 number of an entry's block in its pool; [B,P,n] float32 r, its rank in the head, newest 1."""
        block = jnp.where(entries.valid, entries.pos // self.unit(entries.cand.layout.budget), -1)
        begins = (block[..., 1:] != block[..., :-1]) | (entries.cand.owner[..., 1:] != entries.cand.owner[..., :-1])
        run = jnp.pad(jnp.cumsum(begins, axis=-1, dtype=jnp.int32), ((0, 0), (0, 0), (1, 0)))
        oldest, newest = -entries.head_max(-run.astype(jnp.float32)), entries.head_max(run.astype(jnp.float32))
        return run, jnp.where(entries.valid, (run - oldest) / jnp.maximum(newest - oldest, 1.0), 0.0)


def block_sums(x: jax.Array, run: jax.Array) -> jax.Array:
    """Sums of x [B,P,n,J] over entries with the same run [B,P,n], given back to every entry."""
    b, p = jnp.ogrid[: x.shape[0], : x.shape[1]]
    at = b[..., None], p[..., None], run
    return jnp.zeros_like(x).at[at].add(x)[at]
