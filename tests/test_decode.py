"""Whole runs against the oracle: prefill in chunks, evictions, turns and decoding give its kept sets and its logits."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import decode, programs
from nexus.generate import Settings
from nexus.models.presets import PRESETS
from nexus.shapes import EMPTY
from tests import oracle, tiny

ORACLE_CASES = [
    case for case, (name, options) in tiny.CASES.items() if name in tiny.SCORES and "sampler" not in options
]
TURNS = ([37, 5, 20], [9, 0, 23])  # tokens per row: above, below and beside the budget; one row skips a turn


def replay(case: str, texts, steps, cfg=tiny.CFG, **changes) -> None:
    """Turn, answer, turn, answer; kept sets and logits compared after each."""
    method = tiny.build(case, **changes)
    s = tiny.session(method, batch=len(texts[0]), cfg=cfg)
    rows = [tiny.stream(method, cfg) for _ in texts[0]]
    fill = 0
    for turn, new in zip(texts, steps, strict=True):
        s.feed(turn)
        for i, (row, text) in enumerate(zip(rows, turn, strict=True)):
            if fill:
                row.evict()
            row.prefill(text, tiny.CHUNK)
            tiny.assert_same(s, i, row)
        answers = s.generate(new, end=()) if new else [[] for _ in rows]
        for i, row in enumerate(rows):
            tokens, row_fill = row.decode(new, 0 if method.full else tiny.EVERY)
            assert answers[i] == tokens
            tiny.assert_same(s, i, row)
        fill = row_fill


def distinct() -> list[list[list[int]]]:
    """No token twice in a row: the norm of a first-layer key is a function of its token, and a tie that float32 rounds
    one way float64 rounds the other."""
    order = [np.random.default_rng(i).permutation(tiny.CFG.vocab_size).tolist() for i in range(tiny.BATCH)]
    cuts = [np.cumsum([0, *row]) for row in zip(*TURNS, strict=True)]
    return [[order[i][cut[t] : cut[t + 1]] for i, cut in enumerate(cuts)] for t in range(len(TURNS))]


@pytest.mark.parametrize("case", ORACLE_CASES)
def test_a_run_equals_the_full_cache_with_evicted_keys_masked(case):
    """Positions that restart at the kept count, a rotation by slot index, a slot read after it was evicted, a head's
    segment read past its end: each changes the logits (rajveer43/VeloxQuant-MLX#171, quic/efficient-transformers#1235).
    Covers all scorers, unequal heads, and streaming_llm in both position modes (NVIDIA/kvpress#158)."""
    if case.startswith("knorm"):
        replay(case, distinct(), (0, 0))
    else:
        first = (
            6 if case in ("snapkv-per_layer", "h2o-global") else 8
        )  # 6: the next turn finds a tail that is half full
        replay(case, [tiny.prompts(*lengths, seed=turn) for turn, lengths in enumerate(TURNS)], (first, 30))


@pytest.mark.parametrize("case", ["streaming_llm", "streaming_llm-cache"])
def test_ten_times_the_budget_is_generated(case):
    """Keys that were not shifted, or turned and turned back, degrade with length (huggingface/transformers#33691,
    #31537). It also generates beyond the number of slots, where gemma stopped hard (google-deepmind/gemma#675)."""
    replay(case, [tiny.prompts(20, 3, 9)], (10 * tiny.BUDGET,))


@pytest.mark.parametrize("name", PRESETS)
def test_every_family_is_positioned_alike(name):
    """A sink cache crashed on another family after a refactor (huggingface/transformers#32233): biases, qk-norm, scaled
    frequencies, every ratio of heads, positions far beyond the slots."""
    cfg = PRESETS[name]
    texts = [[tiny.prompt(60, 1, cfg.vocab_size)]]
    steps = 20 if cfg.qk_norm or cfg.num_kv_heads == 1 else 0
    replay("streaming_llm", texts, (steps,), cfg=cfg)


# --- poison ------------------------------------------------------------------------------------------------------


def prefill_program(s) -> programs.Program:
    return programs.prefill(tiny.CFG, s.method, s.layout, s.chunk, s.evicting, tiny.BATCH, 8192, False)


@pytest.mark.parametrize("case", tiny.CASES)
def test_padding_is_never_seen(case):
    """Pads are ids beyond the vocabulary, whose embedding is NaN: a pad that is stored, scored or attended to at any
    step spreads (tenstorrent/tt-metal#6650, OpenNMT/OpenNMT-py#2532, seal-rg/recurrent-pretraining#32)."""
    method, texts = tiny.build(case), tiny.prompts(21, 0, 13)
    clean, poisoned = tiny.session(method), tiny.session(method)
    clean.feed(texts)
    tokens = np.full((tiny.BATCH, 8192), tiny.CFG.vocab_size + 5, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = jnp.asarray([len(t) for t in texts], jnp.int32)
    poisoned.buffer, poisoned.hidden, _ = prefill_program(poisoned).run(
        poisoned.params, poisoned.buffer, jnp.asarray(tokens), lengths, poisoned.hidden
    )
    for row in (0, 2):
        for a, b in zip(clean.kept()[row], poisoned.kept()[row], strict=True):
            for one, other in zip(a, b, strict=True):
                np.testing.assert_array_equal(one, other)
    live = np.asarray(lengths) > 0
    np.testing.assert_array_equal(np.asarray(clean.hidden)[live], np.asarray(poisoned.hidden)[live])
    assert np.isfinite(np.asarray(poisoned.hidden)[live]).all()


@pytest.mark.parametrize("case", tiny.CASES)
def test_slots_that_hold_nothing_are_never_read(case):
    """Validity taken from a physical index reads stale keys (quic/efficient-transformers#1235)."""
    clean = tiny.session(tiny.build(case))
    clean.feed(tiny.prompts(21, 3, 13))
    poisoned = clean.fork()
    buf, nan = poisoned.buffer, jnp.float32(jnp.nan)
    dead, empty = (buf.pos == EMPTY), (buf.tail_pos == EMPTY)[None, :, None, :]
    poisoned.buffer = dataclasses.replace(
        buf,
        k=jnp.where(dead[..., None], nan, buf.k), v=jnp.where(dead[..., None], nan, buf.v),
        aux={n: jnp.where(dead, nan, x) for n, x in buf.aux.items()},
        tail_k=jnp.where(empty[..., None], nan, buf.tail_k), tail_v=jnp.where(empty[..., None], nan, buf.tail_v),
        tail_aux={n: jnp.where(empty, 0.0, x) for n, x in buf.tail_aux.items()},
    )  # fmt: skip
    assert clean.generate(14) == poisoned.generate(14)
    assert np.isfinite(np.asarray(poisoned.hidden)).all()
    np.testing.assert_array_equal(clean.hidden, poisoned.hidden)


# --- on the device -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["snapkv", "h2o-global"])
def test_nothing_crosses_to_the_host_inside(case):
    """A Python loop per token with host reads (found in kvpress and trimkv) is what the guard refuses."""
    s = tiny.session(tiny.build(case))
    prefill = prefill_program(s)
    generate = programs.generate(tiny.CFG, s.method, s.layout, 128, tiny.EVERY, tiny.BATCH, 1)
    tokens, lengths = jnp.zeros((tiny.BATCH, 8192), jnp.int32), jnp.asarray([30, 4, 17], jnp.int32)
    done, limit, end, cold = jnp.zeros(tiny.BATCH, bool), jnp.int32(20), jnp.asarray([-2], jnp.int32), jnp.float32(0)
    with jax.transfer_guard("disallow"):
        buf, hidden, _ = prefill.run(s.params, s.buffer, tokens, lengths, s.hidden)
        state = decode.Decoding(buffer=buf, hidden=hidden, done=done, rng=s.rng)
        state, _ = generate.run(s.params, state, limit, end, cold)
        with pytest.raises(Exception, match="[Dd]isallowed host-to-device transfer"):
            generate.run(s.params, state, np.int32(20), end, cold)


def test_keys_are_stored_unrotated_only_for_cache_positions():
    """Rotate, then turn back, is not the identity; what is read at changing positions must be stored before RoPE."""
    kept = {}
    for case in ("full", "streaming_llm", "streaming_llm-cache"):
        s = tiny.session(tiny.build(case))
        s.feed(tiny.prompts(12, 3, 7))
        start = int(s.buffer.start[0, 0, 0])
        kept[case] = np.asarray(s.buffer.k)[0, start : start + 12]
    np.testing.assert_allclose(kept["full"], kept["streaming_llm"], atol=1e-5)
    freq = tiny.stream(tiny.build("full")).inv_freq
    np.testing.assert_allclose(oracle.rotate(kept["streaming_llm-cache"], np.arange(12), freq), kept["full"], atol=1e-5)
    assert np.abs(kept["streaming_llm-cache"][1:] - kept["full"][1:]).max() > 0.1


def test_a_row_that_is_done_stays_as_it_was():
    """Tokens fed after the end would push real ones out, and the next turn would find them in the cache."""
    s = tiny.session(tiny.build("streaming_llm"))
    s.feed(tiny.prompts(9, 9, 9))
    generate = programs.generate(tiny.CFG, s.method, s.layout, 128, tiny.EVERY, tiny.BATCH, 1)
    done = jnp.asarray([True, False, False])
    state = decode.Decoding(buffer=s.buffer, hidden=s.hidden, done=done, rng=s.rng)
    state, tokens = generate.run(s.params, state, jnp.int32(10), jnp.asarray([-2], jnp.int32), jnp.float32(0))
    tokens = np.asarray(tokens)
    assert (tokens[0] == EMPTY).all() and (tokens[1:, :10] != EMPTY).all() and (tokens[1:, 10:] == EMPTY).all()
    np.testing.assert_array_equal(state.buffer.seen, [9, 19, 19])


def test_sampling_follows_the_logits():
    """Greedy at 0; otherwise the frequencies of softmax(logits / temperature), each row drawn by its own key."""
    n, logits = 20000, jnp.log(jnp.asarray([0.6, 0.3, 0.1]))
    keys = jax.random.split(jax.random.key(0), n)
    rows = jnp.broadcast_to(logits, (n, 3))
    draw = jax.jit(decode.sample)
    np.testing.assert_array_equal(draw(rows, keys, jnp.float32(0.0)), 0)
    for temperature in (1.0, 2.0):
        expected = oracle.softmax(np.asarray(logits, float) / temperature)
        got = np.bincount(np.asarray(draw(rows, keys, jnp.float32(temperature))), minlength=3) / n
        np.testing.assert_allclose(got, expected, atol=0.015)
    np.testing.assert_array_equal(draw(rows, keys, jnp.float32(1)), draw(rows, keys, jnp.float32(1)))


def test_five_hundred_cached_tokens_equal_the_forward_without_a_cache():
    """Output that turns to gibberish after a while (google-deepmind/gemma#368): the text is read again in one piece."""
    s = tiny.session(tiny.build("full"), batch=1, settings=Settings(chunk=64, evict_every=32), capacity=1024)
    text = tiny.prompt(300)
    s.feed([text])
    answer = s.generate(510)[0]
    assert len(answer) == 510
    whole = tiny.stream(tiny.build("full")).step(text + answer)
    chosen = np.take_along_axis(whole[299:-1], np.asarray(answer)[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(chosen, whole[299:-1].max(axis=1), atol=1e-4)
    np.testing.assert_allclose(tiny.logits(s)[0], whole[-1], atol=1e-4)
