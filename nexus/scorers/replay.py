"""Replay: an entry is worth the most attention it gets while the model repeats the context. KVzip.

Kim et al., "KVzip", arXiv 2505.23416. After the prefill the context is replayed, `chunk` tokens at a time:

    input    a request to repeat . [the last 8 tokens before the chunk] . the chat template's answer header . the chunk
    score    of an entry of the chunk, per kv head: max over G and all replayed queries of the attention to it,
             softmax over [sinks, chunk, the replay's own keys, causally]

The replay attends to all that is held; its own keys and values are dropped after each chunk. Every entry is scored
once, when it is first up for eviction, and carries its score. Scores lie in [0, 1] and share one global budget.

    oneshot     as the paper: one replay of everything at the cut
    streaming   an extension: before each eviction the tail alone is replayed, against what is kept and the tail

Differs from kvpress: the chat template's prefix is part of what is replayed (there it scores 0, sinks apart, and goes
first); KVzip+ (division by the hidden state's norm, times the value's) is left out. The requests are texts that the
session turns into ids (`bind`), or token ids.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import attention
from nexus import buffer as kv
from nexus.scorers.base import Call, Entries, Scorer
from nexus.side import Side

ASK = "\n\nRepeat the previous context exactly."
ASK_LATER = "\n\nRepeat the part of the previous context exactly, starting with"
CHAT = "chat"
LEAD = 8  # tokens before a later chunk that tell where to start
NOT_YET = -1.0
COLUMN = "replayed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay(Scorer):
    """score = most attention received while the context is repeated."""

    chunk: int = 2048  # context tokens per replay
    softmax_sinks: int = 4  # first entries that take part in the softmax of later chunks
    ask: Any = ASK  # text or token ids
    ask_later: Any = ASK_LATER  # ... of the later chunks
    reply: Any = CHAT  # token ids between request and repetition, or chat: what the model's template writes there

    aux: ClassVar[tuple[str, ...]] = (COLUMN,)
    token: ClassVar[tuple[str, ...]] = ("id",)

    def __post_init__(self) -> None:
        for name, least in (("chunk", 1), ("softmax_sinks", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if isinstance(self.reply, str) and self.reply != CHAT:
            raise ValueError(f"reply {self.reply!r}; allowed: {CHAT}, or token ids")

    def bind(self, tokenizer: Any) -> Scorer:
        texts = [name for name in ("ask", "ask_later", "reply") if isinstance(getattr(self, name), str)]
        if not texts:
            return self
        if tokenizer is None:
            raise ValueError(f"{', '.join(texts)} are texts and the model has no tokenizer: give token ids")
        ids: dict[str, Any] = {name: tuple(tokenizer.encode(getattr(self, name))) for name in texts}
        if "reply" in ids:
            ids["reply"] = tuple(tokenizer.prompt("", "", "")[1])
        return dataclasses.replace(self, **ids)

    def write(self, call: Call) -> dict[str, jax.Array]:
        return {COLUMN: jnp.full(call.k.shape[:3], NOT_YET, jnp.float32)}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return entries.aux(COLUMN)

    def look(self, side: Side) -> tuple[kv.KVBuffer, Any]:
        """Replays what has no score yet: rows of the table (the cut of oneshot), then the tail."""
        buf, layout = side.buffer, side.buffer.layout
        B, L, K, M = buf.pos.shape[0], layout.num_layers, layout.num_kv_heads, layout.budget
        table, tail = buf.aux[COLUMN], buf.tail_aux[COLUMN]
        if layout.dense:
            live = (buf.pos[:, :M] >= 0) & (table[:, :M] == NOT_YET)
            where = _Where(ids=buf.token["id"], live=live, rows=True)
            scores = jnp.moveaxis(table.reshape(B, L, K, M), 0, 1)
            table = jnp.moveaxis(self._replay(side, where, scores), 1, 0).reshape(B, -1)
        where = _Where(ids=buf.tail_token["id"], live=(buf.tail_pos >= 0) & (tail[0, :, 0] == NOT_YET), rows=False)
        tail = self._replay(side, where, tail)
        return dataclasses.replace(buf, aux={COLUMN: table}, tail_aux={COLUMN: tail}), None

    def _replay(self, side: Side, where: _Where, scores: jax.Array) -> jax.Array:
        """scores [L,B,K,S] with those of live slots filled in, chunk by chunk; slots are in order of position."""
        S = where.ids.shape[1]
        size = min(self.chunk, S)
        slots = jnp.where(where.live, jnp.arange(S) + 1, 0).max()  # as far as there is anything

        def one(i, scores):
            at = i * size + jnp.arange(size)
            here = jnp.minimum(at, S - 1)
            live = where.live[:, here] & (at < S)
            tokens, valid = self._input(where.ids, i * size, where.ids[:, here], live)
            new = self._attention(side, where, i * size, here, live, tokens, valid)
            new = jnp.where(live[:, None], new, scores[..., here])
            return scores.at[..., jnp.where(at < S, at, S)].set(new, mode="drop")

        return lax.fori_loop(0, (slots + size - 1) // size, one, scores)

    def _input(self, ids: jax.Array, first: jax.Array, chunk: jax.Array, live: jax.Array):
        """Tokens and validity [B,T] of one replay: the first chunk is asked for in other words than later ones."""
        B, size = chunk.shape
        lead = min(LEAD, size)
        before = ids[:, jnp.maximum(first - lead, 0) + jnp.arange(lead)]
        say = lambda text: jnp.broadcast_to(jnp.asarray(_ids(text), jnp.int32), (B, len(text)))  # noqa: E731
        starts = [[say(self.ask), say(self.reply)], [say(self.ask_later), before, say(self.reply)]]
        forms = [jnp.concatenate([*start, chunk], axis=1) for start in starts]
        shown = [jnp.concatenate([jnp.ones((B, form.shape[1] - size), bool), live], axis=1) for form in forms]
        T = max(form.shape[1] for form in forms)
        T = T if T <= attention.DIAGONAL else -(-T // attention.DIAGONAL) * attention.DIAGONAL
        pad = lambda x: jnp.pad(x, ((0, 0), (0, T - x.shape[1])))  # noqa: E731
        tokens, valid = (jnp.where(first == 0, pad(x[0]), pad(x[1])) for x in (forms, shown))
        return jnp.where(valid, tokens, 0), valid & live.any(axis=1, keepdims=True)

    def _attention(self, side: Side, where: _Where, first, here, live, tokens, valid) -> jax.Array:
        """[L,B,K,size] most attention each slot of the chunk gets."""
        buf, layout = side.buffer, side.buffer.layout
        B, L, K, H = buf.pos.shape[0], layout.num_layers, layout.num_kv_heads, layout.head_dim
        pos = side.positions(valid)

        def collect(layer, into, q, k, part):
            segments = kv.segments(buf, layer)
            if where.rows:
                heads = lax.dynamic_slice_in_dim(buf.k.reshape(B, -1, layout.budget, H), layer * K, K, axis=1)
                held = jnp.minimum(segments.count, first)  # sinks within this chunk are not named twice
            else:
                heads, held = kv.of_layer(buf.tail_k, layer), segments.count
            rank = jnp.arange(self.softmax_sinks)
            row = jnp.minimum(segments.start[..., None] + rank, layout.rows - 1)  # [B,K,sinks]
            b = jnp.arange(B)[:, None, None]
            sink = (rank < held[..., None]) & (buf.pos[b, row] < self.softmax_sinks)
            keys = jnp.concatenate([heads[:, :, here], buf.k[b, row], k.astype(buf.k.dtype)], axis=2)
            shown = jnp.concatenate([jnp.broadcast_to(live[:, None], (B, K, live.shape[1])), sink], axis=2)
            return kv.set_layer(into, layer, _most(q, keys, shown, pos, layout.num_groups)[..., : live.shape[1]])

        into = jnp.zeros((L, B, K, live.shape[1]), jnp.float32)
        return side.follow(tokens, pos, collect, into)[1]


@dataclasses.dataclass(frozen=True)
class _Where:
    """Slots that may be replayed."""

    ids: jax.Array  # [B,S] int32
    live: jax.Array  # [B,S] bool: held, and without a score
    rows: bool  # rows of equally long heads; else columns of the tail


def _ids(text: Any) -> tuple[int, ...]:
    if isinstance(text, str):
        raise ValueError(f"{text!r} is not a list of token ids: scorers with texts need `bind`")
    return tuple(text)


def _most(q: jax.Array, k: jax.Array, shown: jax.Array, pos: jax.Array, groups: int) -> jax.Array:
    """The largest attention of any query to each of the first keys, those that all queries see where shown.

    q [B,K,G*T,H], k [B,K,n+T,H], shown [B,K,n], pos [B,T] of queries and of the last T keys -> [B,K,n] float32. Goes
    by blocks of queries.
    """
    (B, K, _, H), T, n = q.shape, pos.shape[1], shown.shape[2]
    size = attention.DIAGONAL if T % attention.DIAGONAL == 0 else T
    k = jnp.where(jnp.concatenate([shown, jnp.ones((B, K, T), bool)], axis=2)[..., None], k, 0)
    q = q.reshape(B, K, groups, T, H)

    def block(i, most):
        rows = lax.dynamic_slice_in_dim(q, i * size, size, axis=3).reshape(B, K, -1, H)
        row_pos = lax.dynamic_slice_in_dim(pos, i * size, size, axis=1)
        own = jnp.broadcast_to(attention.tail_mask(row_pos, pos, groups), (B, K, groups * size, T))
        mask = jnp.concatenate([jnp.broadcast_to(shown[:, :, None], (B, K, groups * size, n)), own], axis=-1)
        z = attention.logits(rows, k, mask)
        p = jnp.where(mask, jnp.exp(z - z.max(axis=-1, keepdims=True)), 0.0)
        total = p.sum(axis=-1, keepdims=True)
        p = (p / jnp.where(total > 0, total, 1.0))[..., :n]
        real = jnp.tile(row_pos >= 0, (1, groups))[:, None, :, None]
        return jnp.maximum(most, jnp.where(real, p, 0.0).max(axis=2))

    return lax.fori_loop(0, T // size, block, jnp.zeros((B, K, n), jnp.float32))
