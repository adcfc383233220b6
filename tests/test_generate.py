"""Sessions: turns, questions, protocols, ends, and what is refused."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from nexus import programs
from nexus.answers import answer_batch
from nexus.generate import Session, Settings
from tests import tiny

ONESHOT = dataclasses.replace(tiny.SETTINGS, protocol="oneshot")
FREE = dataclasses.replace(ONESHOT, tail="free")


def kept(s: Session) -> list[list[int]]:
    return [pos.tolist() for row in s.kept() for layer in row for pos in layer]


# --- nothing evicted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 4, 8, 40])  # the window is 4
def test_the_chunk_does_not_matter_while_nothing_is_evicted(chunk):
    """Chunked prefill corrupted a window's ring, seen only after more decoding (lablup/mlxcel#678,
    pytorch/executorch#20346): chunks below, at and above the window, one that does not divide the prompt, and the
    whole prompt in one."""
    method = tiny.build("snapkv", budget=64)
    s = tiny.session(method, settings=Settings(chunk=chunk, evict_every=min(chunk, 4)))
    full = tiny.session(tiny.build("full"))
    for turn, lengths in enumerate([(37, 5, 20), (6, 9, 1)]):
        for one in (s, full):
            one.feed(tiny.prompts(*lengths, seed=turn))
        np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=2e-5)
    assert kept(s) == kept(full)
    if chunk == 3:
        assert s.generate(12, end=()) == full.generate(12, end=())
        np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=2e-5)


def test_turns_equal_one_long_prompt():
    """A length from the device gave an empty slice in the second call (huggingface/transformers#45987, #46863)."""
    text = tiny.prompts(37, 5, 20)
    whole, turns = (tiny.session(tiny.build("full")) for _ in range(2))
    whole.feed(text)
    for low, high in ((0, 4), (4, 5), (5, 30), (30, 37)):
        turns.feed([row[low:high] for row in text])
    np.testing.assert_allclose(tiny.logits(turns), tiny.logits(whole), atol=2e-5)
    assert kept(turns) == kept(whole) and turns.lengths.tolist() == [37, 5, 20]
    assert turns.generate(9, end=()) == whole.generate(9, end=())
    answered = turns.generate(5, end=())
    assert answered == whole.generate(5, end=())


def test_oneshot_and_streaming_agree_when_the_budget_holds_the_prompt():
    """Two protocols, one cache."""
    stream, once = tiny.session(tiny.build("snapkv")), tiny.session(tiny.build("snapkv"), settings=ONESHOT)
    for s in (stream, once):
        s.feed(tiny.prompts(12, 3, 9))
    once.compress()
    np.testing.assert_allclose(tiny.logits(stream), tiny.logits(once), atol=1e-5)
    assert kept(stream) == kept(once)
    assert stream.generate(12, end=()) == once.generate(12, end=())


# --- protocols ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["snapkv", "h2o-global"])
def test_oneshot_is_full_attention_and_one_cut(case):
    """Scores of the full prompt decide once; afterwards the budget holds while decoding."""
    method = tiny.build(case)
    s, rows = tiny.session(method, settings=ONESHOT), [tiny.stream(method) for _ in range(tiny.BATCH)]
    texts = tiny.prompts(37, 5, 20)
    s.feed(texts)
    full = s.buffer.kv_bytes_allocated()
    s.compress()
    assert s.buffer.kv_bytes_allocated() == s.layout.kv_bytes(tiny.BATCH) < full
    for b, (row, text) in enumerate(zip(rows, texts, strict=True)):
        row.prefill(text, tiny.CHUNK, evicting=False)
        row.evict()
        tiny.assert_same(s, b, row)
    answers = s.generate(13, end=())
    for b, row in enumerate(rows):
        assert answers[b] == row.decode(13, tiny.EVERY)[0]
        tiny.assert_same(s, b, row)


def test_a_free_tail_evicts_nothing_more():
    """Question and answer on top of the compressed context, as score-based papers measure."""
    method = tiny.build("snapkv")
    contexts, questions = tiny.prompts(37, 5, 20), tiny.prompts(6, 9, 3, seed=4)
    got = answer_batch(tiny.model(), method, FREE, contexts, questions, 11, capacity=tiny.CAPACITY)
    np.testing.assert_array_equal(
        got.kept, np.minimum([37, 5, 20], tiny.BUDGET)[:, None, None].repeat(2, 1).repeat(2, 2)
    )
    for b in range(tiny.BATCH):
        row = tiny.stream(method)
        row.prefill(contexts[b], tiny.CHUNK, evicting=False)
        row.evict()
        row.step(questions[b])
        assert got.tokens[b] == row.decode(11, 0)[0]
    s = tiny.session(method, settings=FREE)
    s.feed(contexts)
    s.free_tail(43)
    s.feed(questions)
    s.generate(11)
    np.testing.assert_array_equal(s.counts()[0], tiny.BUDGET + 6 + 11)
    with pytest.raises(ValueError, match="do not fit the free tail of"):
        s.generate(60)


@pytest.mark.parametrize(("columns", "answered"), [(64, 11), (20, 0)])
def test_a_free_tail_overwrites_nothing(columns, answered):
    """A turn is padded; what reaches past the tail is moved back by JAX, over tokens that are there. It is kept, or
    refused in words."""
    s = tiny.session(tiny.build("snapkv"), settings=FREE)
    s.feed(tiny.prompts(37, 5, 20))
    s.free_tail(columns)
    if answered:
        s.feed(tiny.prompts(6, 9, 3, seed=4))
        s.generate(answered, end=())
    before = s.kept()[0][0][0].tolist()
    try:
        s.feed(tiny.prompts(9, 9, 9, seed=5))
    except ValueError as error:
        assert "free tail" in str(error)
        return
    assert s.kept()[0][0][0].tolist() == before + list(range(before[-1] + 1, before[-1] + 10))


def test_an_answer_says_what_it_cost():
    """Masked instead of removed: users expected memory back (NVIDIA/kvpress#223), so allocated and live are both
    told."""
    method, contexts, questions = tiny.build("h2o-global"), tiny.prompts(37, 5, 20), tiny.prompts(6, 9, 3, seed=4)
    got = answer_batch(tiny.model(), method, tiny.SETTINGS, contexts, questions, 9)
    rows = [tiny.stream(method) for _ in range(tiny.BATCH)]
    for row, context, question in zip(rows, contexts, questions, strict=True):
        row.prefill(context, tiny.CHUNK)
        row.prefill(question, tiny.CHUNK)
    assert got.tokens == [row.decode(9, tiny.EVERY)[0] for row in rows]
    assert got.cut == [True] * 3 and got.context_tokens == [37, 5, 20]
    np.testing.assert_array_equal(got.kept.sum(axis=(1, 2)), [48, 20, 48])
    per_row = 2 * tiny.CFG.head_dim * 4
    assert got.kv_bytes_live == pytest.approx((48 + 20 + 48) / 3 * per_row)
    assert got.kv_bytes_allocated == (48 + 4 * tiny.CHUNK) * per_row >= got.kv_bytes_live
    assert (got.prefill_tokens, got.decode_tokens) == (62 + 18, 27)
    assert got.peak_bytes > got.kv_bytes_allocated and got.prefill_seconds > 0 and got.decode_seconds > 0


@pytest.mark.parametrize("case", ["full", "h2o-global"])
def test_decoding_is_one_compiled_loop(case):
    """Generation without it was 14 times slower (huggingface/transformers#29410, ayaka14732/llama-2-jax#15). The loop
    makes thousands of tokens a second here; busy cores may take most of that away, but hardly three times in a row."""
    s = tiny.session(tiny.build(case))
    s.feed(tiny.prompts(37, 5, 20))
    s.generate(5, end=())  # compiles, and is not counted
    speeds = []
    for _ in range(3):
        before = s.decode_s
        s.generate(100, end=())
        speeds.append(100 / (s.decode_s - before))
    assert max(speeds) > 50


@pytest.mark.parametrize("settings", [tiny.SETTINGS, dataclasses.replace(tiny.SETTINGS, protocol="oneshot")])
def test_shares_say_how_many_heads_hold_each_token_after_the_context(settings):
    """The question and the answer come later: looking changes neither them nor what they cost."""
    method, contexts, questions = tiny.build("h2o-global"), tiny.prompts(37, 5, 20), tiny.prompts(6, 9, 3, seed=4)
    got = answer_batch(tiny.model(), method, settings, contexts, questions, 9, num_shares=2)
    plain = answer_batch(tiny.model(), method, settings, contexts, questions, 9)
    assert got.tokens == plain.tokens and plain.shares == []
    assert [len(row) for row in got.shares] == [37, 5]
    s = tiny.session(method, settings=settings)
    s.feed(contexts)
    if settings.protocol == "oneshot":
        s.compress()
    for row, shares in enumerate(got.shares):
        heads = [set(pos.tolist()) for layer in s.kept()[row] for pos in layer]
        expected = [np.mean([i in head for head in heads]) for i in range(len(shares))]
        np.testing.assert_allclose(shares, expected)
        assert shares.sum() * len(heads) == pytest.approx(got.kept[row].sum())


def test_two_questions_on_one_context():
    """Compressing with the question in view flatters some methods, and the second question fails (cold-compress#42,
    SnapKV#18): the cache is built before either is known, and the order of asking does not matter."""
    context = tiny.session(tiny.build("snapkv"))
    context.feed(tiny.prompts(37, 25, 30))
    questions = [tiny.prompts(5, 5, 5, seed=seed) for seed in (3, 4)]

    def ask(session: Session, question) -> list[list[int]]:
        one = session.fork()
        one.feed(question)
        return one.generate(8, end=())

    first, second = ask(context, questions[0]), ask(context, questions[1])
    assert (ask(context, questions[1]), ask(context, questions[0])) == (second, first)
    assert first != second
    fresh = tiny.session(tiny.build("snapkv"))
    fresh.feed(tiny.prompts(37, 25, 30))
    assert ask(fresh, questions[1]) == second and kept(fresh) == kept(context)


# --- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_equals_its_rows_alone():
    """Unequal lengths and unequal ends, and the turn after them (Zefan-Cai/R-KV#25, FMInference/H2O#29)."""
    method, texts, more = tiny.build("h2o-global"), tiny.prompts(37, 5, 20), tiny.prompts(9, 7, 8, seed=1)
    batch = tiny.session(method)
    batch.feed(texts)
    free = batch.fork().generate(20, end=())
    end = next(t for t in free[0][3:] if t not in free[0][:3])  # the first row stops within the answer

    def turns(s: Session, rows: list[int]) -> list:
        first = s.generate(20, end=(end,))
        s.feed([more[i] for i in rows])
        return [first, s.generate(10, end=(end,)), kept(s)]

    together = turns(batch, [0, 1, 2])
    assert len(together[0][0]) < 20
    for i in range(tiny.BATCH):
        alone = tiny.session(method, batch=1)
        alone.feed([texts[i]])
        answer = turns(alone, [i])
        assert answer[:2] == [[together[0][i]], [together[1][i]]]
        assert answer[2] == together[2][4 * i : 4 * i + 4]


def test_a_row_may_begin_later():
    """Left pads fell inside the protected prefix (awslabs/keys_values#93): sinks are the first real tokens."""
    s, row = tiny.session(tiny.build("snapkv")), tiny.stream(tiny.build("snapkv"))
    late = tiny.prompt(20, 9)
    s.feed([tiny.prompt(30), [], tiny.prompt(7)])
    assert s.generate(8, end=())[1] == [], "nothing to go on"
    s.feed([[1, 2], late, []])
    row.prefill(late, tiny.CHUNK)
    tiny.assert_same(s, 1, row)
    assert s.lengths.tolist() == [40, 20, 15]


def test_twenty_prompts_compile_one_program_each():
    """One trace per length is what users saw (keras-team/keras-hub#779, NovaSky-AI/SkyRL#539): lengths below, at and
    above the budget run through one prefill and one decode program."""
    method = tiny.build("keydiff")
    s = tiny.session(method)
    s.feed(tiny.prompts(1, 1, 1))
    s.generate(1, end=())
    before = [cache.cache_info().misses for cache in (programs.prefill, programs.generate, programs.compress)]
    with tiny.Compilations() as compiled:
        for i in range(20):
            one = tiny.session(method)
            one.feed(tiny.prompts(1 + i, tiny.BUDGET, 3 * i, seed=i))
            one.generate(1 + i, end=())
    assert compiled.count == 0
    assert before == [cache.cache_info().misses for cache in (programs.prefill, programs.generate, programs.compress)]
    assert one.compile_s < 0.1, "the wait is counted where it happens"


# --- how likely tokens are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["full", "streaming_llm", "snapkv", "global_retention"])
def test_each_token_is_judged_by_what_came_before(case):
    """Off by one, or judged after an eviction that saw the token: perplexities would be lies."""
    texts = tiny.prompts(29, 5, 17)
    scored = tiny.session(tiny.build(case))
    found = scored.score(texts)
    assert [len(row) for row in found] == [29, 5, 17] and all(np.isnan(row[0]) for row in found)
    for n in (1, 7, 8, 9, 16, 23, 28):
        prefix = tiny.session(tiny.build(case))
        prefix.feed([text[:n] for text in texts])
        for row, text in enumerate(texts):
            if n < len(text):
                logits = tiny.logits(prefix)[row]
                want = logits[text[n]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
                np.testing.assert_allclose(found[row][n], want, atol=1e-4, err_msg=f"{row=} {n=}")
    fed = tiny.session(tiny.build(case))
    fed.feed(texts)
    np.testing.assert_allclose(scored.hidden, fed.hidden, atol=1e-5)


def test_what_follows_is_judged_from_where_a_session_stands():
    """After a turn, and beside a row that gets nothing, whose newest hidden state stays."""
    text = tiny.prompt(20)
    whole = tiny.session(tiny.build("full"))
    want = whole.score([text, text, text])[0]
    s = tiny.session(tiny.build("full"))
    s.feed([text[:11], text[:5], []])
    first = s.score([text[11:], [], text])
    second = s.score([[], text[5:], []])
    np.testing.assert_allclose(first[0], want[11:], atol=1e-4)
    np.testing.assert_allclose(second[1], want[5:], atol=1e-4)
    assert np.isnan(first[2][0]) and len(first[1]) == len(second[0]) == 0


def test_a_frozen_cache_is_not_scored():
    s = tiny.session(tiny.build("snapkv"))
    s.feed(tiny.prompts(20, 5, 9))
    s.free_tail(16)
    with pytest.raises(ValueError, match="score needs a cache that evicts"):
        s.score(tiny.prompts(3, 3, 3))


# --- decoding ----------------------------------------------------------------------------------------------------


def test_all_end_tokens_stop():
    """Only one of several end tokens was heeded (Zefan-Cai/KVCache-Factory#12). Those of the model are the default; the
    end is not part of the answer."""
    s = tiny.session(tiny.build("snapkv"))
    s.feed(tiny.prompts(37, 5, 20))
    free = s.fork().generate(20, end=())
    ends = (free[0][4], free[1][2])
    s.model = dataclasses.replace(s.model, config=dataclasses.replace(tiny.CFG, eos_ids=ends))
    got = s.generate(20)
    for row, whole in zip(got, free, strict=True):
        stop = next((i for i, t in enumerate(whole) if t in ends), 20)
        assert row == whole[:stop]
    assert len(got[0]) <= 4 and len(got[1]) <= 2
    assert s.lengths.tolist() == [n + len(row) for n, row in zip((37, 5, 20), got, strict=True)]


def test_sampling_replays_from_its_key():
    """A run that cannot be replayed cannot be debugged; two rows with one text draw apart; cold is greedy."""

    def draw(seed: int, temperature: float) -> list[list[int]]:
        s = tiny.session(tiny.build("snapkv"), rng=jax.random.key(seed))
        s.feed([tiny.prompt(20)] * 3)
        return s.generate(12, temperature=temperature, end=())

    assert draw(0, 1.0) == draw(0, 1.0) != draw(1, 1.0)
    assert len({tuple(row) for row in draw(0, 1.0)}) == 3
    assert draw(0, 0.0) == draw(1, 0.0) and len({tuple(row) for row in draw(0, 0.0)}) == 1


def test_a_generation_may_be_continued():
    """Ten tokens are six and four more."""
    s = tiny.session(tiny.build("h2o-global"))
    s.feed(tiny.prompts(37, 5, 20))
    whole, parts = s.fork(), s.fork()
    ten = whole.generate(10, end=())
    six, four = parts.generate(6, end=()), parts.generate(4, end=())
    assert ten == [a + b for a, b in zip(six, four, strict=True)]
    assert kept(whole) == kept(parts)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "stream"}, "protocol 'stream'; allowed: streaming, oneshot"),
        ({"tail": "none"}, "tail 'none'; allowed: counted, free"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"evict_every": 0}, "evict_every must lie between 1 and chunk=128, got 0"),
        ({"evict_every": 129}, "evict_every must lie between 1 and chunk=128, got 129"),
    ],
)
def test_settings_are_checked(changes, message):
    """A wrong setting is refused before a model is loaded."""
    with pytest.raises(ValueError, match=message):
        Settings(**changes)


def test_what_does_not_fit_is_refused_before_it_runs():
    """JAX clamps what reaches past an array: a token beyond the end would overwrite another, without an error."""
    method, full = tiny.build("snapkv"), tiny.build("full")
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        tiny.session(method, batch=0)
    with pytest.raises(ValueError, match="'full'.*'streaming'.*capacity"):
        tiny.session(full, capacity=None)
    with pytest.raises(ValueError, match="'snapkv'.*'oneshot'.*capacity"):
        tiny.session(method, settings=ONESHOT, capacity=None)
    s = tiny.session(method)
    with pytest.raises(ValueError, match="expected 3 rows of tokens, got 2"):
        s.feed(tiny.prompts(3, 3))
    for bad in (64, -1):
        with pytest.raises(ValueError, match=r"tokens must lie in 0\.\.63"):
            s.feed([[1, bad], [1], [1]])
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, got 0"):
        s.generate(0)
    with pytest.raises(ValueError, match="temperature must be at least 0, got -1"):
        s.generate(1, temperature=-1)
    f = tiny.session(full)
    with pytest.raises(ValueError, match="do not fit the full cache of"):
        f.feed(tiny.prompts(f.layout.budget + 1, 1, 1))
    assert not s.lengths.any() and not f.lengths.any(), "nothing was half done"


@pytest.mark.parametrize("limit", ["max_position", "sliding_window"])
def test_texts_longer_than_the_model_are_refused(limit):
    """Positions the model never saw, or a window that the cache does not keep, give fluent nonsense."""
    cfg = dataclasses.replace(tiny.CFG, name=f"short-{limit}", **{limit: 16})
    s = tiny.session(tiny.build("snapkv"), cfg=cfg)
    with pytest.raises(ValueError, match="17 tokens are more than model 'short-.*' takes: 16"):
        s.feed(tiny.prompts(17, 1, 1))
