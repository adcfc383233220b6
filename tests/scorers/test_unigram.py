"""Rare tokens stay. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import numpy as np

from tests import tiny


def test_counts_are_those_of_the_whole_sequence():
    """Evicted tokens count as well, padding and other sequences do not, and a layer does not count twice."""
    s = tiny.session(tiny.build("unigram"))
    texts = tiny.prompts(37, 0, 20)
    s.feed(texts)
    answers = s.generate(6, end=())
    count = np.asarray(s.buffer.state["count"])
    assert count.shape == (1, tiny.BATCH, tiny.CFG.vocab_size)
    for b, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        np.testing.assert_array_equal(count[0, b], np.bincount(text + answer, minlength=tiny.CFG.vocab_size))


def test_the_rare_stay():
    """Two tokens come once, all others often: they are kept beside the sinks and, among equals, the newest."""
    s = tiny.session(tiny.build("unigram", budget=5), batch=1)
    text = [1, 2] * 8
    text[5], text[10] = 40, 50
    s.feed([text])
    assert {0, 1, 5, 10} <= set(s.kept()[0][0][0].tolist())
