"""Block-wise attention over segments against one softmax in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import attention
from tests import oracle

B, K, G, T, H, E = 2, 3, 2, 4, 8, 400
COUNTS = np.array([[0, 3, 230], [64, 65, 1]])  # none, less than a block, more than a block, a block, one more, one
NAN = float("nan")


@pytest.fixture(scope="module")
def table():
    """q [B,K,G*T,H] scaled; k, v [B,E,H] with NaN in every row that no head owns; pos; segments up to the last row."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(B, K, G * T, H)).astype(np.float32) / np.sqrt(H).astype(np.float32)
    start = np.array([[0, 5, E - 230], [10, 100, E - 1]])
    k, v = np.full((2, B, E, H), NAN, np.float32)
    pos = np.full((B, E), -1, np.int32)
    for b in range(B):
        for h in range(K):
            rows = slice(start[b, h], start[b, h] + COUNTS[b, h])
            k[b, rows], v[b, rows] = rng.normal(size=(2, COUNTS[b, h], H))
            pos[b, rows] = np.sort(rng.choice(1000, COUNTS[b, h], replace=False))
    segments = attention.Segments(jnp.asarray(start, jnp.int32), jnp.asarray(COUNTS, jnp.int32))
    return q, k, v, pos, segments


def rows_of(segments, b, h) -> slice:
    start, count = int(segments.start[b, h]), int(segments.count[b, h])
    return slice(start, start + count)


def test_segments_of_any_length_equal_one_softmax(table):
    """Rows past a segment's end, or counted twice by the clamped last block, change the output; NaN there shows it
    (quic/efficient-transformers#1235). Heads of length 0 once failed (Dao-AILab/flash-attention#1619)."""
    q, k, v, _, segments = table
    run = jax.jit(functools.partial(attention.table_attention, stride=None))
    out = np.asarray(attention.finish(run(q, k, v, segments)))
    for b in range(B):
        for h in range(K):
            rows = rows_of(segments, b, h)
            expected = oracle.softmax(q[b, h].astype(float) @ k[b, rows].astype(float).T) @ v[b, rows]
            np.testing.assert_allclose(out[b, h], expected, atol=1e-6, err_msg=f"{b=} {h=}")
    np.testing.assert_array_equal(out[0, 0], 0.0)


def test_heads_side_by_side_equal_heads_one_by_one():
    """Equal segments take another path, which must not be another result: several blocks, the last one clamped into the
    segment, a shorter sequence, an empty one, and NaN where nothing is."""
    M, K = 1300, 2
    rng = np.random.default_rng(1)
    q = rng.normal(size=(3, K, 5, H)).astype(np.float32)
    k, v = rng.normal(size=(2, 3, 2 * K * M, H)).astype(np.float32)
    start = np.tile(np.arange(K) * M + K * M, (3, 1))  # the second layer of a table
    for counts in ([M, M - 3, 7], [1024, 1025, 0]):
        segments = attention.Segments(
            jnp.asarray(start, jnp.int32), jnp.asarray(np.tile(np.array(counts)[:, None], (1, K)), jnp.int32)
        )
        dead = np.ones(k.shape[:2], bool)
        for b, h in np.ndindex(3, K):
            dead[b, rows_of(segments, b, h)] = False
        keys, values = (np.where(dead[..., None], NAN, x).astype(np.float32) for x in (k, v))
        got = [
            attention.finish(attention.table_attention(q, keys, values, segments, stride=stride))
            for stride in (M, None)
        ]
        np.testing.assert_allclose(got[0], got[1], atol=1e-5)
        for b, h in np.ndindex(3, K):
            rows = rows_of(segments, b, h)
            expected = oracle.softmax(q[b, h].astype(float) @ k[b, rows].astype(float).T) @ v[b, rows]
            np.testing.assert_allclose(got[0][b, h], expected, atol=1e-5)


def test_a_long_chunk_without_its_upper_triangle_is_the_whole_chunk():
    """Blocks above the diagonal are left out for speed; a block too many is the future, one too few is a hole. The
    second sequence ends inside the first block, so that its padding stands in blocks that are read without a mask."""
    T, K = 2 * attention.DIAGONAL, 1
    rng = np.random.default_rng(5)
    q = rng.normal(size=(2, K, G * T, H)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, K, T, H)).astype(np.float32)
    pos = np.stack([np.arange(T), np.where(np.arange(T) < 100, np.arange(T), -1)]).astype(np.int32)
    mask = attention.tail_mask(jnp.asarray(pos), jnp.asarray(pos), G)
    live = jnp.asarray(pos >= 0)
    whole = attention.finish(attention.tail_attention(q, k, v, mask, live))
    short = attention.finish(attention.chunk_attention(q, k, v, mask, live, G))
    real = np.tile(pos >= 0, (1, G))
    for b in range(2):
        np.testing.assert_allclose(np.asarray(short)[b, 0][real[b]], np.asarray(whole)[b, 0][real[b]], atol=1e-5)
    assert np.isfinite(np.asarray(short)).all()


def test_keys_are_rotated_by_their_index_in_the_segment(table):
    """Cache positions count a head's own rows from 0; by table row, or by block, they would not (streaming-llm#60)."""
    q, k, v, _, segments = table
    turn = lambda k, index: k * (1 + index[..., None].astype(jnp.float32))  # noqa: E731
    part = attention.table_attention(q, k, v, segments, stride=None, rotate=turn)
    rows = rows_of(segments, 0, 2)
    keys = k[0, rows].astype(float) * (1 + np.arange(230))[:, None]
    expected = oracle.softmax(q[0, 2].astype(float) @ keys.T) @ v[0, rows]
    np.testing.assert_allclose(attention.finish(part)[0, 2], expected, atol=1e-4)


def test_merging_halves_equals_the_whole(table):
    """A merge that forgets to rescale by the common maximum is right only where the maxima agree."""
    q, k, v, _, segments = table
    rows = rows_of(segments, 0, 2)
    q, k, v = 30 * q[0, 2], k[0, rows], v[0, rows]  # large logits: maxima far apart
    parts = [
        attention.update(
            attention.empty_partial(q), q, k[s], v[s], jnp.ones((1, k[s].shape[0]), bool), jnp.ones(k[s].shape[0], bool)
        )
        for s in (slice(0, 7), slice(7, None))
    ]
    merged = attention.merge(*parts)
    expected = oracle.softmax(q.astype(float) @ k.astype(float).T) @ v
    np.testing.assert_allclose(attention.finish(merged), expected, atol=1e-5)
    for empty in (
        attention.merge(attention.empty_partial(q), merged),
        attention.merge(merged, attention.empty_partial(q)),
    ):
        np.testing.assert_allclose(attention.finish(empty), expected, atol=1e-5)


def test_a_row_without_any_entry_gives_zero_and_finite_gradients():
    """A fully masked row gave NaN or a uniform average (pytorch/pytorch#103749, NVIDIA/apex#1390)."""
    assert np.isfinite(attention.MASKED)
    q, k, v = np.random.default_rng(2).normal(size=(3, 4, H)).astype(np.float32)
    dead = jnp.zeros((4, 4), bool)

    @functools.partial(jax.jit, static_argnums=3)
    def output(q, k, v, live):  # live: there, but not visible to this query
        part = attention.update(attention.empty_partial(q), q, k, v, dead, jnp.full(4, live))
        return attention.finish(attention.merge(part, attention.empty_partial(q)))

    for live in (False, True):
        np.testing.assert_array_equal(output(q, k, v, live), 0.0)
        for gradient in jax.grad(lambda *x: output(*x, live).sum(), argnums=(0, 1, 2))(q, k, v):  # noqa: B023
            np.testing.assert_array_equal(gradient, 0.0)


def test_the_tail_is_causal_and_its_empty_columns_are_not_read():
    """Query rows are folded (G, T): a mask folded (T, G) shows the future to some of them."""
    rng = np.random.default_rng(3)
    C = 6
    q = rng.normal(size=(B, K, G, T, H)).astype(np.float32)
    k, v = rng.normal(size=(2, B, K, C, H)).astype(np.float32)
    tail_pos = np.array([[3, 4, 5, 6, -1, -1], [7, 8, -1, -1, -1, -1]], np.int32)
    q_pos = np.array([[3, 4, 5, 6], [8, -1, -1, -1]], np.int32)  # the second sequence is padded
    k[tail_pos[:, None].repeat(K, 1) < 0] = NAN
    v[tail_pos[:, None].repeat(K, 1) < 0] = NAN
    mask = attention.tail_mask(jnp.asarray(q_pos), jnp.asarray(tail_pos), G)
    folded = attention.fold(jnp.asarray(q)) / np.sqrt(H).astype(np.float32)
    out = attention.finish(attention.tail_attention(folded, k, v, mask, jnp.asarray(tail_pos >= 0)))
    out = np.asarray(out).reshape(B, K, G, T, H)
    for b in range(B):
        live = tail_pos[b] >= 0
        for h in range(K):
            p = oracle.probabilities(q[b, h].astype(float), q_pos[b], k[b, h, live].astype(float), tail_pos[b, live])
            np.testing.assert_allclose(out[b, h], p @ v[b, h, live], atol=1e-6)


@pytest.mark.parametrize("groups", [1, G])
def test_columns_are_the_dense_sums(table, groups):
    """H2O once needed the whole T x S matrix; block-wise sums must be the same numbers, per group or over all, and
    only of queries that are at or after the entry."""
    q, k, _, pos, segments = table
    rows, C = G * T, 5
    rng = np.random.default_rng(4)
    q_pos = np.tile(np.array([200, 600, 900, 1001], np.int32), (B, G))
    weight = rng.uniform(size=(B, rows)).astype(np.float32)
    tail_k = rng.normal(size=(B, K, C, H)).astype(np.float32)
    tail_pos = np.tile(np.array([1000, 1001, 1002, -1, -1], np.int32), (B, 1))
    tail_k[:, :, 3:] = NAN
    mask = attention.tail_mask(jnp.asarray(q_pos[:, :T]), jnp.asarray(tail_pos), G)
    table_part = attention.table_softmax(q, jnp.asarray(q_pos), k, jnp.asarray(pos), segments)
    part = attention.merge(
        table_part, attention.tail_attention(q, tail_k, jnp.zeros_like(tail_k), mask, jnp.asarray(tail_pos >= 0))
    )
    queries = attention.Queries(q, jnp.asarray(q_pos), jnp.asarray(weight), part.maximum, part.total)
    before = np.ones((B, E, groups), np.float32)
    acc = np.asarray(attention.add_table_columns(jnp.asarray(before), queries, k, jnp.asarray(pos), segments))
    tail = np.asarray(attention.tail_columns(queries, tail_k, jnp.asarray(tail_pos), groups))
    owned = np.zeros((B, E), bool)
    for b in range(B):
        for h in range(K):
            at = rows_of(segments, b, h)
            owned[b, at] = True
            keys = np.concatenate([k[b, at], tail_k[b, h, :3]]).astype(float)
            k_pos = np.concatenate([pos[b, at], tail_pos[b, :3]])
            p = oracle.probabilities(q[b, h].astype(float) * np.sqrt(H), q_pos[b], keys, k_pos) * weight[b][:, None]
            dense = p.reshape(groups, -1, len(k_pos)).sum(axis=1).T
            np.testing.assert_allclose(np.concatenate([acc[b, at] - 1, tail[b, h, :3]]), dense, atol=1e-5)
    np.testing.assert_array_equal(acc[~owned], 1.0)
    np.testing.assert_array_equal(tail[:, :, 3:], 0.0)
