"""One cut: what is protected, how many stay, and that they are who they were."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import evict, methods
from nexus.compensators import Nothing
from nexus.methods import Method
from nexus.samplers import Top
from nexus.scorers import Entries, Recency, Scorer
from nexus.shapes import Layout
from tests import tiny

L, K, M, C = 2, 2, 8, 6
ALLOCATORS = ("per_head", "per_layer", "global")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant(Scorer):
    """Every entry is worth the same."""

    value: float = 0.0
    dtype: str = "float32"

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return jnp.full(entries.pos.shape, self.value, self.dtype)


class FirstHead(Scorer):
    """The first head of the model is worth everything: what a scorer of one's own looks like."""

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return jnp.where(entries.cand.owner == 0, 1000.0, 0.0) + entries.pos


class Staged(Scorer):
    """The newest are worth most, but odd positions were chosen before; what is protected stands in no stage."""

    def judge(self, entries: Entries, state: Any, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        return entries.pos.astype(jnp.float32), entries.free & (entries.pos % 2 == 1) & (entries.pos < 6)


def build(allocator: str, scorer: Scorer, **protection: int) -> Method:
    return Method(
        name="test", budget=M, scorer=scorer, sampler=Top(),
        allocator=methods.ALLOCATORS[allocator](), compensator=Nothing(),
        **protection,
    )  # fmt: skip


def filled(method: Method, tail: list[int], aux: tuple[str, ...] = (), dtype: str = "float32"):
    pools = method.allocator.pools(L, K)
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=2, head_dim=4, budget=M, tail=C, pools=pools, dtype=dtype)
    return tiny.filled(layout, np.full((len(tail), L, K), M), tail, dead=float("nan"), aux=aux)


def cut(method: Method, buf):
    return jax.jit(lambda b: evict.evict(method, {"method": {}}, b))(buf)


def positions(buf, b: int) -> list[list[int]]:
    return [[e.pos for e in tiny.held(buf, b, layer, head)] for layer in range(L) for head in range(K)]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize(
    "scorer", [Constant(), Constant(value=300.0, dtype="bfloat16"), Constant(value=float("inf"))], ids=str
)
def test_the_protected_survive_equal_scores(allocator, scorer):
    """Ties once evicted the whole protected window (NVIDIA/kvpress#226); bfloat16 absorbs `max + 1` above 256."""
    method = build(allocator, scorer, num_sinks=3, recent=4)
    buf, lists = filled(method, [C, 2])
    out = cut(method, buf)
    for b in range(2):
        seen = int(buf.seen[b])
        for o, got in enumerate(positions(out, b)):
            had = [e.pos for e in lists[b][o // K][o % K]]
            must = [p for p in had if p < 3 or p >= seen - 4]
            assert set(must) <= set(got), f"{b=} {o=}"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_counts_are_exact_and_entries_are_who_they_were(allocator):
    """The resolved total is budget x layers x heads, not one less by rounding (Zefan-Cai/KVCache-Factory#36); every
    kept (position, key, value, number) existed before the cut, in increasing order."""
    method = build(allocator, Recency(), num_sinks=2)
    buf, lists = filled(method, [C, 1], aux=("x",))
    out = cut(method, buf)
    counts = np.asarray(out.count)
    per_pool = counts.reshape(2, method.allocator.pools(L, K), -1).sum(axis=-1)
    np.testing.assert_array_equal(per_pool, M * L * K // method.allocator.pools(L, K))
    for b, o in np.ndindex(2, L * K):
        got, had = tiny.held(out, b, o // K, o % K, "x"), {e.pos: e for e in lists[b][o // K][o % K]}
        tiny.assert_entries(got, [had[e.pos] for e in got])
        assert np.all(np.diff([e.pos for e in got]) > 0)


@pytest.mark.parametrize("least", [0, 1, 3])
def test_min_per_head_is_kept_in_every_head(least):
    """Per-head minima are real entries of the table, not fake keys (NVIDIA/kvpress#7): the best of each head."""
    method = build("global", FirstHead(), min_per_head=least)
    buf, lists = filled(method, [C])
    got = positions(cut(method, buf), 0)
    everything = [e.pos for e in lists[0][0][0]]
    assert got[0] == everything, "the preferred head keeps all it has"
    room = M * L * K - len(everything)
    rest = sorted(((e.pos, -o) for o in range(1, L * K) for e in lists[0][o // K][o % K]), reverse=True)
    sure = {
        (p, -o) for o in range(1, L * K) for p in sorted((e.pos for e in lists[0][o // K][o % K]), reverse=True)[:least]
    }
    expected = sure | set([x for x in rest if x not in sure][: room - len(sure)])
    for o in range(1, L * K):
        assert got[o] == sorted(p for p, owner in expected if owner == -o)
        assert len(got[o]) >= least


def test_min_per_head_against_a_head_that_wins_everything():
    """With 0 a head may end up empty, with 1 it may not; the total is the same."""
    counts = {}
    for least in (0, 1):
        method = build("global", FirstHead(), min_per_head=least)
        buf, _ = tiny.filled(
            Layout(num_layers=L, num_kv_heads=K, num_groups=2, head_dim=4, budget=M, tail=C, pools=1),
            np.array([[[M * L * K - 6, 2], [2, 2]]]), [C],
        )  # fmt: skip
        counts[least] = np.asarray(cut(method, buf).count).reshape(-1)
    np.testing.assert_array_equal(counts[0], [32, 0, 0, 0])
    np.testing.assert_array_equal(counts[1], [29, 1, 1, 1])


class Blocks(Recency):
    """Positions stand or fall in blocks of 4, and a column counts the evictions an entry has survived."""

    aux = ("survived",)

    def unit(self, budget: int) -> int:
        return 4

    def remember(self, entries: Entries, state):
        return {"survived": entries.aux("survived") + 1}

    def score(self, entries: Entries, state, rng: jax.Array) -> jax.Array:
        return entries.aux("survived")


def test_protection_is_rounded_to_whole_blocks():
    """Half of a sink block, or of the block before the current one, would be left to the score."""
    method = build("per_head", Blocks(), num_sinks=1, recent=2)
    buf, _ = filled(method, [C, 0])
    cand = evict.kv.candidates(buf)
    mask = np.asarray(evict.protected(method, cand, jnp.zeros(cand.pos.shape), buf.seen))
    pos, seen = np.asarray(cand.pos), np.asarray(buf.seen)[:, None, None]
    np.testing.assert_array_equal(mask, (pos >= 0) & ((pos < 4) | (pos >= (seen - 2) // 4 * 4)))
    none = build("per_head", Blocks(), num_sinks=0, recent=0)
    assert not np.asarray(evict.protected(none, cand, jnp.zeros(cand.pos.shape), buf.seen)).any()


def test_what_a_scorer_remembers_is_what_it_scores_and_moves_with_the_entry():
    """A column that changes at an eviction: read before it is stored, and stored with the entries that are kept."""
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=2, head_dim=4, budget=M, tail=C, pools=L * K)
    buf, lists = tiny.filled(layout, np.full((2, L, K), M), [C, 3], aux=("survived",))
    after = cut(build("per_head", Blocks()), buf)
    for b in range(2):
        for o in range(L * K):
            had = {e.pos: e.aux for e in lists[b][o // K][o % K]}
            held = tiny.held(after, b, o // K, o % K, aux="survived")
            best = sorted(had, key=lambda p: (-np.float32(had[p] + 1), -p))[:M]
            assert sorted(best) == [e.pos for e in held]
            np.testing.assert_allclose([e.aux for e in held], [had[e.pos] + 1 for e in held], rtol=1e-6)


def test_sinks_and_recent_are_counted_in_true_positions():
    """`recent` is seen from the newest token, `sinks` from the first real one, and an empty slot is neither."""
    method = build("per_head", Constant(), num_sinks=2, recent=3)
    buf, _ = filled(method, [C, 0])
    cand = evict.kv.candidates(buf)
    mask = np.asarray(evict.protected(method, cand, jnp.zeros(cand.pos.shape), buf.seen))
    pos, seen = np.asarray(cand.pos), np.asarray(buf.seen)[:, None, None]
    np.testing.assert_array_equal(mask, (pos >= 0) & ((pos < 2) | (pos >= seen - 3)))
    young = np.asarray(evict.protected(method, cand, jnp.zeros(cand.pos.shape), jnp.asarray([1, 1])))
    assert not young[pos == -1].any(), "fewer tokens than the window: empty slots are not recent"


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_what_a_stage_has_chosen_is_kept_whatever_it_scores(allocator):
    """A first stage that is written into the score as the largest float is lost in whatever multiplies or draws it."""
    method = build(allocator, Staged(), num_sinks=2, recent=1)
    buf, lists = filled(method, [C])
    for o, got in enumerate(positions(cut(method, buf), 0)):
        had = [e.pos for e in lists[0][o // K][o % K]]
        chosen = {p for p in had if p < 2 or p in (3, 5)}
        assert chosen <= set(got)
        if allocator == "per_head":
            assert got == sorted(chosen | set([p for p in had[::-1] if p not in chosen][: M - len(chosen)]))


def test_the_full_cache_evicts_nothing():
    """The full cache goes through the same door and keeps all."""
    method = methods.build("full", budget=M)
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=2, head_dim=4, budget=M + C, tail=C, pools=L * K)
    buf, lists = tiny.filled(layout, np.full((2, L, K), M), [C, 2])
    out = cut(method, buf)
    for b, o in np.ndindex(2, L * K):
        tiny.assert_entries(tiny.held(out, b, o // K, o % K), lists[b][o // K][o % K])
