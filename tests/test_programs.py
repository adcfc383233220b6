"""What compiling says: memory that does not know the prompt's length, and buffers that are reused in place."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import decode, methods, programs
from nexus.models.presets import PRESETS
from tests import tiny

WIDE = dataclasses.replace(
    PRESETS["tiny-llama"], name="wide", max_position=1 << 17, num_kv_heads=4, num_heads=8, head_dim=64
)


def peak(method, padded: int) -> int:
    layout = method.layout(WIDE, tail=128, budget=padded if method.full else None)
    return programs.prefill(WIDE, method, layout, 128, not method.full, 1, padded, False).peak_bytes


def test_peak_memory_does_not_know_the_prompt():
    """Prefill that stays full runs out of memory on long prompts (FasterDecoding/SnapKV#9, NVIDIA/kvpress#167), and
    more was used with the method than without (SnapKV#24)."""
    streaming = methods.build("snapkv", budget=256)
    short, long = peak(streaming, 1024), peak(streaming, 32768)
    assert abs(long - short) < 0.05 * short
    assert long < peak(methods.build("full", budget=256), 1024)
    kv = streaming.layout(WIDE, tail=128).kv_bytes()
    assert short > kv, "the buffer itself is counted"


@pytest.mark.parametrize("name", ["snapkv", "h2o", "keydiff", "lagkv"])
def test_nothing_has_two_axes_of_the_prompt(name):
    """A dense mask of N x N per layer took 429 GB at 128k tokens (Blaizzy/mlx-vlm#1355)."""
    method, padded = methods.build(name, budget=256), 8192
    layout = method.layout(WIDE, tail=128)
    program = programs.prefill(WIDE, method, layout, 128, True, 1, padded, False)
    shapes = [list(map(int, found.split(","))) for found in re.findall(r"\w\[(\d+(?:,\d+)+)\]", program.run.as_text())]
    assert any(padded in shape for shape in shapes)  # the tokens themselves
    assert not [shape for shape in shapes if sum(size >= padded for size in shape) > 1]


def test_nothing_knows_how_far_the_model_reaches():
    """Time per token grew with the capacity and not with what was used (NVIDIA/TensorRT-Model-Connect#1409): programs
    of two models that differ in their last position alone do the same work."""
    method, found = methods.build("snapkv", budget=64), []
    for reach in (4096, 1 << 20):
        cfg = dataclasses.replace(WIDE, max_position=reach)
        program = programs.generate(cfg, method, method.layout(cfg, tail=16), 8, 16, 1, 1)
        found.append((program.peak_bytes, program.run.cost_analysis()["flops"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("budget", [100, 256, 1000, 1024])
def test_a_budget_is_never_more_than_the_full_cache(budget):
    """Counting windows made a pool 29 % smaller at short lengths (tenstorrent/tt-xla#5860)."""
    length = 1024
    full = methods.build("full", budget=length).layout(WIDE, tail=128, budget=length).kv_bytes()
    for name in ("streaming_llm", "snapkv", "adakv", "pyramidkv", "laprox"):
        assert methods.build(name, budget=budget).layout(WIDE, tail=128).kv_bytes() <= full


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_bytes_are_counted_as_they_are_allocated(head_dim):
    """Head sizes padded to 128 doubled a cache, and the count of blocks forgot it (vllm-project/tpu-inference#159)."""
    cfg = dataclasses.replace(WIDE, head_dim=head_dim)
    method = methods.build("snapkv", budget=64)
    layout = method.layout(cfg, tail=16)
    buf = jax.eval_shape(lambda: decode.init_buffer(method, layout, 1))
    held = sum(math.prod(x.shape) * x.dtype.itemsize for x in (buf.k, buf.v, buf.tail_k, buf.tail_v))
    assert held == layout.kv_bytes() == (64 + 16) * cfg.num_layers * cfg.num_kv_heads * 2 * head_dim * 4


def test_padding_changes_nothing():
    """Buckets of padding changed results (vllm-project/vllm#15565): the same prompts in rows of two lengths."""
    found = []
    for padded in (64, 256):
        s = tiny.session(tiny.build("snapkv"))
        program = programs.prefill(tiny.CFG, s.method, s.layout, tiny.CHUNK, True, tiny.BATCH, padded, False)
        lengths = [37, 5, 50]
        tokens = np.zeros((tiny.BATCH, padded), np.int32)
        for row, text in zip(tokens, tiny.prompts(*lengths), strict=True):
            row[: len(text)] = text
        buf, hidden, _ = program.run(s.params, s.buffer, jnp.asarray(tokens), jnp.asarray(lengths), s.hidden)
        found.append([np.asarray(x) for x in (buf.pos, buf.count, buf.k, hidden)])
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(short, long)


def test_no_history_of_logits_is_kept():
    """A [B, max_out, V] output filled the memory of long generations (google-deepmind/gemma#675)."""
    method = tiny.build("snapkv")
    layout = method.layout(tiny.CFG, tail=tiny.CHUNK)
    peaks = [programs.generate(tiny.CFG, method, layout, n, tiny.EVERY, tiny.BATCH, 1).peak_bytes for n in (128, 1024)]
    assert peaks[1] - peaks[0] < (1024 - 128) * tiny.BATCH * tiny.CFG.vocab_size * 4 / 4


def test_the_buffer_is_used_in_place():
    """Without donation the cache exists twice at every call."""
    s = tiny.session(tiny.build("snapkv"))
    old = s.buffer
    s.feed(tiny.prompts(9, 9, 9))
    assert old.k.is_deleted() and old.tail_v.is_deleted()


def test_a_program_is_compiled_once_per_shape():
    """The same key gives the same program; another budget is another shape."""
    method = tiny.build("snapkv")
    layout = method.layout(tiny.CFG, tail=tiny.CHUNK)
    arguments = (tiny.CFG, method, layout, tiny.CHUNK, True, tiny.BATCH, 8192, False)
    assert programs.prefill(*arguments) is programs.prefill(*arguments)
    assert programs.prefill(*arguments).compile_s > 0


def test_a_program_takes_no_other_shape():
    """Compiled ahead of time: a wrong shape is an error and not a silent new compilation."""
    s = tiny.session(tiny.build("snapkv"))
    program = programs.prefill(tiny.CFG, s.method, s.layout, tiny.CHUNK, True, tiny.BATCH, 8192, False)
    short, lengths = jnp.zeros((tiny.BATCH, 64), jnp.int32), jnp.zeros(tiny.BATCH, jnp.int32)
    with np.testing.assert_raises(TypeError):
        program.run(s.params, s.buffer, short, lengths, s.hidden)
