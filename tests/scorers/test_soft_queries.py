"""Soft queries of judgeq. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus import decode, methods, probes
from nexus.generate import Settings
from nexus.scorers import Entries, SoftQueries, WindowAttention
from nexus.side import Side
from tests import oracle_side, tiny

PROMPT, NEXT = tiny.prompt(40), tiny.prompt(6, 3)


def entries(s, looked=None) -> Entries:
    return Entries(buffer=s.buffer, cand=kv.candidates(s.buffer), looked=looked)


def full(*parts: list[int]):
    s = tiny.session(tiny.build("full"), batch=1)
    for part in parts:
        s.feed([part])
    return s


def scored(s, rows, scorer: SoftQueries):
    """Scores of what a session holds, and its entries."""
    params = s.params | {"method": {"rows": jnp.asarray(rows, jnp.float32)[None]}}
    _, looked = scorer.look(Side(cfg=tiny.CFG, params=params, buffer=s.buffer))
    e = entries(s, looked)
    return np.asarray(scorer.score(e, {}, s.buffer.rng)), e


@pytest.mark.parametrize(("kernel", "pool"), [(1, "avg"), (5, "avg"), (7, "max")])
def test_real_tokens_in_place_of_the_soft_ones_give_the_snapkv_score(kernel, pool):
    """Conformance 3: rows that are the embeddings of the next tokens ask what those tokens ask once they are fed; their
    own share of the softmax is left out and not renormalised, as SnapKV leaves out its window."""
    embed = tiny.model().params["embed"]
    mine, e = scored(full(PROMPT), embed[jnp.asarray(NEXT)], SoftQueries(kernel=kernel, pool=pool))
    window = WindowAttention(window=len(NEXT), kernel=kernel, pool=pool)
    method = dataclasses.replace(tiny.build("full"), scorer=window)
    s = tiny.session(method, batch=1)
    s.feed([PROMPT + NEXT])
    theirs = window.score(entries(s), s.buffer.state, s.buffer.rng)
    live = np.asarray(e.valid)
    before = np.asarray(kv.candidates(s.buffer).pos)
    got = mine[live].reshape(-1, len(PROMPT))
    expected = np.asarray(theirs)[(before >= 0) & (before < len(PROMPT))].reshape(-1, len(PROMPT))
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_soft_tokens_use_up_no_position():
    """Conformance 2; that they change no logits (1) is the contract of a budget that holds everything."""
    s = tiny.session(tiny.build("judgeq"))
    s.feed(tiny.prompts(37, 5, 20))
    np.testing.assert_array_equal(s.buffer.seen, [37, 5, 20])
    assert max(int(head[-1]) for row in s.kept() for layer in row for head in layer) == 36


def test_chunks_score_as_one_piece_while_nothing_is_evicted():
    """Conformance 7: entries in the table, and some of them in the tail, give the same scores."""
    rows = np.asarray(probes.init(tiny.model().params["embed"]))
    scorer = SoftQueries(kernel=3)
    whole, e = scored(full(PROMPT), rows, scorer)
    s = full(PROMPT[:-3])
    step = jax.jit(functools.partial(decode.chunk_step, tiny.CFG, s.method, s.params, columns=tiny.CHUNK))
    for token in PROMPT[-3:]:  # they stay in the tail
        s.buffer, _ = step(s.buffer, jnp.asarray([[token]], jnp.int32), jnp.ones((1, 1), bool))
    parts, f = scored(s, rows, scorer)
    np.testing.assert_allclose(parts[np.asarray(f.valid)], whole[np.asarray(e.valid)], atol=1e-6)


def test_one_cut_after_a_full_prefill(tmp_path):
    """Protocol oneshot, with rows from a file: the oracle's sets."""
    path = tmp_path / "rows.safetensors"
    rows = np.random.default_rng(3).normal(size=(7, tiny.CFG.dim)).astype(np.float32)
    probes.save(path, rows, tiny.CFG, {})
    method = tiny.build("judgeq", probes=str(path))
    settings = Settings(protocol="oneshot", chunk=tiny.CHUNK, evict_every=tiny.EVERY)
    s = tiny.session(method, settings=settings)
    texts = tiny.prompts(37, 5, 20)
    s.feed(texts)
    s.compress()
    said = dataclasses.replace(tiny.rules(method), score=oracle_side.judgeq(method.scorer, rows.astype(float)))
    for b, text in enumerate(texts):
        row = tiny.stream(said)
        row.prefill(text, len(text), evicting=False)
        row.evict()
        tiny.assert_same(s, b, row)


def test_rows_are_asked_for_once_and_fit_the_model():
    """Weights are traced for shapes and computed for real alike; untrained rows need no file."""
    scorer, params = SoftQueries(probes="untrained"), tiny.model().params
    real = scorer.weights(tiny.CFG, params)["rows"]
    assert real.shape == jax.eval_shape(lambda p: scorer.weights(tiny.CFG, p)["rows"], params).shape == (1, 32, 32)
    with pytest.raises(ValueError, match="train with launch.py --config=configs/train_judgeq.py"):
        tiny.session(tiny.build("judgeq", probes="judgeq"))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"window": -1}, "window must be"), ({"kernel": 4}, "kernel must be odd"), ({"pool": "x"}, "allowed: avg, max")],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("judgeq", budget=64, **options)
