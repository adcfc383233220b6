"""The score of streaming_llm."""

from __future__ import annotations

import numpy as np
import pytest

from nexus import methods
from nexus.scorers import Recency
from tests import tiny
from tests.scorers.views import by_head, filled


def test_newer_is_worth_more():
    """The score is the position itself."""
    entries, _ = filled(1)
    pos, score = by_head(entries, entries.pos), by_head(entries, Recency().score(entries, {}, entries.buffer.rng))
    for head in pos:
        np.testing.assert_array_equal(score[head], pos[head])


@pytest.mark.parametrize("case", ["streaming_llm", "streaming_llm-cache"])
def test_first_four_and_last(case):
    """Positions exactly: sinks, then the newest M - sinks, in every head alike."""
    sinks = 2
    s = tiny.session(tiny.build(case))
    s.feed(tiny.prompts(37, 5, 20))
    for row, n in ((0, 37), (2, 20)):
        expected = [*range(sinks), *range(n - (tiny.BUDGET - sinks), n)]
        assert all(pos.tolist() == expected for layer in s.kept()[row] for pos in layer)
    assert methods.build("streaming_llm", budget=12).num_sinks == 4
