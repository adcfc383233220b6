"""The observation window of snapkv and tova. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.scorers import WindowAttention
from tests import oracle, tiny
from tests.scorers.views import G, H, K, L, by_head, filled


def call(pos: np.ndarray, seed: int):
    """The parts of a call that the window looks at: B = 2, T = pos.shape[1]."""
    q = np.random.default_rng(seed).normal(size=(2, K, G, pos.shape[1], H)).astype(np.float32)

    @dataclasses.dataclass
    class Call:
        q: jax.Array
        pos: jax.Array
        groups: int = G

    return q, Call(jnp.asarray(q.reshape(2, K, -1, H)), jnp.asarray(pos, jnp.int32))


def test_the_ring_holds_the_last_queries_in_order():
    """Chunks longer and shorter than the window, and padding, leave the newest real queries and nothing else."""
    scorer, layout = WindowAttention(window=4), filled(1)[0].buffer.layout
    state = jax.tree.map(lambda x: x[0], scorer.init_state(layout, 2))
    seen: list[list[tuple[int, np.ndarray]]] = [[], []]
    steps = [
        [[0, 1, -1], [0, -1, -1]],
        [[2, 3, 4], [1, 2, 3]],
        [[-1] * 3, [4, -1, -1]],
        [[5], [5]],
        [[6, 7, 8, 9, 10], [6, 7, 8, 9, -1]],
    ]
    for i, pos in enumerate(steps):
        q, c = call(np.array(pos), i)
        state, _, _ = scorer.observe(c, state, {}, {})
        for b in range(2):
            seen[b] += [(p, q[b, :, :, t]) for t, p in enumerate(pos[b]) if p >= 0]
            last = seen[b][-4:]
            np.testing.assert_array_equal(state["pos"][b], [-1] * (4 - len(last)) + [p for p, _ in last])
            for w, (_, row) in enumerate(last, start=4 - len(last)):
                np.testing.assert_array_equal(state["q"][b, :, :, w], row)


@pytest.mark.parametrize(("kernel", "pool"), [(1, "avg"), (3, "avg"), (5, "max")])
@pytest.mark.parametrize("pools", [1, L * K])
def test_pool_then_average_the_group(kernel, pool, pools):
    """Max pooling does not commute with the mean over the group: averaged first, another set is kept."""
    entries, lists = filled(pools)
    W = 3
    q = np.random.default_rng(2).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    seen = np.asarray(entries.buffer.seen)
    pos = np.stack([np.arange(n - W, n) for n in seen])
    state = {
        "q": jnp.asarray(q) / np.sqrt(H).astype(np.float32),
        "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32),
    }
    score = WindowAttention(window=W, kernel=kernel, pool=pool).score(entries, state, entries.buffer.rng)
    for (b, o), got in by_head(entries, score).items():
        had = lists[b][o // K][o % K]
        at, k = np.array([e.pos for e in had]), np.array([e.k for e in had], float)
        A = oracle.window_attention(q[o // K, b, o % K].astype(float), pos[b], k, at)
        expected, context = np.zeros(len(at)), at < pos[b][0]
        if context.any():
            expected[context] = oracle.pooled(A.mean(axis=1)[:, context], kernel, pool).mean(axis=0)
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_tova_keeps_one_set_per_layer():
    """All heads of a layer agree; per query head the public H2O copies diverge."""
    s = tiny.session(tiny.build("tova"))
    s.feed(tiny.prompts(37, 5, 20))
    s.generate(21)
    for row in s.kept():
        for layer in row:
            assert all(np.array_equal(layer[0], pos) for pos in layer)


def test_a_window_longer_than_the_prompt_keeps_everything():
    """Output degenerated when the context was about as long as the window (NVIDIA/kvpress#134, #61)."""
    s = tiny.session(tiny.build("snapkv"))
    s.feed(tiny.prompts(1, 3, 4))
    assert [row[0][0].tolist() for row in s.kept()] == [[0], [0, 1, 2], [0, 1, 2, 3]]
