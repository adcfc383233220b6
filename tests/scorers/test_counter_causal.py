"""Counter-causal surprise. Kept sets over whole runs, both variants: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import methods
from nexus.generate import Settings
from nexus.scorers import CounterCausal
from nexus.side import Side
from tests import oracle, oracle_side, tiny

FORMS = [(v, m, g) for v in ("fast", "full") for m, g in (("logit", 0), ("log_prob", 0), ("logit", 2))]


def fed(scorer: CounterCausal, *lengths: int, budget: int = tiny.BUDGET):
    method = dataclasses.replace(tiny.build("counter_causal", budget=budget), scorer=scorer)
    s = tiny.session(method)
    s.feed(tiny.prompts(*lengths))
    return s


def predicted(s) -> np.ndarray:
    """y [B,M+C] of what a session holds."""
    return np.asarray(s.method.scorer.look(Side(cfg=tiny.CFG, params=s.params, buffer=s.buffer))[1])


@pytest.mark.parametrize(("variant", "measure", "gap"), FORMS)
def test_scores_are_those_of_the_equations(variant, measure, gap):
    """Conformance 5, 7, 8 and 9: the gathered column of the head, the direct last layer, log_softmax; slots that hold
    nothing (two sequences are shorter than the budget) change nothing."""
    s = fed(CounterCausal(variant=variant, measure=measure, gap=gap), 30, 3, 9)
    y = predicted(s)
    for b, text in enumerate(tiny.prompts(30, 3, 9)):
        row = tiny.stream(oracle.Rules(score=oracle_side.counter_causal(s.method.scorer), budget=tiny.BUDGET,
                                       num_sinks=2, recent=1))  # fmt: skip
        row.prefill(text, tiny.CHUNK)
        row.before, at = row.keep, row.kept()[0][0]
        expected = oracle_side.predicted(row, at, variant, measure, gap)
        np.testing.assert_allclose(y[b, : len(at)], expected, atol=2e-5)
        assert (y[b, len(at) : tiny.BUDGET] == 0).all()


def test_without_anything_ahead_the_token_alone_decides():
    """Conformance 1: attention over nothing is 0, so equal tokens score alike wherever they stand."""
    scorer = CounterCausal(variant="full", gap=1000)
    s = tiny.session(dataclasses.replace(tiny.build("counter_causal", budget=16), scorer=scorer), batch=1)
    s.feed([[5, 9, 5, 7, 9, 9, 5]])
    y = predicted(s)[0, :7]
    assert len({float(y[i]) for i in (0, 2, 6)}) == len({float(y[i]) for i in (1, 4, 5)}) == 1
    assert len({float(y[i]) for i in (0, 1, 3)}) == 3


def test_two_tokens_by_hand():
    """Conformance 6: the first of two tokens sees the second alone, so its attention is the second's value."""
    s = tiny.session(dataclasses.replace(tiny.build("counter_causal"), scorer=CounterCausal()), batch=1)
    s.feed([[8, 3]])
    model, twin = tiny.model(), tiny.stream(oracle.Rules(score=None, budget=9))
    twin.step([8, 3])
    value = np.repeat(twin.v[-1, :, 1], 3, axis=0).reshape(-1)  # by query head
    x = twin.last_input[0] + value @ np.asarray(model.params["blocks"]["wo"][-1], np.float64)
    x = oracle.rms_norm(x, np.asarray(model.params["final_norm"], np.float64), tiny.CFG.rms_eps)
    assert predicted(s)[0, 0] == pytest.approx(x @ np.asarray(model.params["head"], np.float64)[:, 8], abs=1e-5)


def test_one_set_for_the_whole_model_and_the_newest_stay():
    """Conformance 2, 3, 4: all layers and heads hold the same positions; the last gap + 1 and a frozen prefix stay."""
    method = methods.build("counter_causal", budget=tiny.BUDGET, gap=2, num_sinks=5)
    assert method.recent == 3
    s = tiny.session(method)
    s.feed(tiny.prompts(37, 20, 29))
    s.generate(4, end=())
    for b, row in enumerate(s.kept()):
        first = row[0][0]
        for layer in row:
            for head in layer:
                np.testing.assert_array_equal(head, first)
        assert {0, 1, 2, 3, 4, s.lengths[b] - 1, s.lengths[b] - 2, s.lengths[b] - 3} <= set(first.tolist())


@pytest.mark.parametrize("protocol", ["streaming", "oneshot"])
def test_ids_and_inputs_follow_their_tokens(protocol):
    """What is kept once per token moves with it: through chunks, the full cache, cuts, turns and a tail that grows."""
    settings = Settings(protocol=protocol, tail="free", chunk=tiny.CHUNK, evict_every=tiny.EVERY)
    s = tiny.session(tiny.build("counter_causal"), settings=settings)
    texts = [list(t) for t in tiny.prompts(37, 5, 20)]

    def check():
        assert s.buffer.token["last_input"].shape == (tiny.BATCH, s.layout.budget, tiny.CFG.dim)
        pos = np.asarray(s.buffer.pos)[:, : s.layout.budget]
        ids, tail_ids = np.asarray(s.buffer.token["id"]), np.asarray(s.buffer.tail_token["id"])
        for b, text in enumerate(texts):
            live = pos[b] >= 0
            np.testing.assert_array_equal(ids[b, live], np.asarray(text)[pos[b, live]])
            tail = np.asarray(s.buffer.tail_pos)[b]
            np.testing.assert_array_equal(tail_ids[b, tail >= 0], np.asarray(text)[tail[tail >= 0]])

    s.feed(texts)
    check()
    if protocol == "oneshot":
        row = tiny.stream(oracle.Rules(score=None, budget=0))
        row.step(texts[0])
        np.testing.assert_allclose(s.buffer.token["last_input"][0, :37], row.last_input, atol=1e-4)
        s.compress()
        check()
    s.free_tail(40)
    more = tiny.prompts(4, 0, 3, seed=2)
    s.feed(more)
    texts = [t + m for t, m in zip(texts, more, strict=True)]
    check()
    answers = s.generate(5, end=())
    texts = [t + a for t, a in zip(texts, answers, strict=True)]
    check()


def test_one_cut_after_a_full_prefill():
    """Protocol oneshot, longer than a block of queries: the oracle's set."""
    settings = Settings(protocol="oneshot", chunk=tiny.CHUNK, evict_every=tiny.EVERY)
    for variant in ("fast", "full"):
        method = tiny.build("counter_causal", variant=variant)
        s = tiny.session(method, settings=settings, batch=1)
        text = tiny.prompt(150)
        s.feed([text])
        s.compress()
        row = tiny.stream(method)
        row.prefill(text, len(text), evicting=False)
        row.evict()
        tiny.assert_same(s, 0, row)


def test_heads_that_could_disagree_are_refused():
    """Ids are kept once per token: heads that hold different tokens would read each other's."""
    for name in ("counter_causal", "unigram"):
        with pytest.raises(ValueError, match="one set of tokens in all heads.*'global'"):
            tiny.session(methods.build(name, budget=16, allocator="global"))
    for options, message in (
        ({"variant": "x"}, "fast, full"),
        ({"measure": "x"}, "logit, log_prob"),
        ({"gap": -1}, "gap"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.build("counter_causal", budget=16, **options)


def test_scores_are_float32_under_bfloat16():
    """A logit rounded to 8 bits ties most tokens."""
    cfg = dataclasses.replace(tiny.CFG, dtype="bfloat16")
    s = tiny.session(tiny.build("counter_causal"), cfg=cfg)
    s.feed(tiny.prompts(20, 3, 9))
    y = jnp.asarray(s.method.scorer.look(Side(cfg=cfg, params=s.params, buffer=s.buffer))[1])
    assert y.dtype == jnp.float32 and jax.numpy.isfinite(y).all()
