"""What every method promises, whatever it scores: checked for each row of the table and for heads of unequal length."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import methods
from nexus.methods import Method
from nexus.scorers import Entries, Scorer
from tests import oracle, tiny

every_case = pytest.mark.parametrize("case", tiny.CASES)
EVICTING = [case for case in tiny.CASES if case != "full"]
LONG = (37, 5, 20)
DYNAMIC = ("dbudgetkv",)  # the budget is a ceiling: its rule keeps less wherever the attention allows


def test_every_row_of_the_table_is_held_to_the_contract():
    """A new row is tested by being a row."""
    assert {name for name, _ in tiny.CASES.values()} == set(methods.names())


def fed(case: str, *lengths: int, seed: int = 0):
    s = tiny.session(tiny.build(case))
    s.feed(tiny.prompts(*lengths, seed=seed))
    return s


@functools.cache
def ran(case: str):
    """A session after a long prompt, and after 22 more tokens; only looked at."""
    before = fed(case, *LONG)
    after = before.fork()
    answers = after.generate(22, end=())
    return before, after, answers


def heads(s) -> list[tuple[int, np.ndarray]]:
    """(sequence, positions held) of every head."""
    return [(b, pos) for b, row in enumerate(s.kept()) for layer in row for pos in layer]


@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in DYNAMIC])
def test_a_budget_that_holds_everything_is_the_full_cache(case):
    """Output degenerated where the context was about as long as the window (NVIDIA/kvpress#134, #61)."""
    s, full = fed(case, 7, 1, 5), fed("full", 7, 1, 5)
    np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=2e-5)
    assert s.generate(5, end=()) == full.generate(5, end=())
    np.testing.assert_allclose(tiny.logits(s), tiny.logits(full), atol=2e-5)
    for b, pos in heads(s):
        np.testing.assert_array_equal(pos, np.arange([12, 6, 10][b]))


@every_case
def test_short_prompts_keep_something(case):
    """A keep count rounded down to 0 gave an empty cache and NaN, and no error (NVIDIA/kvpress#264)."""
    for lengths in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        s = fed(case, *lengths)
        assert all(len(pos) >= 1 for _, pos in heads(s))
        assert np.isfinite(tiny.logits(s)).all()


@every_case
def test_positions_are_unique_and_increase(case):
    """Out of order, the next cut and the recent window mean something else."""
    before, after, _ = ran(case)
    for s in (before, after):
        for b, pos in heads(s):
            assert np.all(np.diff(pos) > 0) and pos[0] >= 0 and pos[-1] < s.lengths[b]


@pytest.mark.parametrize("case", EVICTING)
def test_the_total_is_exact(case):
    """The sum over layers and heads equals the request (Zefan-Cai/KVCache-Factory#36, FMInference/H2O#31)."""
    counts = ran(case)[0].counts()
    L, K = counts.shape[1:]
    pools = tiny.build(case).allocator.pools(L, K)
    for b, n in enumerate(LONG):
        expected = min(n, tiny.BUDGET) * L * K // pools
        got = counts[b].reshape(pools, -1).sum(axis=1)
        assert (got <= expected).all() and (case in DYNAMIC or (got == expected).all())


@pytest.mark.parametrize("case", EVICTING)
def test_sinks_and_recent_are_never_evicted(case):
    """Evicting the first tokens stops a model at once (awslabs/keys_values#140, #144). Sinks are the first real
    tokens of each row, however long its neighbours are (#93)."""
    method = tiny.build(case)
    for s in ran(case)[:2]:
        for b, pos in heads(s):
            must = {*range(min(2, s.lengths[b])), *range(max(s.lengths[b] - method.recent, 0), s.lengths[b])}
            assert must <= set(pos.tolist())


@pytest.mark.parametrize("case", EVICTING)
def test_kept_keys_are_those_of_their_positions(case):
    """First-layer keys depend on token and position alone: those kept are the full cache's, bit for bit."""
    s, full = ran(case)[0], ran("full")[0]
    if s.method.positions == "cache":
        return
    for b, head in np.ndindex(tiny.BATCH, tiny.CFG.num_kv_heads):
        everything = {e.pos: e for e in tiny.held(full.buffer, b, 0, head)}
        got = tiny.held(s.buffer, b, 0, head)
        assert got
        for e in got:
            np.testing.assert_allclose(e.k, everything[e.pos].k, atol=1e-6)
            np.testing.assert_allclose(e.v, everything[e.pos].v, atol=1e-6)


@every_case
def test_rows_of_a_batch_do_not_know_each_other(case):
    """Batches of unequal lengths were unsupported or silently wrong (NVIDIA/kvpress#25, FFY0/AdaKV#10). Random draws
    go with the row of a batch, all else with the sequence alone."""
    texts, order = tiny.prompts(*LONG), [2, 0, 1]
    _, after, answers = ran(case)
    if case == "random" or tiny.build(case).sampler.name == "reservoir":
        order, changed = [0, 1, 2], [texts[0], tiny.prompt(31, 77), texts[2]]
    else:
        changed = [texts[i] for i in order[:2]] + [tiny.prompt(31, 77)]
    s = tiny.session(tiny.build(case))
    s.feed(changed)
    got = s.generate(22, end=())
    for row, was in enumerate(order):
        if changed[row] == texts[was]:
            assert got[row] == answers[was]
            for layer, heads_ in enumerate(s.kept()[row]):
                for head, pos in enumerate(heads_):
                    np.testing.assert_array_equal(pos, after.kept()[was][layer][head])


@every_case
def test_a_second_call_is_like_the_first(case):
    """A counter that was not reset, or a length that leaked into the next call (Zefan-Cai/R-KV#25, KVCache-Factory);
    here a second session runs between, and it compiles nothing: shapes do not depend on lengths (keras-hub#779,
    #2075)."""
    ran(case)
    with tiny.Compilations() as compiled:
        one, other = fed(case, *LONG), fed(case, 3, 61, 12, seed=5)
        other.generate(100, end=())
        assert one.generate(22, end=()) == ran(case)[2]
        other.generate(100, end=())
    assert compiled.count == 0
    assert np.isfinite(np.asarray(other.hidden)).all()


@pytest.mark.parametrize("case", EVICTING)
def test_occupancy_holds_after_every_step(case):
    """When eviction runs was unclear (mit-han-lab/streaming-llm#48), and tables quote M where the cache swings to M +
    buffer (ngocbh/trimkv): at most the budget and the tail, after every token, and the budget after every cut."""
    s = fed(case, *LONG)
    L, K = tiny.CFG.num_layers, tiny.CFG.num_kv_heads
    for step in range(1, 10):
        s.generate(1, end=())
        tail = step % tiny.EVERY
        total = s.counts().sum(axis=(1, 2))
        most = (tiny.BUDGET + tail) * L * K
        assert (total <= most).all() and (case in DYNAMIC or total[0] == most)
    s.feed(tiny.prompts(3, 0, 2))
    assert (s.counts().sum(axis=(1, 2)) <= tiny.BUDGET * L * K).all()


@every_case
def test_bytes_are_the_budget_and_the_tail(case):
    """Pools for the whole sequence, or a block per head, cost several budgets (ngocbh/trimkv, kvpress#223)."""
    s = ran(case)[1]
    per_slot = tiny.BATCH * tiny.CFG.num_layers * tiny.CFG.num_kv_heads * 2 * tiny.CFG.head_dim * 4
    slots = tiny.BUDGET if case != "full" else s.layout.budget
    assert s.buffer.kv_bytes_allocated() == (slots + s.layout.tail) * per_slot
    assert s.layout.tail == tiny.CHUNK or case == "full"


# --- one head holds everything -----------------------------------------------------------------------------------


class FirstHead(Scorer):
    """The first head of the model is worth everything."""

    def score(self, entries: Entries, state, rng: jax.Array) -> jax.Array:
        return jnp.where(entries.cand.owner == 0, 1000.0, 0.0) + entries.pos


def first_head(min_per_head: int) -> tuple[Method, oracle.Rules]:
    method = dataclasses.replace(
        tiny.build("knorm-global"), name="first_head", scorer=FirstHead(), num_sinks=0, min_per_head=min_per_head
    )
    score = lambda s, layer, head, at: at + 1000.0 * (layer == head == 0)  # noqa: E731
    return method, oracle.Rules(score=score, budget=tiny.BUDGET, pool="global", min_per_head=min_per_head)


def test_one_head_may_hold_everything():
    """Unequal heads gave fake keys that free no memory (NVIDIA/kvpress#7, #38); heads without a key gave NaN
    (Dao-AILab/flash-attention#1619). The tokens are the padded oracle's, the bytes are the budget's."""
    method, said = first_head(0)
    s, rows = tiny.session(method), [tiny.stream(said) for _ in range(tiny.BATCH)]
    texts = tiny.prompts(90, 5, 55)
    s.feed(texts)
    for b, (row, text) in enumerate(zip(rows, texts, strict=True)):
        row.prefill(text, tiny.CHUNK)
        tiny.assert_same(s, b, row)
    np.testing.assert_array_equal(s.counts()[0], [[48, 0], [0, 0]])
    answers = s.generate(22, end=())
    for b, row in enumerate(rows):
        assert answers[b] == row.decode(22, tiny.EVERY)[0]
        tiny.assert_same(s, b, row)
    L, K, H = tiny.CFG.num_layers, tiny.CFG.num_kv_heads, tiny.CFG.head_dim
    budget, tail = (tiny.BATCH * n * L * K * 2 * H * 4 for n in (tiny.BUDGET, tiny.CHUNK))
    assert s.buffer.kv_bytes_allocated() <= 1.02 * budget + tail


def test_no_head_is_left_empty_when_one_entry_is_promised():
    """min_per_head=1 takes the newest of the heads that would have none."""
    method, said = first_head(1)
    s, row = tiny.session(method), tiny.stream(said)
    texts = tiny.prompts(90, 5, 55)
    s.feed(texts)
    row.prefill(texts[0], tiny.CHUNK)
    tiny.assert_same(s, 0, row)
    np.testing.assert_array_equal(s.counts()[0], [[45, 1], [1, 1]])
