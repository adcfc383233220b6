"""R-KV against its equations. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import methods
from nexus.scorers import RedundancyAware
from tests import oracle, oracle_memory, tiny
from tests.scorers.views import G, H, K, L, by_head, filled

W = 3


def window(entries, scale: float = 1.0):
    """A ring state: queries [L,B,K,G,W,H] of the last W positions, not scaled, and the state."""
    q = scale * np.random.default_rng(2).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(entries.buffer.seen)])
    return q, {"q": jnp.asarray(q / np.sqrt(H)), "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32)}


def expected(q, pos, had, kernel: int, lam: float) -> np.ndarray:
    at, k = np.array([e.pos for e in had]), np.array([e.k for e in had], float)
    out, context = np.zeros(len(at)), at < pos[0]
    if context.any():
        z = (q.astype(float) @ k[context].T / np.sqrt(H)).max(axis=0)
        out[context] = oracle.pooled(oracle.softmax(z).mean(axis=0), kernel, "max")
    return lam * out - (1 - lam) * oracle.softmax(oracle_memory.redundancy(k)) if len(k) else out


@pytest.mark.parametrize("kernel", [1, 5])
@pytest.mark.parametrize("pools", [1, L * K])
def test_logits_are_reduced_before_a_softmax_over_the_context(kernel, pools):
    """Softmax first, a softmax that counts the window, a pool across heads: each changes the importance."""
    entries, lists = filled(pools)
    q, state = window(entries)
    score = RedundancyAware(window=W, kernel=kernel, lam=0.3).score(entries, state, None)
    for (b, o), got in by_head(entries, score).items():
        want = expected(q[o // K, b, o % K], np.asarray(state["pos"][0, b]), lists[b][o // K][o % K], kernel, 0.3)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_large_logits_of_the_window_do_not_silence_the_context():
    """Logits of the window's own keys far above those of the context, as in sharp heads: only the context counts."""
    entries, lists = filled(1)
    q, state = window(entries, scale=300.0)
    score = RedundancyAware(window=W, kernel=1, lam=1.0).score(entries, state, None)
    for (b, o), got in by_head(entries, score).items():
        want = expected(q[o // K, b, o % K], np.asarray(state["pos"][0, b]), lists[b][o // K][o % K], 1, 1.0)
        np.testing.assert_allclose(got, want, atol=1e-4)
        assert got.sum() == pytest.approx(min(1.0, len(got[want > 0])), abs=1e-4)


def test_lam_one_drops_the_redundancy():
    """Conformance 11."""
    entries, _ = filled(1)
    _, state = window(entries)
    scorer = RedundancyAware(window=W, lam=1.0)
    np.testing.assert_array_equal(scorer.score(entries, state, None), scorer.importance(entries, state))


def test_a_window_longer_than_the_prompt_keeps_everything():
    s = tiny.session(tiny.build("rkv"))
    s.feed(tiny.prompts(1, 3, 4))
    assert [row[0][0].tolist() for row in s.kept()] == [[0], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1"),
        ({"kernel": 4}, "kernel must be odd"),
        ({"lam": 2.0}, "lam must lie between 0 and 1"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("rkv", budget=64, **options)
