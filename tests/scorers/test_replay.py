"""Replay of kvzip. Kept sets over whole streaming runs: tests/test_decode.py; against kvpress: tests/parity."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nexus import methods
from nexus.generate import Settings
from nexus.models.tokenizer import byte_tokenizer
from nexus.scorers import Replay
from nexus.scorers.replay import ASK, COLUMN
from nexus.side import Side
from tests import oracle_side, tiny

ONESHOT = Settings(protocol="oneshot", chunk=tiny.CHUNK, evict_every=tiny.EVERY)


def build(chunk: int):
    return tiny.build("kvzip", chunk=chunk)


def replay(s):
    return s.method.scorer.look(Side(cfg=tiny.CFG, params=s.params, buffer=s.buffer))[0]


@pytest.mark.parametrize(("chunk", "length"), [(2048, 37), (16, 37), (5, 21), (150, 300)])
def test_one_cut_after_a_full_prefill(chunk, length):
    """The paper's protocol: a context shorter than a chunk, chunks that do and do not divide it, more than one block of
    queries. Sinks named twice, a chunk that sees another's replay, or a lead of other tokens change the sets."""
    method = build(chunk)
    s = tiny.session(method, settings=ONESHOT, capacity=320)
    texts = tiny.prompts(length, 5, 20)
    s.feed(texts)
    s.compress()
    said = dataclasses.replace(tiny.rules(method), score=oracle_side.kvzip(method.scorer, oneshot=True))
    for b, text in enumerate(texts):
        row = tiny.stream(said)
        row.prefill(text, len(text), evicting=False)
        row.evict()
        tiny.assert_same(s, b, row)


def test_every_entry_is_scored_once_and_lies_between_0_and_1():
    """Conformance 10: a second look changes nothing."""
    s = tiny.session(build(6), settings=ONESHOT)
    s.feed(tiny.prompts(37, 5, 20))
    once = replay(s)
    scores, live = np.asarray(once.aux[COLUMN]), np.asarray(once.pos) >= 0
    assert (scores[live] >= 0).all() and (scores[live] <= 1).all() and (scores[~live] <= 0).all()
    s.buffer = once
    np.testing.assert_array_equal(replay(s).aux[COLUMN], scores)


def test_texts_become_ids_of_the_model():
    """A request in another model's ids asks for nothing."""
    tokenizer = byte_tokenizer()
    bound = Replay().bind(tokenizer)
    assert tokenizer.decode(bound.ask) == ASK and tokenizer.decode(bound.ask_later).endswith("starting with")
    assert tokenizer.decode(bound.reply, skip_special=False) == "<|im_end|>\n<|im_start|>assistant\n"
    assert bound.bind(None) is bound and hash(bound) == hash(Replay().bind(tokenizer))


def test_what_is_refused():
    with pytest.raises(ValueError, match="ask, ask_later, reply are texts and the model has no tokenizer"):
        tiny.session(methods.build("kvzip", budget=16))
    for options, message in (
        ({"chunk": 0}, "chunk"),
        ({"softmax_sinks": -1}, "softmax_sinks"),
        ({"reply": "x"}, "chat"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.build("kvzip", budget=16, **options)
