"""Foresight of the control `oracle`. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nexus import answers
from nexus import buffer as kv
from nexus.generate import Session, Settings
from nexus.scorers import Entries, WindowAttention
from nexus.side import Side
from tests import tiny

PROMPT, QUESTION, ANSWER = tiny.prompt(40), tiny.prompt(4, 3), tiny.prompt(3, 4)
ONESHOT = Settings(protocol="oneshot", chunk=tiny.CHUNK, evict_every=tiny.EVERY)


def session(settings: Settings = tiny.SETTINGS, **changes) -> Session:
    return Session(tiny.model(), tiny.build("oracle", **changes), settings, 1, capacity=tiny.CAPACITY)


def test_after_a_full_prefill_it_scores_as_the_fed_question_and_answer_do():
    """The rows run aside are those that the full cache would answer with: the last question token and the answer. As
    SnapKV's window of real tokens, not pooled."""
    scorer = tiny.build("oracle").scorer
    s = session(ONESHOT)
    s.foresee([len(PROMPT)], [QUESTION], [ANSWER])
    s.feed([PROMPT])
    buf, looked = scorer.look(Side(cfg=tiny.CFG, params=s.params, buffer=s.buffer))
    mine = Entries(buffer=buf, cand=kv.candidates(buf), looked=looked)
    got = np.asarray(scorer.score(mine, buf.state, buf.rng))[np.asarray(mine.valid)].reshape(-1, len(PROMPT))

    window = WindowAttention(window=1 + len(ANSWER), kernel=1)
    fed = tiny.session(dataclasses.replace(tiny.build("full"), scorer=window), batch=1)
    fed.feed([PROMPT + QUESTION + ANSWER])
    theirs = Entries(buffer=fed.buffer, cand=kv.candidates(fed.buffer))
    expected = np.asarray(window.score(theirs, fed.buffer.state, fed.buffer.rng))
    pos = np.asarray(theirs.cand.pos)
    np.testing.assert_allclose(got, expected[(pos >= 0) & (pos < len(PROMPT))].reshape(-1, len(PROMPT)), atol=1e-6)


def test_another_answer_keeps_other_entries():
    """What is told decides: the method is a control and no competitor."""
    kept = []
    for answer in (ANSWER, tiny.prompt(3, 9)):
        s = session(ONESHOT)
        s.foresee([len(PROMPT)], [QUESTION], [answer])
        s.feed([PROMPT])
        s.compress()
        kept.append([head.tolist() for layer in s.kept()[0] for head in layer])
    assert kept[0] != kept[1]


def test_it_must_be_told_and_others_are_not():
    """Silence would be a score of 0 for everything."""
    for call in (lambda s: s.feed([PROMPT]), lambda s: s.score([PROMPT])):
        with pytest.raises(ValueError, match="'oracle' must be told question and answer first: Session.foresee"):
            call(session())
    with pytest.raises(ValueError, match="'oracle' must be told question and answer"):
        answers.answer_batch(tiny.model(), tiny.build("oracle"), tiny.SETTINGS, [PROMPT], [QUESTION], 4)
    with pytest.raises(ValueError, match="method 'snapkv' takes no future"):
        tiny.session(tiny.build("snapkv")).foresee([1], [QUESTION], [ANSWER])


def test_a_batch_is_told_its_answers():
    """Through the door that evaluations use; rows of unequal length."""
    given = answers.answer_batch(
        tiny.model(), tiny.build("oracle"), tiny.SETTINGS, [PROMPT, PROMPT[:21]], [QUESTION, QUESTION[:2]], 6,
        expected=[ANSWER, ANSWER[:1]],
    )  # fmt: skip
    assert (given.kept == tiny.BUDGET).all()


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [(QUESTION, [], "row 0: the answer that is told is empty"), (tiny.prompt(6), ANSWER, "9 tokens .* longest is 8")],
)
def test_what_cannot_be_told(question, answer, message):
    with pytest.raises(ValueError, match=message):
        session().foresee([3], [question], [answer])
    with pytest.raises(ValueError, match="longest must be at least 1, got 0"):
        tiny.build("oracle", longest=0)
