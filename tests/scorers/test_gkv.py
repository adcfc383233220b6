"""G-KV against its equations. Kept sets over whole runs, memory included: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus import evict, methods
from nexus.scorers import Entries, GlobalAttention
from tests import oracle, oracle_memory, tiny
from tests.scorers.views import G, H, K, L, by_head, filled

W = 3


def window(entries, seed: int = 2, scale: float = 1.0):
    """A ring state: queries [L,B,K,G,W,H] of the last W positions, not scaled, and the state."""
    q = scale * np.random.default_rng(seed).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(entries.buffer.seen)])
    return q, {"q": jnp.asarray(q / np.sqrt(H)), "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32)}


def judged(scorer, entries, state):
    return dataclasses.replace(entries, fresh=scorer.remember(entries, state))


def entries_with(pools: int, values: float | None):
    """Entries with NaN wherever nothing is; f new everywhere, or as `filled` draws it, made positive."""
    entries, lists = filled(pools, aux=("global",))
    buf = entries.buffer
    change = (lambda x: jnp.where(jnp.isnan(x), x, values)) if values is not None else jnp.abs
    buf = dataclasses.replace(
        buf, aux={"global": change(buf.aux["global"])}, tail_aux={"global": change(buf.tail_aux["global"])}
    )
    return dataclasses.replace(entries, buffer=buf), lists


def local(lists, q, pos, b, o):
    """(positions, s, is context) of one head."""
    had = lists[b][o // K][o % K]
    at, k = np.array([e.pos for e in had]), np.array([e.k for e in had], float)
    A = oracle.window_attention(q[o // K, b, o % K].astype(float), pos[b], k, at).max(axis=0).mean(axis=0)
    return at, k, A / A.max() if A.max() > 0 else A, at < pos[b][0]


@pytest.mark.parametrize("memory", ["max", "mean", "sum"])
@pytest.mark.parametrize("pools", [1, L * K])
def test_score_and_memory(pools, memory):
    """A maximum over the wrong axis, a memory decayed for new entries, a redundancy scaled by the window's own keys."""
    scorer = GlobalAttention(window=W, memory=memory, alpha=0.7, lam=0.6)
    entries, lists = entries_with(pools, None)
    q, state = window(entries)
    known = judged(scorer, entries, state)
    f, score = by_head(entries, known.aux("global")), by_head(entries, scorer.score(known, state, None))
    for (b, o), got in score.items():
        at, k, s, context = local(lists, q, np.asarray(state["pos"][0]), b, o)
        old = np.abs([e.aux for e in lists[b][o // K][o % K]])
        want = {"max": np.maximum(0.7 * old, s), "mean": 0.7 * old + 0.3 * s, "sum": 0.7 * old + s}[memory]
        np.testing.assert_allclose(f[b, o], np.where(context, want, -1), atol=1e-5)
        r = oracle.softmax(oracle_memory.redundancy(k)) if len(k) else np.zeros(0)
        top = r[context].max() if context.any() else 1
        np.testing.assert_allclose(got, 0.6 * np.where(context, want, 0) - 0.4 * r / top, atol=1e-5)


@pytest.mark.parametrize("memory", ["max", "mean", "sum"])
def test_without_a_past_it_is_the_local_score(memory):
    """Conformance 1: alpha = 0 and lam = 1 leave the attention of this window, for entries old and new."""
    for values in (-1.0, 0.5):
        entries, _ = entries_with(1, values)
        _, state = window(entries)
        scorer = GlobalAttention(window=W, memory=memory, alpha=0.0, lam=1.0)
        got = scorer.score(judged(scorer, entries, state), state, None)
        np.testing.assert_allclose(got, np.where(entries.valid, scorer.local(entries, state), 0.0), atol=1e-6)


def test_a_second_call_changes_nothing():
    """Conformance 2: the same queries over the same entries leave f as it was, also where a longer neighbour in the
    batch is cut and this sequence has no new token."""
    entries, _ = entries_with(1, -1.0)
    _, state = window(entries)
    scorer = GlobalAttention(window=W)
    once = scorer.remember(entries, state)["global"]
    again = scorer.remember(dataclasses.replace(entries, fresh={"global": once}), state)["global"]
    np.testing.assert_array_equal(once, again)
    older = jnp.where(once >= 0, 100.0, once)
    idle = dataclasses.replace(entries.buffer, tail_pos=entries.buffer.tail_pos.at[1].set(-1))
    kept = scorer.remember(dataclasses.replace(entries, buffer=idle, fresh={"global": older}), state)["global"]
    valid = np.asarray(entries.valid) & (np.asarray(once) >= 0)
    assert (np.asarray(kept)[1][valid[1]] == 100).all()
    np.testing.assert_allclose(np.asarray(kept)[0][valid[0]], 80, rtol=1e-6)


def test_lam_one_drops_the_redundancy():
    """Conformance 3."""
    entries, _ = entries_with(1, -1.0)
    _, state = window(entries)
    scorer = GlobalAttention(window=W, lam=1.0)
    known = judged(scorer, entries, state)
    got = scorer.score(known, state, None)
    np.testing.assert_array_equal(got, jnp.maximum(known.aux("global"), 0.0))


def test_the_group_is_reduced_by_its_maximum():
    """Conformance 8: one query head alone looks at an entry; a mean would give it a third."""
    entries, lists = entries_with(L * K, -1.0)
    q, state = window(entries, scale=0.0)
    b, o = 1, 2  # layer 1, head 0: six rows and two of the tail
    at = np.array([e.pos for e in lists[b][o // K][o % K]])
    target = np.array([e.k for e in lists[b][o // K][o % K]])[0]
    one = np.zeros_like(q)
    one[o // K, b, o % K, 1] = 40 * target / np.linalg.norm(target)
    scorer = GlobalAttention(window=W)
    state = {"q": jnp.asarray(one), "pos": state["pos"]}
    _, _, expected, _ = local(lists, one * np.sqrt(H), np.asarray(state["pos"][0]), b, o)
    got = by_head(entries, scorer.local(entries, state))[b, o]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert len(at) == 8 and got.max() == 1


def test_memory_moves_with_its_entry_and_the_count_is_exact():
    """Conformance 6 and 7: after a cut each kept entry has the f it had among the candidates, M are left, and the
    window is among them."""
    s = tiny.session(tiny.build("gkv"))
    s.feed(tiny.prompts(37, 20, 29))
    method = dataclasses.replace(s.method, num_sinks=2)
    decoded = s.fork()
    decoded.generate(3, end=())  # a tail that is not empty
    buf = decoded.buffer
    cand = kv.candidates(buf)
    before = method.scorer.remember(Entries(buffer=buf, cand=cand), buf.state)["global"]
    after = evict.evict(method, s.params, buf)
    for b in range(tiny.BATCH):
        for o in range(4):
            f = {int(p): float(x) for p, x in zip(cand.pos[b, o], before[b, o], strict=True) if p >= 0}
            held = tiny.held(after, b, o // 2, o % 2, aux="global")
            assert len(held) == tiny.BUDGET
            assert {e.pos for e in held} >= set(range(int(buf.seen[b]) - 4, int(buf.seen[b])))
            np.testing.assert_allclose([e.aux for e in held], [f[e.pos] for e in held], atol=1e-6)
            assert sum(e.aux < 0 for e in held) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1"),
        ({"alpha": 1.5}, "alpha must lie between 0 and 1"),
        ({"lam": -0.1}, "lam must lie between 0 and 1"),
        ({"memory": "last"}, "memory 'last'; allowed: max, mean, sum"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("gkv", budget=64, **options)


def test_a_window_longer_than_the_prompt_keeps_everything():
    """No context at all: nothing to divide by."""
    s = tiny.session(tiny.build("gkv"))
    s.feed(tiny.prompts(1, 3, 4))
    assert [row[0][0].tolist() for row in s.kept()] == [[0], [0, 1, 2], [0, 1, 2, 3]]
    assert np.isfinite(np.asarray(jax.tree.leaves(s.buffer.aux)[0])).all()
