"""The score of h2o against dense column sums."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nexus.scorers import AccumulatedAttention
from nexus.shapes import EMPTY
from tests import tiny


@pytest.mark.parametrize("case", ["h2o", "h2o-global"])
def test_column_sums_are_the_dense_ones(case):
    """Sums of all past queries, group mean, evicted sums dropped. Public ports use the last query only, keys as
    queries, or divide by age; chunk by chunk and token by token must give the same numbers."""
    method = tiny.build(case)
    s, rows = tiny.session(method), [tiny.stream(method) for _ in range(tiny.BATCH)]
    texts = tiny.prompts(37, 5, 20)
    s.feed(texts)
    s.generate(10, end=())  # the last two tokens stand in the tail
    buf = s.buffer
    for b, (row, text) in enumerate(zip(rows, texts, strict=True)):
        row.prefill(text, tiny.CHUNK)
        row.decode(10, tiny.EVERY)
        tail = np.asarray(buf.tail_pos)[b] != EMPTY
        for layer, heads in enumerate(s.kept()[b]):
            for head, pos in enumerate(heads):
                table = [e.aux for e in tiny.held(buf, b, layer, head, "received")]
                got = [*table, *np.asarray(buf.tail_aux["received"])[layer, b, head][tail]]
                np.testing.assert_allclose(got, row.received[layer, head, pos], atol=1e-4)


def test_the_column_starts_at_zero_and_is_the_score():
    """A slot that is used again must not inherit the sum of its predecessor."""
    scorer = AccumulatedAttention()
    assert scorer.aux == ("received",) and scorer.write(None) == {}  # type: ignore[arg-type]
    s = tiny.session(tiny.build("h2o"))
    assert not jnp.any(s.buffer.aux["received"]) and not jnp.any(s.buffer.tail_aux["received"])
