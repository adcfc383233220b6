"""What compiling says: memory that does not know the prompt's length, and buffers that are reused in place."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from nexus import methods, programs
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
