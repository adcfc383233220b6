"""Compiled programs, one per static shape, with what compiling told about them: seconds and peak bytes.

Programs take the parameters of `decode.with_weights`. They are compiled ahead of time from shapes alone: compiling is
timed apart from running, and a prompt of another length never compiles anything. The buffer is donated: a caller who
needs it again copies it first (`KVBuffer.copy`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nexus import buffer as kv
from nexus import decode
from nexus.methods import Method
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled function of device arrays."""

    run: Callable[..., Any]
    compile_s: float
    peak_bytes: int  # buffer and temporaries, the model's parameters not counted


@functools.lru_cache(maxsize=64)
def prefill(
    cfg: ModelConfig,
    method: Method,
    layout: Layout,
    chunk: int,
    evicting: bool,
    batch: int,
    padded: int,
    scored: bool,
) -> Program:
    """(params, buffer, tokens [B,padded], length [B], hidden [B,D]) -> (buffer, hidden [B,D], log_p [B,padded] or
    [B,0]); see `decode.prefill`."""
    fn = functools.partial(decode.prefill, cfg, method, chunk, evicting, scored=scored)
    given = _buffer(method, layout, batch), _ints(batch, padded), _ints(batch), _hidden(cfg, batch)
    return _compile(fn, (1,), cfg, method, *given)


@functools.lru_cache(maxsize=64)
def feed(cfg: ModelConfig, method: Method, layout: Layout, columns: int, batch: int, tokens: int) -> Program:
    """(params, buffer, tokens [B,T], length [B]) -> (buffer, hidden [B,D]): appends to the tail and evicts nothing."""

    def fn(params, buf, tokens, length):
        valid = jnp.arange(tokens.shape[1]) < length[:, None]
        buf, hidden = decode.chunk_step(cfg, method, params, buf, tokens, valid, columns=columns)
        last = jnp.maximum(length - 1, 0)[:, None, None]
        return buf, jnp.take_along_axis(hidden, last, axis=1)[:, 0]

    return _compile(fn, (1,), cfg, method, _buffer(method, layout, batch), _ints(batch, tokens), _ints(batch))


@functools.lru_cache(maxsize=64)
def compress(cfg: ModelConfig, method: Method, source: Layout, target: Layout, batch: int) -> Program:
    """(params, buffer) -> buffer: one eviction into the layout `target`; with target = source it empties the tail."""
    donate = (1,) if source == target else ()  # a smaller buffer cannot take the place of a larger one
    fn = functools.partial(decode.cut, cfg, method, layout=target)
    return _compile(fn, donate, cfg, method, _buffer(method, source, batch))


@functools.lru_cache(maxsize=64)
def generate(
    cfg: ModelConfig, method: Method, layout: Layout, steps: int, evict_every: int, batch: int, ends: int
) -> Program:
    """(params, Decoding, limit, end [ends], temperature) -> (Decoding, tokens [B,steps]); see `decode.decode`."""
    fn = functools.partial(decode.decode, cfg, method, steps, evict_every)
    state: Any = decode.Decoding(
        buffer=_buffer(method, layout, batch),
        hidden=_hidden(cfg, batch),  # type: ignore[arg-type]  # shapes only
        done=jax.ShapeDtypeStruct((batch,), jnp.bool_),  # type: ignore[arg-type]
        rng=jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch)),
    )
    return _compile(fn, (1,), cfg, method, state, _ints(), _ints(ends), jax.ShapeDtypeStruct((), jnp.float32))


def _buffer(method: Method, layout: Layout, batch: int) -> kv.KVBuffer:
    return jax.eval_shape(functools.partial(decode.init_buffer, method, layout, batch))


def _hidden(cfg: ModelConfig, batch: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, cfg.dim), jnp.dtype(cfg.activations))


def _ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _compile(fn: Callable[..., Any], donate: tuple[int, ...], cfg: ModelConfig, method: Method, *args: Any) -> Program:
    began = time.perf_counter()
    params = jax.eval_shape(functools.partial(decode.with_weights, cfg, method), transformer.param_shapes(cfg))
    compiled = jax.jit(fn, donate_argnums=donate).lower(params, *args).compile()
    memory: Any = compiled.memory_analysis()
    weights = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))
    moved = memory.argument_size_in_bytes - weights + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Program(run=compiled, compile_s=time.perf_counter() - began, peak_bytes=moved + memory.temp_size_in_bytes)
