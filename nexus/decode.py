"""The loop: one step that threads the KV buffer through a chunk of tokens, and the loops that thread it on.

    chunk_step   T tokens through all layers: project, rotate, append to the tail, attend, let the scorer observe
    prefill      chunks of C tokens, an eviction after each; peak memory does not know the prompt's length
    decode       chunks of one token, an eviction every `evict_every` tokens

All are pure and compiled once per shape. The number of chunks is a traced value, so one program serves every prompt
that fits its padded token array; nothing crosses to the host inside.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nexus import attention, rope
from nexus import buffer as kv
from nexus.evict import evict
from nexus.methods import Method
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.scorers.base import Call
from nexus.shapes import EMPTY, Layout
from nexus.side import Side


def with_weights(cfg: ModelConfig, method: Method, params: Any) -> Any:
    """The model's parameters with what the method's scorer needs, under "method": what every function here takes."""
    return params | {"method": method.scorer.weights(cfg, params)}


def init_buffer(method: Method, layout: Layout, batch: int, rng: jax.Array | None = None) -> kv.KVBuffer:
    """An empty buffer with the columns and states of the method's parts. rng: typed keys [B].

    Raises ValueError when the parts do not fit each other or the layout.
    """
    scorer = method.scorer
    scorer.check(layout.budget, layout)
    if scorer.one_set and not (layout.dense and method.sampler.in_step):
        raise ValueError(
            f"method {method.name!r} keeps one set of tokens in all heads: it needs allocator 'per_head' and sampler "
            f"'top' or share_heads=True, got {method.allocator.name!r} and {method.sampler.name!r}"
        )
    return kv.init(
        layout, batch, aux=tuple(scorer.aux), token={name: _token(name, layout) for name in scorer.token},
        state=scorer.init_state(layout, batch), memory=method.compensator.init_memory(layout, batch), rng=rng,
    )  # fmt: skip


def _token(name: str, layout: Layout) -> jax.ShapeDtypeStruct:
    """Shape of what is kept once per token: its id, or what came into the last layer when it was read."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {"id": ((), "int32"), "last_input": ((layout.dim,), layout.dtype)}
    return jax.ShapeDtypeStruct(*shapes[name])


def cut(cfg: ModelConfig, method: Method, params: Any, buf: kv.KVBuffer, layout: Layout | None = None) -> kv.KVBuffer:
    """An eviction (see `evict.evict`), with the scorer's look at the model before it."""
    with jax.named_scope("look"):
        buf, looked = method.scorer.look(Side(cfg=cfg, params=params, buffer=buf))
    return evict(method, params, buf, layout, looked)


# --- one chunk ---------------------------------------------------------------------------------------------------


def chunk_step(
    cfg: ModelConfig,
    method: Method,
    params: Any,
    buf: kv.KVBuffer,
    tokens: jax.Array,
    valid: jax.Array,
    *,
    columns: int,
) -> tuple[kv.KVBuffer, jax.Array]:
    """Runs T tokens through the model against the buffer and leaves them in its tail; evicts nothing.

    Args:
        tokens: [B,T] int32. valid: [B,T] bool, a prefix of each row; padding is not stored and not seen.
        columns: static; tail columns in use at most after this call (fill + T <= columns <= C).
    Returns:
        The buffer and the hidden states [B,T,D] after the final norm.
    """
    T = tokens.shape[1]
    pos = jnp.where(valid, buf.seen[:, None] + jnp.arange(T, dtype=jnp.int32), EMPTY)
    buf = dataclasses.replace(
        buf,
        tail_pos=lax.dynamic_update_slice(buf.tail_pos, pos, (0, buf.fill)),
        seen=buf.seen + valid.sum(axis=1, dtype=jnp.int32),
    )
    attend = functools.partial(
        _attend, cfg, method, params["method"], buf, pos, columns, _rotations(cfg, method, buf, pos, columns), tokens
    )
    tail_token = _write_token(buf.tail_token, "id", tokens, pos, buf.fill)
    carry = (buf.tail_k, buf.tail_v, buf.tail_aux, tail_token, buf.aux, buf.state)
    hidden, carry = transformer.forward(cfg, params, tokens, attend, carry, entering=True)
    tail_k, tail_v, tail_aux, tail_token, aux, state = carry
    buf = dataclasses.replace(
        buf, tail_k=tail_k, tail_v=tail_v, tail_aux=tail_aux, tail_token=tail_token, aux=aux, state=state,
        fill=buf.fill + T,
    )  # fmt: skip
    return buf, hidden


def _write_token(
    tail: dict[str, jax.Array], name: str, new: jax.Array, pos: jax.Array, fill: jax.Array
) -> dict[str, jax.Array]:
    """`tail_token` with new [B,T,...] at columns fill.., 0 for padding; as it is where the scorer does not want it."""
    if name not in tail:
        return tail
    new = jnp.where((pos >= 0).reshape(*pos.shape, *(1,) * (new.ndim - 2)), new, 0).astype(tail[name].dtype)
    return tail | {name: lax.dynamic_update_slice(tail[name], new, (0, fill, *(0,) * (new.ndim - 2)))}


@dataclasses.dataclass(frozen=True)
class _Rotations:
    """How queries and keys are rotated: at true positions once, or at cache positions whenever they are read."""

    query: Any  # (cos, sin) [B,T,H/2] at true positions; in cache mode a function of the layer's count [B,K]
    stored: bool  # keys are stored rotated
    table: attention.Rotate | None  # cache mode: rotates a block of the table by index
    tail_rank: jax.Array  # [B,columns] index of each tail column among the live ones
    call_rank: jax.Array  # [B,T] the same for this call's tokens


def _rotations(cfg: ModelConfig, method: Method, buf: kv.KVBuffer, pos: jax.Array, columns: int) -> _Rotations:
    freq = jnp.asarray(rope.inv_freq(cfg.rope, cfg.head_dim))
    live = buf.tail_pos[:, :columns] != EMPTY
    tail_rank = jnp.cumsum(live, axis=1, dtype=jnp.int32) - 1
    call_rank = lax.dynamic_slice_in_dim(tail_rank, buf.fill, pos.shape[1], axis=1)
    if method.positions == "original":
        cos_sin = rope.cos_sin(jnp.maximum(pos, 0), freq)
        return _Rotations(lambda count: _heads(cos_sin), True, None, tail_rank, call_rank)

    def at(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        return rope.cos_sin(jnp.maximum(index, 0), freq)

    return _Rotations(
        lambda count: at(count[:, :, None] + call_rank[:, None]), False,
        lambda k, index: rope.rotate(k, *at(index)), tail_rank, call_rank,
    )  # fmt: skip


def _heads(cos_sin: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """[B,T,H/2] -> [B,1,T,H/2]: the same for all kv heads."""
    return cos_sin[0][:, None], cos_sin[1][:, None]


def _attend(
    cfg, method: Method, weights, buf: kv.KVBuffer, pos, columns: int, rot: _Rotations, tokens, layer, carry, q, k, v,
    x, entering,
):  # fmt: skip
    """One layer's attention over table and tail; the injected `attend_fn` of the model. Shapes as in transformer.py."""
    tail_k, tail_v, tail_aux, tail_token, aux, state = carry
    tail_token = _write_token(tail_token, "last_input", entering, pos, buf.fill)  # the last layer's is what remains
    segments = kv.segments(buf, layer)
    cos, sin = rot.query(segments.count)  # [B,1|K,T,H/2]
    q = attention.fold(rope.rotate(q, cos[:, :, None], sin[:, :, None]) * (1 / math.sqrt(cfg.head_dim)))
    k = rope.rotate(k, cos, sin) if rot.stored else k
    tail_k = kv.append(tail_k, layer, k, buf.fill)
    tail_v = kv.append(tail_v, layer, v, buf.fill)
    layer_k, layer_v = kv.of_layer((tail_k[..., :columns, :], tail_v[..., :columns, :]), layer)
    tail_pos = buf.tail_pos[:, :columns]
    seen_k = layer_k
    if rot.table is not None:
        seen_k = rot.table(layer_k, segments.count[:, :, None] + rot.tail_rank[:, None])
    with jax.named_scope("attend"):
        layout = buf.layout
        stride = layout.budget if layout.dense else None
        part = attention.table_attention(q, buf.k, buf.v, segments, stride=stride, rotate=rot.table)
        mask = attention.tail_mask(pos, tail_pos, layout.num_groups)
        fresh = functools.partial(attention.chunk_attention, groups=layout.num_groups)
        over_tail = fresh if pos.shape[1] == columns else attention.tail_attention  # fill + T <= C: then fill is 0
        part = attention.merge(part, over_tail(q, seen_k, layer_v, mask, tail_pos >= 0))
        extra = method.compensator.read(kv.of_layer(buf.memory, layer), q)
        part = part if extra is None else attention.merge(part, extra)
    with jax.named_scope("observe"):
        call = Call(
            layer=layer, q=q, k=k, v=v, x=x, pos=pos, groups=layout.num_groups, softmax=part, table_k=buf.k,
            table_pos=buf.pos, segments=segments, tail_k=layer_k, tail_pos=tail_pos, rng=buf.rng,
            weights=kv.of_layer(weights, layer), tokens=tokens,
        )  # fmt: skip
        born = method.scorer.write(call)
        unborn = jnp.zeros(k.shape[:3], jnp.float32)
        tail_aux = {name: kv.append(a, layer, born.get(name, unborn), buf.fill) for name, a in tail_aux.items()}
        here, table, tail = method.scorer.observe(call, kv.of_layer(state, layer), aux, kv.of_layer(tail_aux, layer))
        tail_aux, state = kv.set_layer(tail_aux, layer, tail), kv.set_layer(state, layer, here)
        carry = (tail_k, tail_v, tail_aux, tail_token, table, state)
    B, K, _, H = q.shape
    return attention.finish(part).reshape(B, K, -1, pos.shape[1], H).astype(v.dtype), carry


# --- loops -------------------------------------------------------------------------------------------------------


def prefill(
    cfg: ModelConfig,
    method: Method,
    chunk: int,
    evicting: bool,
    params: Any,
    buf: kv.KVBuffer,
    tokens: jax.Array,
    length: jax.Array,
    hidden: jax.Array,
    *,
    scored: bool = False,
) -> tuple[kv.KVBuffer, jax.Array, jax.Array]:
    """Streams prompts into the buffer, chunk by chunk. The tail must be empty (after decoding: evict) and is again.

    Args:
        chunk: static, C tokens per step. evicting: static; False moves every chunk into the table (full or oneshot).
        tokens: [B,P] int32, right-padded, P a multiple of chunk. length: [B] int32, real tokens of each row.
        hidden: [B,D] of the token before these, zeros at the start. scored: static, whether tokens are judged.
    Returns:
        The buffer, the hidden state [B,D] of each row's newest token, and the log-probability [B,P] float32 (nats) that
        each token had with what the cache held before its chunk and the chunk itself; [B,0] when not scored.
    """
    settle = functools.partial(cut, cfg, method, params) if evicting else kv.commit

    def body(i, carry):
        buf, last, log_p = carry
        part = lax.dynamic_slice_in_dim(tokens, i * chunk, chunk, axis=1)
        valid = i * chunk + jnp.arange(chunk) < length[:, None]
        buf, hidden = chunk_step(cfg, method, params, buf, part, valid, columns=chunk)
        at = length - 1 - i * chunk
        here = jnp.take_along_axis(hidden, jnp.clip(at, 0, chunk - 1)[:, None, None], axis=1)[:, 0]
        if scored:
            before = jnp.concatenate([last[:, None], hidden[:, :-1]], axis=1)
            log_p = lax.dynamic_update_slice(log_p, _log_probability(cfg, params, before, part), (0, i * chunk))
        return settle(buf), jnp.where((at >= 0)[:, None], here, last), log_p

    log_p = jnp.zeros((tokens.shape[0], tokens.shape[1] if scored else 0), jnp.float32)
    return lax.fori_loop(0, (length.max() + chunk - 1) // chunk, body, (buf, hidden, log_p))


def _log_probability(cfg: ModelConfig, params: Any, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
    """log p(token | hidden) [B,T] float32 of hidden [B,T,D], row by row: the logits of one row are live at a time."""

    def row(x):
        h, token = x
        logits = transformer.logits(cfg, params, h)
        return jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0] - jax.nn.logsumexp(logits, axis=1)

    return lax.map(row, (hidden, tokens))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["buffer", "hidden", "done", "rng"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Where a generation stands: all that the next step needs."""

    buffer: kv.KVBuffer
    hidden: jax.Array  # [B,D] of the newest token
    done: jax.Array  # [B] bool
    rng: jax.Array  # [B] typed keys for sampling


def sample(logits: jax.Array, rng: jax.Array, temperature: jax.Array) -> jax.Array:
    """[B,V] float32 -> [B] int32: greedy at temperature 0, else one draw per row from its own key."""
    greedy = lambda: jnp.argmax(logits, axis=-1)  # noqa: E731
    draw = lambda: jax.vmap(jax.random.categorical)(rng, logits / temperature)  # noqa: E731
    return lax.cond(temperature > 0, draw, greedy).astype(jnp.int32)  # a draw costs as much as the logits


def decode(
    cfg: ModelConfig, method: Method, steps: int, evict_every: int, params: Any, state: Decoding, limit: jax.Array,
    end: jax.Array, temperature: jax.Array,
) -> tuple[Decoding, jax.Array]:  # fmt: skip
    """Generates up to `limit` tokens; a row stops at any end token, and steps cost nothing once all rows have stopped.

    Args:
        steps, evict_every: static; evict_every = 0 never evicts (the tail must hold what is generated).
        limit: [] int32, at most `steps`. end: [n] int32 end tokens. temperature: [] float32.
    Returns:
        The state and the tokens [B,steps]; the end token is included, what follows it is EMPTY.
    """
    columns = evict_every or state.buffer.layout.tail

    def live(state: Decoding) -> tuple[Decoding, jax.Array]:
        logits = transformer.logits(cfg, params, state.hidden)
        keys = jax.vmap(jax.random.fold_in)(state.rng, state.buffer.seen)
        token = jnp.where(state.done, EMPTY, sample(logits, keys, temperature))
        done = state.done | (token[:, None] == end[None]).any(axis=1)
        fed = jnp.maximum(token, 0)[:, None]
        buf, hidden = chunk_step(cfg, method, params, state.buffer, fed, ~done[:, None], columns=columns)
        if evict_every:
            buf = _when(buf.fill >= evict_every, functools.partial(cut, cfg, method, params), buf)
        return Decoding(buffer=buf, hidden=hidden[:, 0], done=done, rng=state.rng), token

    def step(state: Decoding, i: jax.Array) -> tuple[Decoding, jax.Array]:
        nothing = jnp.full(state.done.shape, EMPTY, jnp.int32)
        return _when(~state.done.all() & (i < limit), lambda carry: live(carry[0]), (state, nothing))

    state, tokens = lax.scan(step, state, jnp.arange(steps))
    return state, tokens.T


def _when(predicate: jax.Array, fn: Any, x: Any) -> Any:
    """fn(x) where the scalar predicate holds, else x: a loop of no or one turn, since `lax.cond` copies the buffer."""
    return lax.fori_loop(0, predicate.astype(jnp.int32), lambda _, x: fn(x), x)
