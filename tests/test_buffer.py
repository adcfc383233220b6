"""The packed table against lists of entries."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus.shapes import EMPTY, Layout
from tests import tiny

L, K, M, C, H = 2, 3, 6, 4, 4
SIZES = dict(num_layers=L, num_kv_heads=K, num_groups=2, head_dim=H, budget=M, tail=C)
LAYOUTS = {pools: Layout(**SIZES, pools=pools) for pools in (1, L, L * K)}
COUNTS = {
    1: np.array([[[36, 0, 0], [0, 0, 0]], [[0, 0, 1], [7, 20, 8]]]),  # one head holds everything; empty heads
    L: np.array([[[18, 0, 0], [6, 6, 6]], [[0, 1, 2], [0, 0, 0]]]),
    L * K: np.array([[[6, 6, 6], [6, 6, 6]], [[0, 1, 2], [5, 6, 3]]]),
}
NAN = float("nan")


def filled(pools: int, dead: float = NAN):
    return tiny.filled(LAYOUTS[pools], COUNTS[pools], [C, 2], dead=dead, aux=("x",))


@jax.jit
def listed(buf):
    cand = kv.candidates(buf)
    k, x = kv.gather(cand, buf.k, buf.tail_k), kv.gather(cand, buf.aux["x"], buf.tail_aux["x"])
    return cand.owner, cand.pos, cand.valid, k, x


def cut(buf, choose, layout=None):
    """choose(candidates) -> keep; gives the new buffer and what was kept, as (sequence, owner, position)."""

    def run(buf):
        cand = kv.candidates(buf, layout)
        keep = choose(cand)
        return kv.repack(buf, cand, keep), keep, cand.owner, cand.pos

    out, keep, owner, pos = jax.jit(run)(buf)
    owner, pos = np.asarray(owner), np.asarray(pos)
    return out, {(b, int(owner[b, p, i]), int(pos[b, p, i])) for b, p, i in np.argwhere(np.asarray(keep)).tolist()}


def test_init_holds_nothing():
    """A slot that begins as position 0 is a token that nobody wrote."""
    buf = kv.init(LAYOUTS[1], 2)
    assert (np.asarray(buf.pos) == EMPTY).all() and (np.asarray(buf.tail_pos) == EMPTY).all()
    assert not np.asarray(buf.count).any() and not np.asarray(buf.seen).any()
    assert len({tuple(x) for x in np.asarray(jax.random.key_data(buf.rng)).tolist()}) == 2, (
        "each sequence has its own key"
    )


def test_append_writes_its_columns_and_no_others():
    """A write beyond its columns overwrites a neighbour's newest token."""
    tail = jnp.zeros((L, 2, K, C, H))
    out = np.asarray(kv.append(tail, jnp.int32(1), jnp.ones((2, K, 2, H)), jnp.int32(1)))
    expected = np.zeros(out.shape)
    expected[1, :, :, 1:3] = 1
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("pools", LAYOUTS)
def test_candidates_list_every_entry_once_in_order(pools):
    """An entry listed twice can be kept twice, one left out is lost; order is (owner, position)."""
    buf, lists = filled(pools)
    owner, pos, valid, k, aux = map(np.asarray, listed(buf))
    Q = L * K // pools
    for b in range(2):
        for p in range(pools):
            owners = range(p * Q, (p + 1) * Q)
            expected = [(o, e) for o in owners for e in lists[b][o // K][o % K]]
            live = np.flatnonzero(valid[b, p])
            assert [(owner[b, p, i], pos[b, p, i]) for i in live] == [(o, e.pos) for o, e in expected]
            np.testing.assert_array_equal(k[b, p, live], [e.k for _, e in expected])
            np.testing.assert_array_equal(aux[b, p, live], [e.aux for _, e in expected])


@pytest.mark.parametrize("pools", LAYOUTS)
def test_repack_keeps_the_chosen_entries_whole(pools):
    """A key with another entry's value, position or number is garbage that looks like a cache; dead slots hold NaN."""
    buf, lists = filled(pools)

    def some(cand):
        draw = jnp.where(cand.valid, jax.random.uniform(jax.random.key(1), cand.pos.shape), -1.0)
        return (jnp.argsort(jnp.argsort(-draw)) < LAYOUTS[pools].pool_rows) & cand.valid

    out, chosen = cut(buf, some)
    for b, o in np.ndindex(2, L * K):
        expected = [e for e in lists[b][o // K][o % K] if (b, o, e.pos) in chosen]
        tiny.assert_entries(tiny.held(out, b, o // K, o % K, "x"), expected)
    assert int((np.asarray(out.pos) != EMPTY).sum()) == len(chosen), "no live position outside the segments"
    assert (np.asarray(out.tail_pos) == EMPTY).all() and int(out.fill) == 0
    assert out.kv_bytes_allocated() == buf.kv_bytes_allocated() == LAYOUTS[pools].kv_bytes(2)


def test_segments_end_before_the_next_begins():
    """Overlapping segments let a head read its neighbour's keys."""
    buf, _ = filled(1)
    out, _ = cut(buf, lambda cand: cand.valid & (cand.pos % 3 != 0) & (jnp.cumsum(cand.valid, axis=-1) <= 36))
    for b in range(2):
        start, count = (np.asarray(x)[b].reshape(-1) for x in (out.start, out.count))
        assert (start[1:] >= (start + count)[:-1]).all() and (start + count)[-1] <= M * L * K


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_a_dense_buffer_is_cut_into_another_layout(pools):
    """The one cut of oneshot: a long table with equal heads becomes a short one with any."""
    long = Layout(**SIZES | {"budget": 10}, pools=L * K)
    buf, lists = tiny.filled(
        long, np.array([[[10, 9, 8], [7, 6, 5]], [[0, 1, 2], [3, 4, 5]]]), [0, 1], dead=NAN, aux=("x",)
    )
    room = LAYOUTS[pools].pool_rows
    out, _ = cut(buf, lambda cand: cand.valid & (jnp.cumsum(cand.valid, axis=-1) <= room), LAYOUTS[pools])
    assert out.layout == LAYOUTS[pools] and out.k.shape == (2, M * L * K, H)
    for b in range(2):
        left = [room] * pools
        for o in range(L * K):
            entries, pool = lists[b][o // K][o % K], o // (L * K // pools)
            tiny.assert_entries(tiny.held(out, b, o // K, o % K, "x"), entries[: left[pool]])
            left[pool] = max(left[pool] - len(entries), 0)


def test_commit_moves_the_tail_behind_the_rows():
    """The window that is written back reaches past the segment's end when it is nearly full; it must not spill over."""
    counts = np.array([[[2] * K] * L, [[4] * K] * L])
    buf, lists = tiny.filled(LAYOUTS[L * K], counts, [C, 2], dead=NAN, aux=("x",))
    out = jax.jit(kv.commit)(buf)
    for b, o in np.ndindex(2, L * K):
        tiny.assert_entries(tiny.held(out, b, o // K, o % K, "x"), lists[b][o // K][o % K])
    np.testing.assert_array_equal(out.count, 6)
    assert (np.asarray(out.tail_pos) == EMPTY).all()


def test_events_count_only_cuts_that_saw_a_token():
    """A sequence must draw the same alone and beside longer ones, so cuts after its end do not count."""
    buf, _ = tiny.filled(LAYOUTS[L * K], COUNTS[L * K], [C, 0])
    out, _ = cut(buf, lambda cand: cand.valid & (cand.pos < 0))
    np.testing.assert_array_equal(out.events, [1, 0])


def test_a_copy_outlives_its_donated_buffer():
    """Two questions on one context need the context twice; donation deletes it."""
    buf, _ = filled(1, dead=0.0)
    twin = buf.copy()
    donated = jax.jit(lambda b: dataclasses.replace(b, k=b.k + 1), donate_argnums=0)(buf)
    assert buf.k.is_deleted()
    np.testing.assert_allclose(donated.k, twin.k + 1)
