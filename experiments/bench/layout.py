"""What heads of unequal length cost: the same entries in equal and in unequal heads, nothing evicted inside.

Both sides are one method with another allocator, on a full table whose segments are prescribed (`bench.spread`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.shared import Bench
from experiments.bench.timing import Measure, Ratio
from nexus import decode, programs
from nexus.buffer import KVBuffer
from nexus.methods import Method
from nexus.shapes import Layout


def spread_counts(owners: int, budget: int, low: int, high: int) -> np.ndarray:
    """[O] rows per head from exactly low to exactly high, along a power curve, with the mean exactly `budget`."""
    at = np.linspace(0.0, 1.0, owners)
    small, large = 1e-3, 1e3  # exponents
    for _ in range(100):
        power = (small * large) ** 0.5
        small, large = (power, large) if (low + (high - low) * at**power).mean() > budget else (small, power)
    counts = np.rint(low + (high - low) * at**power).astype(np.int64)
    while rest := budget * owners - int(counts.sum()):
        room = np.flatnonzero((counts + np.sign(rest) >= low) & (counts + np.sign(rest) <= high))
        room = room[(room > 0) & (room < owners - 1)][: abs(rest)]
        if not len(room):
            raise ValueError(f"{owners} heads of {low} to {high} rows cannot hold {budget} on average")
        counts[room] += np.sign(rest)
    return counts


def filled(bench: Bench, method: Method, layout: Layout, batch: int) -> KVBuffer:
    """A full table of random entries, heads as long as the layout allows: all alike, or as `bench.spread` says."""
    rng, owners = np.random.default_rng(bench.cfg.seed), layout.owners
    equal = np.full((batch, owners), layout.budget)
    spread = spread_counts(owners, layout.budget, *bench.cfg.spread)
    counts = equal if layout.dense else np.stack([rng.permutation(spread) for _ in range(batch)])
    start = np.cumsum(counts, axis=1) - counts
    pos = np.stack([np.concatenate([np.arange(n) for n in row]) for row in counts])
    k, v = (jnp.asarray(rng.normal(size=(batch, layout.rows, layout.head_dim)), layout.dtype) for _ in range(2))
    ints = functools.partial(jnp.asarray, dtype=jnp.int32)
    shape = (batch, layout.num_layers, layout.num_kv_heads)
    return dataclasses.replace(
        decode.init_buffer(method, layout, batch), k=k, v=v, pos=ints(pos), start=ints(start.reshape(shape)),
        count=ints(counts.reshape(shape)), seen=jnp.full((batch,), int(counts.max()), jnp.int32),
    )  # fmt: skip


def _measure(bench: Bench, tail: int, batch: int, program: Callable[..., Any], at_most: float, steps: int) -> Measure:
    """program(method, layout) -> (buffer -> array that is ready when all is done)."""
    contenders: dict[str, Callable[[int], float]] = {}
    for name, allocator in (("equal heads", "per_head"), ("unequal heads", "global")):
        method = bench.method(bench.cfg.equal, allocator=allocator)
        layout = method.layout(bench.model.config, tail=tail)
        contenders[name] = functools.partial(
            _timed, program(method, layout), filled(bench, method, layout, batch), 1e3 / steps
        )
    ratio = Ratio(top="unequal heads", bottom="equal heads", at_most=at_most)
    return Measure(unit="ms", contenders=contenders, ratios=[ratio], turns=bench.cfg.repeats)


def _timed(run: Callable[[KVBuffer], jax.Array], buffer: KVBuffer, scale: float, turn: int) -> float:
    copy = jax.block_until_ready(buffer.copy())  # programs take their buffer over
    began = time.perf_counter()
    jax.block_until_ready(run(copy))
    return (time.perf_counter() - began) * scale


def chunk_step(bench: Bench, batch: int) -> Measure:
    """Milliseconds of one chunk of a prompt through the whole model."""
    chunk = bench.cfg.chunks[0]
    tokens, length = jnp.asarray(bench.prompts(batch, chunk), jnp.int32), jnp.full((batch,), chunk, jnp.int32)

    def program(method: Method, layout: Layout) -> Callable[[KVBuffer], jax.Array]:
        params = decode.with_weights(bench.model.config, method, bench.model.params)
        feed = programs.feed(bench.model.config, method, layout, chunk, batch, chunk)
        return lambda buffer: feed.run(params, buffer, tokens, length)[1]

    return _measure(bench, chunk, batch, program, bench.cfg.chunk_at_most, 1)


def decode_step(bench: Bench, batch: int) -> Measure:
    """Milliseconds of one decoded token, logits included."""
    cfg, steps = bench.model.config, bench.cfg.evict_every

    def program(method: Method, layout: Layout) -> Callable[[KVBuffer], jax.Array]:
        params = decode.with_weights(cfg, method, bench.model.params)
        step = programs.generate(cfg, method, layout, steps, 0, batch, 1)
        numbers = jnp.int32(steps), jnp.asarray([-2], jnp.int32), jnp.float32(0)  # no token ends it

        def run(buffer: KVBuffer) -> jax.Array:
            hidden, done = jnp.zeros((batch, cfg.dim), cfg.activations), jnp.zeros((batch,), bool)
            rng = jax.random.split(jax.random.key(0), batch)
            return step.run(params, decode.Decoding(buffer=buffer, hidden=hidden, done=done, rng=rng), *numbers)[1]

        return run

    return _measure(bench, steps, batch, program, bench.cfg.decode_at_most, steps)
