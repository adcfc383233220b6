"""Nexus Sampling: weights of blocks, and whole runs against the oracle, draws included."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus import methods, samplers
from nexus.generate import Settings
from nexus.scorers import BlockWalk, Entries
from nexus.shapes import Layout
from tests import oracle, oracle_memory, tiny
from tests.scorers.views import G, H, K, L, by_head, filled

W = 3


def window(entries, seed: int = 2):
    """Queries [L,B,K,G,W,H] of the last W positions, not scaled, and the state."""
    q = np.random.default_rng(seed).normal(size=(L, 2, K, G, W, H)).astype(np.float32)
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(entries.buffer.seen)])
    return q, {"q": jnp.asarray(q / np.sqrt(H)), "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32)}


@pytest.mark.parametrize("options", [{}, {"newest_first": True}, {"hub": True}, {"walk": 5, "lam": 3.0}])
@pytest.mark.parametrize("pools", [1, L * K])
def test_weights_of_blocks_per_head(pools, options):
    """Unequal and empty heads: sums across heads, rows in the wrong order, a walk longer than the window."""
    scorer = BlockWalk(window=W, block=4, share_heads=False, **options)
    entries, lists = filled(pools)
    q, state = window(entries)
    for (b, o), got in by_head(entries, scorer.score(entries, state, None)).items():
        had = lists[b][o // K][o % K]
        at, k = np.array([e.pos for e in had]), np.array([e.k for e in had], float)
        if len(at):
            p = oracle.probabilities(q[o // K, b, o % K].astype(float), np.asarray(state["pos"])[0, b], k, at)
            np.testing.assert_allclose(got, oracle_memory.block_weights(p.mean(axis=0), at // 4, scorer), atol=1e-5)


def row_of_blocks(rows: np.ndarray) -> tuple[Entries, jax.Array]:
    """Entries of one head, position = block, and the same attention rows [W,NB] as p."""
    n = rows.shape[1]
    layout = Layout(num_layers=1, num_kv_heads=1, num_groups=1, head_dim=2, budget=n, tail=1, pools=1)
    buf = dataclasses.replace(kv.init(layout, 1), pos=jnp.arange(n)[None], count=jnp.full((1, 1, 1), n))
    p = jnp.zeros((1, 1, n + 1, len(rows))).at[0, 0, :n].set(rows.T)
    return Entries(buffer=buf, cand=kv.candidates(buf)), p


ROWS = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]])


def weights(rows: np.ndarray, **options) -> np.ndarray:
    entries, p = row_of_blocks(rows)
    scorer = BlockWalk(window=len(rows), block=1, share_heads=False, **options)
    return np.asarray(scorer.weight(entries, p, jnp.ones((1, len(rows)))))[0, 0, : rows.shape[1]]


def test_the_walk_by_hand():
    """Conformance 10. c = s0 = (.5, .5, 0, 0); <s1, c> = .25: c += 1.25 s1 = (.5, 1.125, .625, 0);
    <s2, c> = .5625: c += 1.5625 s2 = (.890625, 1.515625, 1.015625, .390625), sum 3.8125. Newest first:
    c = s2; <s1, c> = .25: (.25, .875, .875, .25); <s0, c> = .5625: (1.03125, 1.65625, .875, .25), sum 3.8125."""
    direct = ROWS.mean(axis=0)
    c = np.array([0.890625, 1.515625, 1.015625, 0.390625])
    np.testing.assert_allclose(weights(ROWS, lam=2.0, eps=0.0), direct + 2 * c / 3.8125, atol=1e-6)
    c = np.array([1.03125, 1.65625, 0.875, 0.25])
    got = weights(ROWS, lam=2.0, eps=0.0, newest_first=True)
    np.testing.assert_allclose(got, direct + 2 * c / 3.8125, atol=1e-6)
    np.testing.assert_allclose(oracle_memory.walk(ROWS, 3), [0.890625, 1.515625, 1.015625, 0.390625])


def test_the_hub_is_the_direct_term():
    """Conformance 2: rows sum to 1 over the blocks, so the draft's hub term only multiplies a by 1 + lam."""
    entries, _ = filled(L * K)
    _, state = window(entries)
    none, hub = (BlockWalk(window=W, block=4, share_heads=False, hub=True, eps=0.0, lam=x) for x in (0.0, 0.7))
    a, w = (by_head(entries, scorer.score(entries, state, None)) for scorer in (none, hub))
    pos = by_head(entries, entries.pos)
    for head in a:
        if len(pos[head]):
            _, first = np.unique(pos[head] // 4, return_index=True)
            rows = np.asarray(state["pos"])[0, head[0]] >= pos[head].min()  # rows that see something
            assert a[head][first].sum() == pytest.approx(rows.mean(), abs=1e-6)
            np.testing.assert_allclose(w[head], a[head] * (1 + 0.7 / rows.mean()), atol=1e-6)


def test_of_equal_blocks_the_newest_is_first():
    """Conformance 8: eps r, and nothing else, tells them apart."""
    w = weights(np.full((3, 4), 0.25))
    np.testing.assert_allclose(np.diff(w), 1e-6 / 3, rtol=0.2)
    np.testing.assert_array_equal(weights(np.full((3, 4), 0.25), eps=0.0), 1.5 * 0.25)


def test_fewer_queries_than_the_window():
    """Rows that do not exist yet would count as zeros, and the walk would begin with one."""
    entries, p = row_of_blocks(np.concatenate([np.zeros((2, 4)), ROWS]))
    scorer = BlockWalk(window=5, block=1, share_heads=False)
    got = scorer.weight(entries, p, jnp.asarray([[0.0, 0.0, 1.0, 1.0, 1.0]]))[0, 0, :4]
    np.testing.assert_allclose(got, weights(ROWS), atol=1e-6)


# --- whole runs --------------------------------------------------------------------------------------------------


def drawn(score, method, row: int):
    """The oracle's score as the reservoir's key: u of (sequence, eviction, layer, head, block) from its definition."""
    events = {"seen": 0, "count": -1}

    def key(s, layer, head, at):
        if events["seen"] != s.seen:
            events.update(seen=s.seen, count=events["count"] + 1)
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), row), events["count"])
        rng = jax.random.split(rng)[1][None]
        block = jnp.asarray(at // method.scorer.unit(method.budget), jnp.int32)[None, None]
        stream = layer if method.sampler.share_heads else layer * s.cfg.num_kv_heads + head
        log_e = samplers.log_exponential(rng, jnp.full_like(block, stream), block, method.sampler.draws)
        w, e = score(s, layer, head, at), np.exp(np.asarray(log_e[0, 0], float))
        forced, w = w > 100, np.where(w > 100, w - 1e3, w)
        s_ = np.log(np.exp(-(e - e.min(axis=-1, keepdims=True)) / w[:, None]).mean(axis=-1)) - e.min(axis=-1) / w
        return s_ + 1e9 * forced

    return key


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "top"}, {"sampler": "top", "share_heads": False}, {"sampler": "top", "lam": 3.0, "block": 4},
        {}, {"share_heads": False, "draws": 3}, {"hub": True, "block": 3, "num_sinks": 1},
    ],
)  # fmt: skip
def test_runs_equal_the_oracle(options):
    """Conformance 1 and 9: prefill in chunks, decoding and a second turn keep the oracle's blocks, under `top` those of
    the largest weight, under the reservoir those of the definition's draws for (sequence, eviction, layer, block)."""
    method = tiny.build("nexus_sampling", **options)
    size = method.scorer.unit(tiny.BUDGET)
    score = oracle_memory.block_walk(method.scorer, size)

    def said(row: int):
        rule = score if options.get("sampler") == "top" else drawn(score, method, row)
        return oracle.Rules(score=rule, budget=tiny.BUDGET, num_sinks=method.num_sinks)

    s, rows = tiny.session(method), [tiny.stream(said(b)) for b in range(tiny.BATCH)]
    fill = 0
    for turn, (lengths, steps) in enumerate([((37, 5, 20), 6), ((9, 0, 23), 9)]):
        texts = tiny.prompts(*lengths, seed=turn)
        s.feed(texts)
        for b, (row, text) in enumerate(zip(rows, texts, strict=True)):
            if fill:
                row.evict()
            row.prefill(text, tiny.CHUNK)
            tiny.assert_same(s, b, row)
        answers = s.generate(steps, end=())
        for b, row in enumerate(rows):
            tokens, row_fill = row.decode(steps, tiny.EVERY)
            assert answers[b] == tokens
            tiny.assert_same(s, b, row)
        fill = row_fill


@pytest.mark.parametrize("sampler", ["top", "reservoir"])
def test_whole_blocks_are_kept_and_the_forced_ones_always(sampler):
    """Conformance 7: where the sequence ends with a block, blocks are kept whole, the same in all heads of a layer;
    sink, previous and current block among them. In the middle of a block at most one other is broken."""
    s = tiny.session(tiny.build("nexus_sampling", sampler=sampler, budget=16, block=4, window=4, num_sinks=1))
    s.feed(tiny.prompts(40, 39, 64))
    seen = set()
    for b, n in enumerate((40, 39, 64)):
        for layer in s.kept()[b]:
            assert all(np.array_equal(layer[0], pos) for pos in layer)
            blocks, counts = np.unique(layer[0] // 4, return_counts=True)
            current = (n - 1) // 4
            assert {0, current - 1, current} <= set(blocks.tolist())
            assert len(layer[0]) == 16 and (counts[:-1] < 4).sum() <= (n % 4 > 0) and counts[-1] == (n - 1) % 4 + 1
            seen.add(tuple(blocks))
    assert len(seen) > 2  # layers and sequences decide by themselves


def test_an_automatic_block_follows_the_budget():
    """Nine forced blocks of 64, as in the draft, are more than a budget of 512."""
    assert [BlockWalk().unit(m) for m in (4, 64, 256, 1024, 8192)] == [1, 4, 16, 64, 64]
    m = methods.build("nexus_sampling", budget=256)
    assert (m.recent, m.num_sinks, m.sampler.name, m.sampler.share_heads) == (17, 4, "reservoir", True)
    assert methods.build("nexus_sampling", budget=256, block=8).recent == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1"),
        ({"block": -1}, "block must be an integer of at least 0"),
        ({"walk": 0}, "walk must be an integer of at least 1"),
        ({"lam": -1.0}, "lam must be at least 0"),
        ({"block": 32}, "= 96 protected entries in whole blocks of 32 do not fit the budget of 64"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("nexus_sampling", budget=64, **options)


def test_one_set_per_layer_needs_equal_heads():
    """Keys are averaged over heads slot by slot: under a shared pool the slots are not those of one position."""
    with pytest.raises(ValueError, match="per_head"):
        tiny.session(tiny.build("nexus_sampling", allocator="global"))
    oneshot = tiny.session(
        tiny.build("nexus_sampling", allocator="global"), settings=Settings(protocol="oneshot", chunk=8, evict_every=4)
    )
    oneshot.feed(tiny.prompts(30, 20, 25))
    with pytest.raises(ValueError, match="per_head"):
        oneshot.compress()
