"""Memory, as compiled programs and buffers tell it; nothing runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax.numpy as jnp

from experiments.bench.shared import FULL, Bench
from experiments.bench.timing import Measure, Ratio
from nexus import programs
from nexus.generate import Session
from nexus.methods import Method


def peak(bench: Bench) -> Measure:
    """Bytes of buffer and temporaries of a prefill program of one sequence; parameters are not counted."""
    cfg, found = bench.cfg, {}
    short, long = min(cfg.memory_prompts), max(cfg.memory_prompts)
    streaming = {cfg.equal: bench.method(cfg.equal), bench.global_name: bench.global_method()}
    for name, method in streaming.items():
        for length in cfg.memory_prompts:
            found[f"{name}, {length} tokens"] = _peak(bench, method, length)
    for length in cfg.memory_full:
        found[f"{FULL}, {length} tokens"] = _peak(bench, bench.method(FULL), length)
    ratios = [Ratio(top=f"{name}, {long} tokens", bottom=f"{name}, {short} tokens") for name in streaming]
    ratios += [
        Ratio(top=f"{FULL}, {length} tokens", bottom=f"{name}, {long} tokens")
        for length in cfg.memory_full for name in streaming
    ]  # fmt: skip
    return _told(found, ratios)


def _peak(bench: Bench, method: Method, length: int) -> float:
    session = Session(bench.model, method, bench.settings(), 1, capacity=length)
    padded = -(-length // session.chunk) * session.chunk
    args = session.layout, session.chunk, session.evicting, 1, padded, False
    return programs.prefill(bench.model.config, method, *args).peak_bytes


def keys_and_values(bench: Bench) -> Measure:
    """Bytes of the table's keys and values against the formula budget * L * K * 2 * H * bytes of a number."""
    cfg, model = bench.cfg, bench.model.config
    number = jnp.dtype(model.activations).itemsize
    formula = "budget * L * K * 2 * H * bytes"
    found = {formula: cfg.budget * model.num_layers * model.num_kv_heads * 2 * model.head_dim * number}
    ratios = []
    for name, method in ((cfg.unequal, bench.method(cfg.unequal)), (bench.global_name, bench.global_method())):
        buffer = Session(bench.model, method, bench.settings(), 1).buffer
        found[f"{name}, table"] = buffer.k.nbytes + buffer.v.nbytes
        found[f"{name}, with tail"] = buffer.kv_bytes_allocated()
        ratios += [Ratio(top=f"{name}, {part}", bottom=formula) for part in ("table", "with tail")]
    return _told(found, ratios)


def _told(found: Mapping[str, float], ratios: list[Ratio]) -> Measure:
    """A measure of numbers that are already known."""
    contenders = {name: functools.partial(lambda value, turn: value, value) for name, value in found.items()}
    return Measure(unit="bytes", contenders=contenders, ratios=ratios, warm_up=lambda: None)
