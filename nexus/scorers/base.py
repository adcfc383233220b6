"""The interface of a scorer: what is a cached entry worth?

A scorer is a frozen dataclass: its hyper-parameters are the fields and it has no other state. What it must remember
between calls lives in the buffer: numbers of an entry in columns named by `aux`, numbers of a layer in `init_state`.

    weights   what it needs of the model or of training        once per session
    write     numbers an entry is born with                    inside the layer scan, while the chunk is written
    observe   look at the chunk's queries and attention         inside the layer scan, after attention
    remember  new values of its columns, for what is kept       after the layer scan, at an eviction
    look      run the model once more, leaving nothing behind    before an eviction
    score     one float32 per candidate, higher = keep          after the layer scan, at an eviction

Scorers state preference only; sinks, the recent window and a minimum per head are protected by the method for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import attention, walk
from nexus import buffer as kv
from nexus.models.config import ModelConfig
from nexus.shapes import EMPTY, Layout
from nexus.side import Side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """What one layer sees of one chunk."""

    layer: jax.Array  # [] int32
    q: jax.Array  # [B,K,R,H] folded (R = G*T), post-RoPE, scaled by 1/sqrt(H)
    k: jax.Array  # [B,K,T,H] as stored
    v: jax.Array  # [B,K,T,H]
    x: jax.Array  # [B,T,D] the layer's normed attention input
    pos: jax.Array  # [B,T] int32, EMPTY for padding
    groups: int  # G
    softmax: attention.Partial  # of q over everything it saw; value is not meaningful
    table_k: jax.Array  # [B,E,H]
    table_pos: jax.Array  # [B,E]
    segments: attention.Segments
    tail_k: jax.Array  # [B,K,C,H] of this layer, this chunk included
    tail_pos: jax.Array  # [B,C]
    rng: jax.Array  # [B] typed keys, folded by eviction
    weights: Any  # the layer's share of `Scorer.weights`
    tokens: Any = None  # [B,T] int32

    def add_received(self, table: jax.Array, tail: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Adds the attention every entry received from this chunk, mean over G: table [B,E], tail [B,K,C]."""
        weight = jnp.tile((self.pos >= 0) / self.groups, (1, self.groups)).astype(jnp.float32)
        rows = jnp.tile(self.pos, (1, self.groups))
        queries = attention.Queries(self.q, rows, weight, self.softmax.maximum, self.softmax.total)
        new = attention.add_table_columns(table[..., None], queries, self.table_k, self.table_pos, self.segments)
        more = attention.tail_columns(queries, self.tail_k, self.tail_pos, 1)[..., 0]
        return new[..., 0], tail + jnp.pad(more, ((0, 0), (0, 0), (0, tail.shape[-1] - more.shape[-1])))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entries:
    """All candidates of an eviction, as a scorer sees them: arrays [B,P,n] in the order (owner, position)."""

    buffer: kv.KVBuffer
    cand: kv.Candidates
    weights: Any = None  # of `Scorer.weights`, leaves [L,...]
    scale: str = "rank"  # of the scorer, for samplers
    unit: int = 1  # of the scorer: positions that stand or fall together
    fresh: dict[str, jax.Array] = dataclasses.field(default_factory=dict)  # of `Scorer.remember`, [B,P,n]
    protect: jax.Array | None = None  # [B,P,n] bool, sinks and recent entries: kept whatever they score
    looked: Any = None  # what `Scorer.look` brought

    @property
    def pos(self) -> jax.Array:
        """[B,P,n] int32, EMPTY where there is nothing."""
        return self.cand.pos

    @property
    def valid(self) -> jax.Array:
        """[B,P,n] bool."""
        return self.cand.valid

    @property
    def free(self) -> jax.Array:
        """[B,P,n] bool: live entries that are neither sinks nor recent, those that the score decides about."""
        return self.valid if self.protect is None else self.valid & ~self.protect

    def k(self) -> jax.Array:
        """Keys [B,P,n,H] float32, 0 where there is nothing."""
        return self._live(kv.gather(self.cand, self.buffer.k, self.buffer.tail_k).astype(jnp.float32))

    def v(self) -> jax.Array:
        """Values [B,P,n,H] float32, 0 where there is nothing."""
        return self._live(kv.gather(self.cand, self.buffer.v, self.buffer.tail_v).astype(jnp.float32))

    def aux(self, name: str) -> jax.Array:
        """The scorer's own column [B,P,n]."""
        if name in self.fresh:
            return self.fresh[name]
        return kv.gather(self.cand, self.buffer.aux[name], self.buffer.tail_aux[name])

    def token(self, name: str) -> jax.Array:
        """What is kept once per token, [B,M+C,...]: of the rows of a head, then of the tail."""
        return jnp.concatenate([self.buffer.token[name], self.buffer.tail_token[name]], axis=1)

    def of_tokens(self, x: jax.Array) -> jax.Array:
        """x [B,M+C], said once per token, given to every head's entry of it: [B,P,n]. Equally long heads only."""
        cand, M = self.cand, self.buffer.layout.budget
        at = jnp.where(cand.in_table, cand.row - cand.owner * M, M + cand.column)
        return jnp.take_along_axis(x, at.reshape(at.shape[0], -1), axis=1).reshape(at.shape)

    def _live(self, x: jax.Array) -> jax.Array:
        return jnp.where(self.valid[..., None], x, 0.0)

    def head_mean(self, x: jax.Array) -> jax.Array:
        """Mean of x [B,P,n,J] over the live entries of each head, given back to every entry: [B,P,n,J]."""
        Q = self.cand.layout.pool_heads
        x = self._live(x)
        if Q == 1:
            return x.sum(axis=2, keepdims=True) / jnp.maximum(self.valid.sum(axis=2), 1)[..., None, None]
        member = (self.cand.owner[..., None] % Q == jnp.arange(Q)) & self.valid[..., None]  # [B,P,n,Q]
        member = member.astype(jnp.float32)
        total = jnp.einsum("bpnq,bpnj->bpqj", member, x, precision=lax.Precision.HIGHEST)
        mean = total / jnp.maximum(member.sum(axis=2), 1.0)[..., None]
        b, p = jnp.ogrid[: mean.shape[0], : mean.shape[1]]
        return mean[b[..., None], p[..., None], self.cand.owner % Q]

    def head_sum(self, x: jax.Array) -> jax.Array:
        """Sum of x [B,P,n] over the live entries of each head, given back to every entry: [B,P,n]."""
        x = jnp.where(self.valid, x, 0.0)
        if self.cand.layout.pool_heads == 1:
            return jnp.broadcast_to(x.sum(axis=-1, keepdims=True), x.shape)
        b, p, head = self._heads()
        return jnp.zeros((*x.shape[:2], self.cand.layout.pool_heads), jnp.float32).at[b, p, head].add(x)[b, p, head]

    def head_max(self, x: jax.Array) -> jax.Array:
        """The same for the maximum; -inf for a head without entries."""
        x = jnp.where(self.valid, x, -jnp.inf)
        if self.cand.layout.pool_heads == 1:
            return jnp.broadcast_to(x.max(axis=-1, keepdims=True), x.shape)
        b, p, head = self._heads()
        shape = (*x.shape[:2], self.cand.layout.pool_heads)
        return jnp.full(shape, -jnp.inf, jnp.float32).at[b, p, head].max(x)[b, p, head]

    def _heads(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        b, p = jnp.ogrid[: self.pos.shape[0], : self.pos.shape[1]]
        return b[..., None], p[..., None], self.cand.owner % self.cand.layout.pool_heads

    def head_softmax(self, z: jax.Array, among: jax.Array) -> jax.Array:
        """Softmax of z [B,P,n,J] over the entries of each head where among [B,P,n]; 0 elsewhere."""
        Q = self.cand.layout.pool_heads
        here = self.cand.owner % Q
        member = ((here[..., None] == jnp.arange(Q)) & among[..., None])[..., None]  # [B,P,n,Q,1]
        b, p = jnp.ogrid[: z.shape[0], : z.shape[1]]
        back = lambda x: x[b[..., None], p[..., None], here]  # noqa: E731  [B,P,Q,J] -> [B,P,n,J]
        top = jnp.where(member, z[..., None, :], -jnp.inf).max(axis=2)
        e = jnp.where(among[..., None], jnp.exp(z - back(jnp.where(jnp.isfinite(top), top, 0.0))), 0.0)
        total = back(jnp.where(member, e[..., None, :], 0.0).sum(axis=2))
        return e / jnp.where(total > 0, total, 1.0)

    def each(self, rule: walk.Rule, own: Any, numbers: int) -> jax.Array:
        """What a rule says about every entry from its key, its value and what belongs to its head.

        Args:
            rule: (k [S,H], v [S,H], the head's arrays) -> [S,J], float32, each row by itself.
            own: pytree of arrays [L,B,K,...], or [L,1,K,...] where the sequences share them.
            numbers: J.
        Returns:
            [B,P,n,J] float32, 0 where there is nothing.
        """
        buf = self.buffer
        B = buf.pos.shape[0]

        def layer(out, xs):
            index, k, v, own = xs
            own = jax.tree.map(lambda x: jnp.broadcast_to(x, (B, *x.shape[1:])), own)
            out = walk.over_table(rule, out, buf.k, buf.v, kv.segments(buf, index), own)
            return out, walk.over_tail(rule, k, v, buf.tail_pos != EMPTY, own)

        out = jnp.zeros((B, buf.layout.rows, numbers), jnp.float32)
        layers = jnp.arange(buf.layout.num_layers)
        table, tail = lax.scan(layer, out, (layers, buf.tail_k, buf.tail_v, own))
        return self._live(kv.gather(self.cand, table, tail))

    def window_attention(self, q: jax.Array, q_pos: jax.Array, weight: jax.Array) -> jax.Array:
        """The `wa` of the field: attention of recent queries, window columns dropped after the softmax.

        A = softmax over ALL entries with pos <= q_pos; then entries at or after the oldest query get 0; then the
        weighted sum over the window's rows.

        Args:
            q: [L,B,K,G,W,H] post-RoPE, scaled, in chronological order.
            q_pos: [L,B,W] int32. weight: [L,B,W] float32, 0 for rows that do not exist.
        Returns:
            [B,P,n,G] float32, per query group.
        """
        received = self.attention_of(q, q_pos, weight)
        oldest = jnp.where(weight[0] > 0, q_pos[0], jnp.iinfo(jnp.int32).max).min(axis=-1)  # [B]
        return jnp.where((self.pos < oldest[:, None, None])[..., None], received, 0.0)

    def attention_of(
        self,
        q: jax.Array,
        q_pos: jax.Array,
        weight: jax.Array,
        reduce: attention.Reduce | None = None,
        numbers: int | None = None,
        *,
        one_scale: bool = False,
    ) -> jax.Array:
        """Attention of recent queries over ALL entries with pos <= q_pos; no column is dropped.

        Args:
            q, q_pos, weight: as in `window_attention`.
            reduce: what becomes of the weighted probabilities [...,G*W,S] of one head: [...,J,S]. By default they are
                summed over the window, J = G.
            numbers: J, where `reduce` is given.
            one_scale: the G softmaxes of a row keep their order only: exp(logit - c), one c per row for all groups.
                For rules that reduce logits over the group before the softmax; normalise what comes back.
        Returns:
            [B,P,n,J] float32, 0 where there is nothing.
        """
        L, B, K, G, W, H = q.shape
        buf = self.buffer

        def layer(acc, xs):
            index, q, q_pos, weight, tail_k = xs
            q = q.reshape(B, K, G * W, H)
            rows, weights = jnp.tile(q_pos, (1, G)), jnp.tile(weight, (1, G))
            segments = kv.segments(buf, index)
            mask = attention.tail_mask(q_pos, buf.tail_pos, G)
            part = attention.merge(
                attention.table_softmax(q, rows, buf.k, buf.pos, segments),
                attention.tail_attention(q, tail_k, jnp.zeros_like(tail_k), mask, buf.tail_pos >= 0),
            )
            maximum, total = part.maximum, part.total
            if one_scale:
                top = maximum.reshape(B, K, G, W).max(axis=2, keepdims=True)
                maximum, total = jnp.broadcast_to(top, (B, K, G, W)).reshape(B, K, -1), jnp.ones_like(total)
            queries = attention.Queries(q, rows, weights, maximum, total)
            acc = attention.add_table_columns(acc, queries, buf.k, buf.pos, segments, reduce)
            return acc, attention.tail_columns(queries, tail_k, buf.tail_pos, G, reduce)

        acc = jnp.zeros((B, buf.layout.rows, numbers or G), jnp.float32)
        table, tail = lax.scan(layer, acc, (jnp.arange(L), q, q_pos, weight, buf.tail_k))
        return self._live(kv.gather(self.cand, table, tail))

    def pooled(self, x: jax.Array, kernel: int, kind: str, *, before: jax.Array) -> jax.Array:
        """Pools x [B,P,n,J] over neighbouring slots of one head, stride 1, odd kernel.

        avg divides by the kernel everywhere (also at the borders, as public code does); max pads with -inf. Neighbours
        at or after position `before` [B] are padding: the window's own columns do not take part.
        """
        ok = self.valid & (self.pos < before[:, None, None])
        owner = jnp.where(ok, self.cand.owner, -1)
        fill = 0.0 if kind == "avg" else -jnp.inf
        total = jnp.full(x.shape, fill, jnp.float32)
        half = kernel // 2
        padded = jnp.pad(x, ((0, 0), (0, 0), (half, half), (0, 0)))
        owners = jnp.pad(owner, ((0, 0), (0, 0), (half, half)), constant_values=-2)
        n = x.shape[2]
        for shift in range(kernel):
            same = (owners[:, :, shift : shift + n] == self.cand.owner)[..., None]
            other = jnp.where(same, padded[:, :, shift : shift + n], fill)
            total = total + other if kind == "avg" else jnp.maximum(total, other)
        out = total / kernel if kind == "avg" else total
        return jnp.where(ok[..., None], out, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
    """Base class. A scorer overrides `score`, and the rest only where it needs to."""

    aux: ClassVar[tuple[str, ...]] = ()  # names of its columns
    token: ClassVar[tuple[str, ...]] = ()  # what it needs of every token, kept once for all heads: id, last_input
    one_set: ClassVar[bool] = False  # every head must hold the same positions
    foresees: ClassVar[bool] = False  # a control that must be told the future
    scale: ClassVar[str] = "rank"  # what its numbers are when entries are drawn: mass | log | rank, see samplers.py

    def check(self, budget: int, layout: Layout) -> None:
        """Raises ValueError when the fields do not fit the budget or the model."""

    def bind(self, tokenizer: Any) -> Scorer:
        """The scorer for a model: texts among its fields become token ids. tokenizer: None where there is none."""
        return self

    def unit(self, budget: int) -> int:
        """Positions that stand or fall together (pos // unit): protection is rounded outwards to whole units."""
        return 1

    def recent(self, budget: int) -> int:
        """Newest entries that its rule takes as given: the method protects them unless told otherwise."""
        return 0

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """Arrays it computes from the model's parameters, or loads: a pytree whose leaves lead with L.

        Called once per session, and abstractly for shapes. Raises ValueError for a model they do not fit.
        """
        return {}

    def init_state(self, layout: Layout, batch: int) -> Any:
        """What it remembers per layer: a pytree of arrays [L,B,...]; [1,B,...] where all layers share one."""
        return {}

    def told(self, after: Sequence[int], questions: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Any:
        """The state of a scorer that `foresees`, knowing each row's future: position after which the question begins,
        token ids of question and answer. Raises ValueError for what it cannot be told."""
        raise NotImplementedError

    def write(self, call: Call) -> dict[str, jax.Array]:
        """The numbers new entries are born with: name -> [B,K,T] float32; 0 for names left out."""
        return {}

    def observe(
        self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]
    ) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array]]:
        """Updates the layer's state (leaves [B,...]) and the columns, table [B,E] and the layer's tail [B,K,C]."""
        return state, table, tail

    def look(self, side: Side) -> tuple[kv.KVBuffer, Any]:
        """Runs the model once more before an eviction: (the buffer, its own columns updated; what `score` wants of it).

        What it brings is `entries.looked` of this eviction, and is gone afterwards.
        """
        return side.buffer, None

    def remember(self, entries: Entries, state: Any) -> dict[str, jax.Array]:
        """New values of columns, name -> [B,P,n] float32: `score` reads them by `entries.aux`, and they are stored with
        the entries that are kept. Columns left out stay as they are."""
        return {}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        """[B,P,n] float32, higher = keep. state leaves [L,B,...]; rng [B], folded by sequence and eviction."""
        raise NotImplementedError

    def judge(self, entries: Entries, state: Any, rng: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The score, and a mask [B,P,n] of entries already chosen, which are kept whatever their score; None for none.

        For rules that select in stages. What is chosen must fit its pool together with the protected entries.
        """
        return self.score(entries, state, rng), None
