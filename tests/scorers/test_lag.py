"""LagKV against its equations. Kept sets over whole runs, places included: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus import evict
from nexus.generate import Settings
from nexus.scorers import Entries, LagRelative
from nexus.shapes import Layout
from tests import oracle_memory, tiny

LAG, SKIP, HEADS = 4, 2, 2


def prompt(n: int, pools: int, seed: int = 0) -> tuple[Entries, np.ndarray, np.ndarray]:
    """Entries of one sequence with n tokens in a table of one layer and two heads; keys and values [K,n,H]."""
    layout = Layout(num_layers=1, num_kv_heads=HEADS, num_groups=1, head_dim=5, budget=n + 2, tail=3, pools=pools)
    buf = kv.init(layout, 1, aux=("place",))
    k, v = np.random.default_rng(seed).normal(size=(2, HEADS, n, 5)).astype(np.float32)
    rows = np.concatenate([np.arange(n), np.arange(n) + (n if pools == 1 else n + 2)])
    fill = lambda x, new: x.at[0, rows].set(new)  # noqa: E731
    buf = dataclasses.replace(
        buf, k=fill(buf.k * jnp.nan, k.reshape(-1, 5)), v=fill(buf.v * jnp.nan, v.reshape(-1, 5)),
        pos=fill(buf.pos, np.tile(np.arange(n), HEADS)), aux={"place": fill(buf.aux["place"] * jnp.nan, -1.0)},
        count=jnp.full((1, 1, HEADS), n), seen=jnp.array([n]),
        start=jnp.asarray([[[0, n if pools == 1 else n + 2]]]),
    )  # fmt: skip
    return Entries(buffer=buf, cand=kv.candidates(buf)), k, v


def places(entries: Entries, scorer: LagRelative) -> list[np.ndarray]:
    """The places of each head, by position."""
    got = np.asarray(scorer.remember(entries, {})["place"])[0].reshape(-1)
    owner, valid = (np.asarray(x)[0].reshape(-1) for x in (entries.cand.owner, entries.valid))
    return [got[valid & (owner == o)] for o in range(HEADS)]


@pytest.mark.parametrize("pools", [1, HEADS])
def test_places_of_a_prompt(pools):
    """Minimum and maximum of the wrong partition, a spread over tokens instead of channels, places from the bottom."""
    entries, k, v = prompt(21, pools)  # 2 + 4 partitions of 4, and 3 more
    for o, got in enumerate(places(entries, LagRelative(lag=LAG, skip=SKIP))):
        want = np.full(21, -1.0)
        for begin in (2, 6, 10):  # the fourth partition has no successor yet
            own, ref = slice(begin, begin + LAG), slice(begin + LAG, begin + 2 * LAG)
            g = oracle_memory.stand_out(k[o, own].astype(float), k[o, ref].astype(float))
            g = g + oracle_memory.stand_out(v[o, own].astype(float), v[o, ref].astype(float))
            want[own] = g.argsort().argsort() / LAG
        np.testing.assert_allclose(got, want, atol=1e-6)
    score = LagRelative(lag=LAG, skip=SKIP)
    known = dataclasses.replace(entries, fresh=score.remember(entries, {}))
    assert (np.asarray(score.score(known, {}, None))[np.asarray(entries.valid)] <= 1).all()


def test_a_channel_that_does_not_vary_says_nothing():
    """max = min divides by zero in the public code."""
    entries, _, _ = prompt(14, HEADS)
    buf = entries.buffer
    k = jnp.where(buf.pos[..., None] > 5, 1.0, buf.k)
    entries = dataclasses.replace(entries, buffer=dataclasses.replace(buf, k=k))
    for got in places(entries, LagRelative(lag=LAG, skip=SKIP)):
        assert sorted(got[2:6]) == [0, 0.25, 0.5, 0.75]


def test_a_place_is_given_once():
    """Scored again with a partition that has been thinned out since, an entry would move up."""
    entries, _, _ = prompt(21, HEADS)
    known = jnp.where(entries.pos == 3, 0.6, jnp.where(entries.valid, -1.0, jnp.nan))
    entries = dataclasses.replace(entries, fresh={"place": known})
    for got in places(entries, LagRelative(lag=LAG, skip=SKIP)):
        assert got[3] == np.float32(0.6) and (got[[2, 4, 5]] >= 0).all()


def test_entries_evicted_before_their_partition_was_complete_are_left_out():
    """Places are counted from the top, so what is left of a partition competes with whole ones."""
    entries, _, _ = prompt(14, HEADS)
    buf = entries.buffer
    gone = (buf.pos == 2) | (buf.pos == 4)
    buf = dataclasses.replace(buf, pos=jnp.where(gone, -1, buf.pos))
    order = np.argsort(np.asarray(buf.pos[0] < 0).reshape(HEADS, -1), axis=1, kind="stable") + [[0], [16]]
    move = lambda x: x[:, order.reshape(-1)]  # noqa: E731
    buf = dataclasses.replace(
        buf, k=move(buf.k), v=move(buf.v), pos=move(buf.pos), aux={"place": move(buf.aux["place"])},
        count=jnp.full((1, 1, HEADS), 12),
    )  # fmt: skip
    for got in places(Entries(buffer=buf, cand=kv.candidates(buf)), LagRelative(lag=LAG, skip=SKIP)):
        np.testing.assert_array_equal(sorted(got[2:4]), [0.5, 0.75])  # positions 3 and 5


def test_short_prompts_are_recency():
    """Conformance 12: below skip + 2 lag nothing is scored, and the newest stay beside the sinks."""
    s = tiny.session(tiny.build("lagkv", lag=9), settings=Settings(protocol="oneshot", chunk=8, evict_every=4))
    s.feed(tiny.prompts(19, 15, 20))
    s.compress()
    for b, n in enumerate((19, 15)):
        for layer in s.kept()[b]:
            for pos in layer:
                assert pos.tolist() == [0, 1, *range(n - 10, n)]
    assert any(pos.tolist() != [0, 1, *range(10, 20)] for layer in s.kept()[2] for pos in layer)


def test_each_partition_keeps_the_same_count():
    """Conformance 12: places make the partitions equal."""
    s = tiny.session(
        tiny.build("lagkv", budget=2 + 5 * 2 + 8), batch=1,
        settings=Settings(protocol="oneshot", chunk=8, evict_every=4), cfg=tiny.CFG,
    )  # fmt: skip
    s.feed([tiny.prompt(2 + 9 * 3)])
    s.compress()
    for layer in s.kept()[0]:
        for pos in layer:
            counts = np.bincount((pos[2:] - 2) // 3, minlength=9)
            assert counts[8] == 3 and counts[:8].max() - counts[:8].min() <= 1


def test_an_automatic_partition_follows_the_budget():
    """128 positions under a budget of 256 would be recency: two partitions wait for their successor."""
    assert [LagRelative().size(m) for m in (2, 100, 256, 512, 4096)] == [1, 25, 64, 128, 128]
    assert LagRelative(lag=128).size(256) == 128


def test_places_move_with_their_entries():
    """Read from the slot where the entry used to be, a place belongs to another entry."""
    s = tiny.session(tiny.build("lagkv"))
    s.feed(tiny.prompts(37, 20, 29))
    s.generate(3, end=())
    buf, method = s.buffer, s.method
    cand = kv.candidates(buf)
    before = method.scorer.remember(Entries(buffer=buf, cand=cand), {})["place"]
    after = evict.evict(method, s.params, buf)
    for b in range(tiny.BATCH):
        for o in range(4):
            place = {int(p): float(x) for p, x in zip(cand.pos[b, o], before[b, o], strict=True) if p >= 0}
            held = tiny.held(after, b, o // 2, o % 2, aux="place")
            np.testing.assert_allclose([e.aux for e in held], [place[e.pos] for e in held])


@pytest.mark.parametrize("options", [{"lag": -1}, {"skip": -1}, {"lag": 2.5}])
def test_what_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be an integer of at least 0"):
        LagRelative(**options)
