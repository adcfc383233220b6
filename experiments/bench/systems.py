"""What each method costs beside the model: one chunk of a prompt with and without everything that evicts.

    with      the chunk through the model, the method's observations, its score, the selection and the repacking
    alone     the same chunk against a table of the same shape that nothing looks at and nothing is evicted from

Both start from what the method (and, alone, recency) holds after the same text. The share of a chunk that goes to the
method is 1 - alone / with.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.bench.shared import Bench
from experiments.bench.timing import Measure, Ratio
from nexus import decode, programs
from nexus.buffer import KVBuffer
from nexus.generate import Session
from nexus.methods import Method

WITH, ALONE = "with the method", "the model alone"
FULL_TABLES = 4  # budgets of text that are read before anything is timed


def cost(bench: Bench, name: str) -> Measure:
    """Milliseconds of one chunk; the method may lack numbers for this model, which is said."""
    method = bench.method(name)
    shapes = jax.eval_shape(lambda: bench.model.params)
    try:
        jax.eval_shape(functools.partial(decode.with_weights, bench.model.config, method), shapes)
    except ValueError as error:
        return Measure(unit="ms", contenders={}, missing={WITH: str(error)})
    dense = method.layout(bench.model.config, tail=bench.cfg.chunks[0]).dense
    beside = bench.method("streaming_llm", allocator="per_head" if dense else "global", num_sinks=method.num_sinks)
    measured, whole = _contender(bench, method, cut=True)
    plain, model = _contender(bench, beside, cut=False)
    ratio = Ratio(top=WITH, bottom=ALONE, at_most=round(1 / (1 - bench.cfg.method_at_most), 3))

    def facts() -> dict[str, dict[str, int]]:
        return {"peak bytes of the program": {WITH: whole.peak_bytes, ALONE: model.peak_bytes}}

    return Measure(
        unit="ms", contenders={WITH: measured, ALONE: plain}, ratios=[ratio], turns=bench.cfg.repeats, facts=facts
    )


def _contender(bench: Bench, method: Method, cut: bool) -> tuple[Callable[[int], float], programs.Program]:
    """(turn -> milliseconds of one chunk, the program that runs it)."""
    chunk = bench.cfg.chunks[0]
    session = Session(bench.model, method, bench.settings(), 1)
    text = bench.prompts(1, FULL_TABLES * method.budget + chunk)
    session.feed([text[0][:-chunk]])
    tokens, length = jnp.asarray([text[0][-chunk:]], jnp.int32), jnp.full((1,), chunk, jnp.int32)
    where = (bench.model.config, session.method, session.layout)
    if cut:
        program = programs.prefill(*where, chunk, True, 1, chunk, False)
        run = lambda buffer: program.run(session.params, buffer, tokens, length, session.hidden)  # noqa: E731
    else:
        program = programs.feed(*where, chunk, 1, chunk)
        run = lambda buffer: program.run(session.params, buffer, tokens, length)  # noqa: E731
    return functools.partial(_timed, run, session.buffer), program


def _timed(run: Callable[[KVBuffer], tuple[jax.Array, ...]], buffer: KVBuffer, turn: int) -> float:
    copy = jax.block_until_ready(buffer.copy())  # programs take their buffer over
    began = time.perf_counter()
    jax.block_until_ready(run(copy))
    return (time.perf_counter() - began) * 1e3
