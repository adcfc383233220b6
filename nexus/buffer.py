"""The KV buffer: a packed table of entries with a fixed number of rows, and a dense tail for the newest tokens.

One cached entry is one row: a key, a value, its position and what a scorer keeps about it. Layers and heads are
segments of the table, not axes, so a head may hold 3 rows and another 900 and the bytes are still exactly the budget.
Keys are stored after RoPE at their true positions (before RoPE when a method works with cache positions).

    init     an empty buffer
    append   writes one layer's new keys and values into the tail
    attend   see `attention.py`; the segments it walks come from `segments`
    evict    score -> sample -> allocate live in the method; here `candidates` lists what there is to choose from and
             `repack` keeps the chosen rows; `commit` keeps everything (the full cache)

Table rows are sorted by (layer, kv head, position). The tail has the same columns for all layers and heads.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nexus.attention import Segments
from nexus.shapes import EMPTY, Layout


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["k", "v", "pos", "start", "count", "aux", "token", "tail_k", "tail_v", "tail_pos", "tail_aux",
                 "tail_token", "fill", "state", "memory", "seen", "events", "rng"],
    meta_fields=["layout"],
)  # fmt: skip
@dataclasses.dataclass(frozen=True, kw_only=True)
class KVBuffer:
    """The whole cache of a batch as one pytree of fixed shapes."""

    layout: Layout
    k: jax.Array  # [B,E,H]
    v: jax.Array  # [B,E,H]
    pos: jax.Array  # [B,E] int32, EMPTY = -1
    start: jax.Array  # [B,L,K] int32, first row of each segment
    count: jax.Array  # [B,L,K] int32, live rows of each segment
    aux: dict[str, jax.Array]  # name -> [B,E] float32, owned by the scorer, moves with the row
    token: dict[str, jax.Array]  # name -> [B,M,...], once per token: the first head's rows (unequal heads: [B,0,...])
    tail_k: jax.Array  # [L,B,K,C,H]
    tail_v: jax.Array  # [L,B,K,C,H]
    tail_pos: jax.Array  # [B,C] int32, the same for all layers and heads
    tail_aux: dict[str, jax.Array]  # name -> [L,B,K,C] float32
    tail_token: dict[str, jax.Array]  # name -> [B,C,...]
    fill: jax.Array  # [] int32, next free column of the tail
    state: Any  # pytree [L,B,...], per-layer state of the scorer
    memory: Any  # pytree [L,B,...], per-layer state of the compensator
    seen: jax.Array  # [B] int32, tokens seen so far: the next token's position
    events: jax.Array  # [B] int32, evictions so far, for replayable randomness
    rng: jax.Array  # [B] typed PRNG keys

    def kv_bytes_allocated(self) -> int:
        """Bytes of the key and value arrays."""
        return sum(x.nbytes for x in (self.k, self.v, self.tail_k, self.tail_v))

    def copy(self) -> KVBuffer:
        """A copy that survives when this buffer is donated: answer several questions from one context."""
        return jax.tree.map(jnp.copy, self)


def init(
    layout: Layout,
    batch: int,
    *,
    aux: tuple[str, ...] = (),
    token: dict[str, jax.ShapeDtypeStruct] | None = None,
    state: Any = None,
    memory: Any = None,
    rng: jax.Array | None = None,
) -> KVBuffer:
    """An empty buffer.

    Args:
        aux: names of the scorer's per-row numbers.
        token: shape and dtype of what is kept once per token for all layers and heads, by name.
        state, memory: per-layer pytrees [L,B,...] of scorer and compensator.
        rng: typed PRNG keys [B], one per sequence, so that a sequence draws the same alone and in a batch.
    """
    L, K, H, C, E = layout.num_layers, layout.num_kv_heads, layout.head_dim, layout.tail, layout.rows
    dtype = jnp.dtype(layout.dtype)
    if rng is None:
        rng = jax.random.split(jax.random.key(0), batch)
    starts = jnp.arange(layout.owners, dtype=jnp.int32) // layout.pool_heads * layout.pool_rows
    tokens = lambda n: {name: jnp.zeros((batch, n, *x.shape), x.dtype) for name, x in (token or {}).items()}  # noqa: E731
    return KVBuffer(
        layout=layout,
        k=jnp.zeros((batch, E, H), dtype),
        v=jnp.zeros((batch, E, H), dtype),
        pos=jnp.full((batch, E), EMPTY, jnp.int32),
        start=jnp.tile(starts.reshape(1, L, K), (batch, 1, 1)),
        count=jnp.zeros((batch, L, K), jnp.int32),
        aux={name: jnp.zeros((batch, E), jnp.float32) for name in aux},
        token=tokens(_token_rows(layout)),
        tail_k=jnp.zeros((L, batch, K, C, H), dtype),
        tail_v=jnp.zeros((L, batch, K, C, H), dtype),
        tail_pos=jnp.full((batch, C), EMPTY, jnp.int32),
        tail_aux={name: jnp.zeros((L, batch, K, C), jnp.float32) for name in aux},
        tail_token=tokens(C),
        fill=jnp.zeros((), jnp.int32),
        state={} if state is None else state,
        memory={} if memory is None else memory,
        seen=jnp.zeros((batch,), jnp.int32),
        events=jnp.zeros((batch,), jnp.int32),
        rng=rng,
    )


def _token_rows(layout: Layout) -> int:
    """Rows of `token`: those of a head where all heads are equally long."""
    return layout.budget if layout.dense else 0


def append(tail: jax.Array, layer: jax.Array, new: jax.Array, fill: jax.Array) -> jax.Array:
    """Writes new [B,K,T,...] of one layer at columns fill.. of a tail [L,B,K,C,...]."""
    zeros = (0,) * (tail.ndim - 4)
    return lax.dynamic_update_slice(tail, new[None].astype(tail.dtype), (layer, 0, 0, fill, *zeros))


def grow_tail(buffer: KVBuffer, layout: Layout) -> KVBuffer:
    """The same buffer with more tail columns, as `layout` says."""

    def grow(x: jax.Array, axis: int, value: int = 0) -> jax.Array:
        widths = [(0, layout.tail - x.shape[axis] if i == axis else 0) for i in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=value)

    return dataclasses.replace(
        buffer, layout=layout, tail_k=grow(buffer.tail_k, 3), tail_v=grow(buffer.tail_v, 3),
        tail_pos=grow(buffer.tail_pos, 1, EMPTY), tail_aux={name: grow(x, 3) for name, x in buffer.tail_aux.items()},
        tail_token={name: grow(x, 1) for name, x in buffer.tail_token.items()},
    )  # fmt: skip


def of_layer(tree: Any, layer: jax.Array) -> Any:
    """The slice of one layer of a pytree stacked over layers; a leaf [1,...] is shared by all layers."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, layer, keepdims=False), tree)


def set_layer(tree: Any, layer: jax.Array, new: Any) -> Any:
    """The pytree with one layer's slice replaced."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y.astype(x.dtype), layer, 0), tree, new)


def segments(buffer: KVBuffer, layer: jax.Array) -> Segments:
    """Segments of one layer's heads: start and count [B,K]."""
    return Segments(*(lax.dynamic_index_in_dim(x, layer, axis=1, keepdims=False) for x in (buffer.start, buffer.count)))


# --- what there is to choose from --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates:
    """Every entry of table and tail, grouped in the pools of a layout, sorted by (owner, position) in each pool.

    n of a pool = its heads' table rows plus their tail columns; entries that hold nothing have pos EMPTY.
    """

    layout: Layout  # of the table to be filled
    pos: jax.Array  # [B,P,n] int32
    owner: jax.Array  # [B,P,n] int32 = layer * K + kv head (also for empty entries)
    row: jax.Array  # [B,P,n] int32, row of the table, where in_table
    column: jax.Array  # [B,P,n] int32, column of the tail, where not in_table
    in_table: jax.Array  # [B,P,n] bool
    first: jax.Array  # [B,P,Q+1] int32, where the entries of the pool's heads begin

    @property
    def valid(self) -> jax.Array:
        """[B,P,n] bool."""
        return self.pos != EMPTY


def candidates(buffer: KVBuffer, layout: Layout | None = None) -> Candidates:
    """Lists table and tail entries in the pools of `layout` (by default the buffer's own).

    The pools of `layout` must be unions of the buffer's pools, or the buffer must be dense.
    """
    source, layout = buffer.layout, layout or buffer.layout
    P, Q, C = layout.pools, layout.pool_heads, source.tail
    B = buffer.pos.shape[0]
    n = Q * (source.budget + C)
    start, count = (x.reshape(B, P, Q) for x in (buffer.start, buffer.count))
    zero = jnp.zeros((B, P, 1), jnp.int32)
    first = jnp.concatenate([zero, jnp.cumsum(count + C, axis=-1)], axis=-1)
    at = jnp.arange(n, dtype=jnp.int32)
    # the head of candidate i: how many heads' entries have ended at or before i
    head = (at[None, None, :, None] >= first[:, :, None, 1:]).sum(-1) if Q <= 4 else _head_of(first, n)
    inside = head < Q
    head = jnp.minimum(head, Q - 1)
    take = lambda x: jnp.take_along_axis(x, head, axis=-1)  # noqa: E731
    within = at - take(first[..., :-1])
    in_table = within < take(count)
    column = within - take(count)
    row = jnp.clip(take(start) + within, 0, source.rows - 1)
    column = jnp.clip(column, 0, C - 1)
    owner = head + jnp.arange(P, dtype=jnp.int32)[None, :, None] * Q
    table_pos = jnp.take_along_axis(buffer.pos, row.reshape(B, -1), axis=1).reshape(row.shape)
    tail_pos = jnp.take_along_axis(buffer.tail_pos, column.reshape(B, -1), axis=1).reshape(row.shape)
    pos = jnp.where(inside, jnp.where(in_table, table_pos, tail_pos), EMPTY)
    return Candidates(layout=layout, pos=pos, owner=owner, row=row, column=column, in_table=in_table, first=first)


def _head_of(first: jax.Array, n: int) -> jax.Array:
    """[B,P,n] index of the head that owns each candidate, Q where none does; by one scatter of the boundaries."""
    mark = jnp.zeros((*first.shape[:2], n + 1), jnp.int32)
    b, p = jnp.ogrid[: first.shape[0], : first.shape[1]]
    return jnp.cumsum(mark.at[b[..., None], p[..., None], first[..., 1:]].add(1, mode="drop"), axis=-1)[..., :n]


def gather(cand: Candidates, table: jax.Array, tail: jax.Array) -> jax.Array:
    """Values of the candidates: table [B,E,...], tail [L,B,K,C,...] -> [B,P,n,...]."""
    b = jnp.arange(table.shape[0])[:, None, None]
    K = cand.layout.num_kv_heads
    from_table = table[b, cand.row]
    from_tail = tail[cand.owner // K, b, cand.owner % K, cand.column]
    return jnp.where(cand.in_table.reshape(*cand.in_table.shape, *(1,) * (table.ndim - 2)), from_table, from_tail)


# --- keeping -----------------------------------------------------------------------------------------------------


def repack(buffer: KVBuffer, cand: Candidates, keep: jax.Array, fresh: dict[str, jax.Array] | None = None) -> KVBuffer:
    """Keeps the candidates where keep [B,P,n] is true, at most the layout's pool rows each; the tail is empty again.

    fresh: new values [B,P,n] of columns of aux, in the place of the buffer's.
    """
    fresh = fresh or {}
    layout = cand.layout
    B, P, n = keep.shape
    rows = layout.pool_rows
    through = jnp.cumsum(keep, axis=-1, dtype=jnp.int32)  # kept up to and including this candidate
    kept = through[..., -1:]
    target = jnp.where(keep, through - 1, rows)
    b, p = jnp.ogrid[:B, :P]
    chosen = jnp.zeros((B, P, rows), jnp.int32).at[b[..., None], p[..., None], target].set(jnp.arange(n), mode="drop")
    take = lambda x: jnp.take_along_axis(x, chosen, axis=-1)  # noqa: E731
    live = jnp.arange(rows) < kept
    sel = Candidates(
        layout=layout, pos=jnp.where(live, take(cand.pos), EMPTY), owner=take(cand.owner), row=take(cand.row),
        column=take(cand.column), in_table=take(cand.in_table), first=cand.first,
    )  # fmt: skip
    before = jnp.concatenate([jnp.zeros_like(kept), through], axis=-1)
    ends = jnp.take_along_axis(before, jnp.minimum(cand.first, n), axis=-1)  # [B,P,Q+1] kept before each head
    shape = (B, layout.num_layers, layout.num_kv_heads)
    base = jnp.arange(P, dtype=jnp.int32)[None, :, None] * rows
    flat = lambda x: x.reshape(B, P * rows, *x.shape[3:])  # noqa: E731
    return dataclasses.replace(
        buffer,
        layout=layout,
        k=flat(gather(sel, buffer.k, buffer.tail_k)),
        v=flat(gather(sel, buffer.v, buffer.tail_v)),
        pos=flat(sel.pos),
        start=(ends[..., :-1] + base).reshape(shape),
        count=jnp.diff(ends, axis=-1).reshape(shape),
        aux={
            name: flat(take(fresh[name]) if name in fresh else gather(sel, x, buffer.tail_aux[name]))
            for name, x in buffer.aux.items()
        },
        token={name: _chosen_tokens(sel, x, buffer.tail_token[name]) for name, x in buffer.token.items()},
        tail_k=buffer.tail_k[..., : layout.tail, :],
        tail_v=buffer.tail_v[..., : layout.tail, :],
        tail_aux={name: x[..., : layout.tail] for name, x in buffer.tail_aux.items()},
        tail_token={name: x[:, : layout.tail] for name, x in buffer.tail_token.items()},
        **_emptied(buffer) | {"tail_pos": jnp.full((B, layout.tail), EMPTY, jnp.int32)},
    )


def _chosen_tokens(sel: Candidates, table: jax.Array, tail: jax.Array) -> jax.Array:
    """`token` after a cut: what the first head holds, whose rows are the first of the table; [B,M,...]."""
    if not sel.layout.dense:
        return table[:, :0]
    b = jnp.arange(table.shape[0])[:, None]
    in_table = sel.in_table[:, 0].reshape(*sel.in_table[:, 0].shape, *(1,) * (table.ndim - 2))
    return jnp.where(in_table, table[b, jnp.minimum(sel.row[:, 0], table.shape[1] - 1)], tail[b, sel.column[:, 0]])


def _emptied(buffer: KVBuffer) -> dict[str, Any]:
    """Fields of a buffer whose tail has just been taken over by the table."""
    had_any = (buffer.tail_pos != EMPTY).any(axis=1)
    return {
        "tail_pos": jnp.full_like(buffer.tail_pos, EMPTY),
        "fill": jnp.zeros_like(buffer.fill),
        "events": buffer.events + had_any.astype(jnp.int32),
    }


def commit(buffer: KVBuffer) -> KVBuffer:
    """Keeps everything: moves the tail's live columns, a prefix of it, behind each head's rows, in place.

    Only for dense layouts, and only while M >= count + live columns, which the caller has checked on the host.
    """
    layout = buffer.layout
    owners, M = layout.owners, layout.budget
    width = min(layout.tail, M)
    new = (buffer.tail_pos != EMPTY).sum(axis=1, dtype=jnp.int32)  # [B]

    def write(b, table, tail):
        """table [B,O*M,...], tail [O,B,C,...]: a window of `width` rows of every head is read, merged and put back."""
        count = buffer.count[b, 0, 0]
        low = jnp.minimum(count, M - width)  # never past the end of the segment
        rest = table.shape[2:]
        zeros = (0,) * len(rest)
        heads = table.reshape(table.shape[0], owners, M, *rest)
        old = lax.dynamic_slice(heads, (b, 0, low, *zeros), (1, owners, width, *rest))[0]
        add = lax.dynamic_index_in_dim(tail, b, axis=1, keepdims=False)[:, :width]
        index = jnp.arange(width) + low
        add = jnp.roll(add, count - low, axis=1)
        fresh = ((index >= count) & (index < count + new[b])).reshape(1, width, *(1,) * len(rest))
        heads = lax.dynamic_update_slice(heads, jnp.where(fresh, add, old)[None], (b, 0, low, *zeros))
        return heads.reshape(table.shape)

    def one(b, tables):
        return jax.tree.map(lambda table, tail: write(b, table, tail), tables, tails)

    by_owner = lambda x: jnp.moveaxis(x, 2, 1).reshape(owners, x.shape[1], *x.shape[3:])  # noqa: E731  [L,B,K,C,..] -> [O,B,C,..]
    tail_pos = jnp.broadcast_to(buffer.tail_pos[None], (owners, *buffer.tail_pos.shape))
    tails = (*map(by_owner, (buffer.tail_k, buffer.tail_v)), tail_pos, jax.tree.map(by_owner, buffer.tail_aux))
    k, v, pos, aux = lax.fori_loop(0, buffer.pos.shape[0], one, (buffer.k, buffer.v, buffer.pos, buffer.aux))
    behind = buffer.count[:, 0, 0, None] + jnp.arange(layout.tail)
    at = jnp.where(jnp.arange(layout.tail) < new[:, None], behind, M)
    b = jnp.arange(at.shape[0])[:, None]
    token = {name: x.at[b, at].set(buffer.tail_token[name], mode="drop") for name, x in buffer.token.items()}
    return dataclasses.replace(
        buffer, k=k, v=v, pos=pos, aux=aux, token=token, count=buffer.count + new[:, None, None], **_emptied(buffer)
    )
