"""Samplers: what is ranked, and how likely the reservoir draws what."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import samplers
from nexus.samplers import SAMPLERS, Reservoir, Top
from nexus.scorers import AccumulatedAttention, BlockWalk, KeyNorm, WindowAttention
from tests import tiny
from tests.scorers.views import K, L, by_head, filled

WEIGHTS = np.array([0.02, 0.05, 0.08, 0.15, 0.3, 0.4])


def test_top_ranks_the_score_itself():
    """A sampler that changes scores would change every method of the table."""
    score = jnp.asarray([[[3.0, -1.0, jnp.inf]]])
    np.testing.assert_array_equal(Top().key(None, score, jax.random.split(jax.random.key(0), 1)), score)
    assert SAMPLERS["top"] is Top and SAMPLERS["reservoir"] is Reservoir


# --- the draws ---------------------------------------------------------------------------------------------------


@jax.jit
def log_e(seeds: jax.Array) -> jax.Array:
    """[N,6,3]: 3 draws for each of 6 entries, for N evictions."""
    rng = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), seeds)
    shape = (len(seeds), 1, len(WEIGHTS))
    block = jnp.broadcast_to(jnp.arange(shape[2]), shape)
    return samplers.log_exponential(rng, jnp.zeros(shape, jnp.int32), block, 3)[:, 0]


N = 20000
DRAWN = log_e(jnp.arange(N))


def survivors(w: np.ndarray, keep: int, draws: int = 1) -> np.ndarray:
    """[N,6] bool: who is among the `keep` largest keys, in each of N evictions."""
    key = np.asarray(samplers.reservoir_key(jnp.log(jnp.asarray(w, jnp.float32)), DRAWN[..., :draws]))
    rank = (-key).argsort(axis=1).argsort(axis=1)
    return rank < keep


def test_one_free_slot_is_won_in_proportion_to_the_weight():
    """Conformance 3: chi-square over 20000 draws; 20.5 is exceeded once in 1000 by chance at 5 degrees of freedom."""
    got = survivors(WEIGHTS, 1).sum(axis=0)
    expected = N * WEIGHTS / WEIGHTS.sum()
    assert ((got - expected) ** 2 / expected).sum() < 20.5
    with pytest.raises(AssertionError):  # the test can fail: a weight that is a tenth off
        wrong = N * (WEIGHTS * [1, 1, 1, 1, 1.1, 1]) / (WEIGHTS * [1, 1, 1, 1, 1.1, 1]).sum()
        assert ((got - wrong) ** 2 / wrong).sum() < 20.5


@pytest.mark.parametrize("draws", [1, 3])
def test_the_heavier_the_likelier_and_nobody_never(draws):
    """Conformance 4. Not in proportion: with more than one slot it saturates."""
    share = survivors(WEIGHTS, 3, draws).mean(axis=0)
    assert (np.diff(share) > 0).all() and share[0] > 0.01 and share.sum() == pytest.approx(3)


def test_more_weight_for_the_power():
    """power 2 draws as the squared weights do."""
    entries, _ = filled(1)
    rng = jax.random.split(jax.random.key(0), 2)
    mass = dataclasses.replace(entries, scale="mass")
    score = 1.1 + jnp.sin(jnp.arange(entries.pos.size, dtype=jnp.float32)).reshape(entries.pos.shape)
    one, other = Reservoir(power=2.0).key(mass, score, rng), Reservoir().key(mass, score**2, rng)
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("draws", [1, 3])
def test_keys_are_in_the_order_of_the_definition(draws):
    """Conformance 5: mean_i u_i^(1/w) in float64, for weights of all sizes at which that can be told apart."""
    e = np.exp(np.asarray(DRAWN[:, :, :draws], np.float64))
    for w in (WEIGHTS, np.full(6, 0.003), np.array([1e-3, 1.0, 30.0, 0.2, 5.0, 0.01])):
        exact = np.logaddexp.reduce(-e / w[:, None], axis=-1)
        key = np.asarray(samplers.reservoir_key(jnp.log(jnp.asarray(w, jnp.float32)), DRAWN[..., :draws]))
        assert np.isfinite(key).all()
        i, j = np.triu_indices(6, 1)
        apart, told = exact[:, i] - exact[:, j], key[:, i] - key[:, j]
        clear = np.abs(apart) > 1e-4 * np.abs(exact[:, i])
        assert clear.mean() > 0.8
        np.testing.assert_array_equal(np.sign(apart[clear]), np.sign(told[clear]))


def test_small_weights_do_not_underflow():
    """u^(1/w) is 0 for most entries of a softmax over thousands: they tied, and the newest won every time."""
    e = np.exp(np.asarray(DRAWN[:, :, 0]))
    w = np.float32(1e-3) * WEIGHTS.astype(np.float32)
    assert (np.exp(-e / w) == 0).mean() > 0.9  # float32
    for draws in (1, 3):
        key = np.asarray(samplers.reservoir_key(jnp.log(jnp.asarray(w)), DRAWN[..., :draws]))
        assert np.isfinite(key).all() and all(len(set(row)) == 6 for row in key.tolist())
    got = survivors(w, 1).sum(axis=0)
    expected = N * WEIGHTS / WEIGHTS.sum()
    assert ((got - expected) ** 2 / expected).sum() < 20.5


def test_one_draw_knows_only_ratios_of_weights():
    """Conformance 6: ten times the weights, the same choice; with more draws it may be another."""
    np.testing.assert_array_equal(survivors(WEIGHTS, 3), survivors(10 * WEIGHTS, 3))
    assert (survivors(WEIGHTS, 3, 3) != survivors(10 * WEIGHTS, 3, 3)).any()


def test_many_draws_are_the_ranking():
    """`top` is the limit: E[u^(1/w)] = w / (1 + w) rises with w."""
    rng = jax.random.split(jax.random.key(0), 1)
    block = jnp.arange(6)[None, None]
    drawn = samplers.log_exponential(rng, jnp.zeros_like(block), block, 20000)
    key = samplers.reservoir_key(jnp.log(jnp.asarray(WEIGHTS, jnp.float32)), drawn)[0, 0]
    np.testing.assert_array_equal(np.argsort(key), np.arange(6))


# --- who shares a draw -------------------------------------------------------------------------------------------


def draws_of(sampler: Reservoir, pools: int, rng=None, flip: bool = False, **changes) -> dict:
    """(sequence, owner, position) -> key, all weights equal."""
    entries, _ = filled(pools)
    entries = dataclasses.replace(entries, scale="log", **changes)
    rng = jax.random.split(jax.random.key(3), 2) if rng is None else rng
    key = sampler.key(entries, jnp.zeros(entries.pos.shape), rng)
    pos = by_head(entries, entries.pos)
    return {
        (b, o, int(p)): float(x) for (b, o), keys in by_head(entries, key).items()
        for p, x in zip(pos[b, o], keys, strict=True)
    }  # fmt: skip


def test_a_draw_depends_on_neither_slot_nor_pool_nor_batch_row():
    """The same entry among other candidates draws the same: pools of all sizes list it at other places, and the
    exchanged sequences of a batch with exchanged keys."""
    one = draws_of(Reservoir(), 1)
    for pools in (L, L * K):
        assert draws_of(Reservoir(), pools) == one
    rng = jax.random.split(jax.random.key(3), 2)
    swapped = draws_of(Reservoir(), 1, rng=rng[::-1])
    both = {(o, p) for b, o, p in one if b == 0} & {(o, p) for b, o, p in one if b == 1}
    assert both
    for o, p in both:
        assert swapped[1, o, p] == one[0, o, p] and swapped[0, o, p] == one[1, o, p] != one[0, o, p]
    values = list(one.values())
    assert len(set(values)) == len(values)


def test_blocks_and_heads_that_share():
    """Entries of one block draw one number; all heads of a layer, or each head by itself, but never two layers."""
    for share in (False, True):
        got = draws_of(Reservoir(block=3, share_heads=share), 1)
        groups: dict = {}
        for (b, o, p), x in got.items():
            groups.setdefault((b, o // K if share else o, p // 3), set()).add(x)
        assert all(len(group) == 1 for group in groups.values())
        assert len(set().union(*groups.values())) == len(groups) < len(got)


def test_the_scorer_says_what_a_block_is():
    """block = 0 takes the scorer's unit: positions that it scores together are drawn together."""
    assert draws_of(Reservoir(), 1, unit=3) == draws_of(Reservoir(block=3), 1)
    assert draws_of(Reservoir(), 1, unit=1) == draws_of(Reservoir(block=1), 1)


# --- what a score says about weights -----------------------------------------------------------------------------


def log_weights(scale: str, score) -> tuple[np.ndarray, np.ndarray]:
    """Log weights [B,P,n] of a score, and which entries are live."""
    entries, _ = filled(1)
    score = jnp.broadcast_to(jnp.asarray(score, jnp.float32), entries.pos.shape)
    got = samplers.log_weight(dataclasses.replace(entries, scale=scale), score)
    return np.asarray(got), np.asarray(entries.valid)


def test_mass_is_a_weight_and_log_is_its_logarithm():
    score = np.linspace(0.1, 2, filled(1)[0].pos.shape[-1])
    np.testing.assert_allclose(log_weights("mass", score)[0][0, 0], np.log(score), rtol=1e-5)
    np.testing.assert_allclose(log_weights("log", -score)[0][0, 0], -score, rtol=1e-6)


def test_without_mass_an_entry_comes_last_and_is_still_drawn():
    """log(0) = -inf for several entries would tie them, and a NaN would win."""
    n = filled(1)[0].pos.shape[-1]
    score = np.where(np.arange(n) % 2, 0.0, 1e-20)
    score[1] = -3.0
    entries = dataclasses.replace(filled(1)[0], scale="mass")
    rng = jax.random.split(jax.random.key(0), 2)
    key = np.asarray(Reservoir().key(entries, jnp.broadcast_to(score, entries.pos.shape), rng))
    live = np.asarray(entries.valid)
    has = np.broadcast_to(score > 0, live.shape)
    for b in range(2):
        none = key[b][live[b] & ~has[b]]
        assert np.isfinite(none).all() and len(set(none.tolist())) == len(none)
        assert none.max() < key[b][live[b] & has[b]].min()
    nan = log_weights("mass", np.full(n, np.nan))[0]
    np.testing.assert_allclose(nan, np.log(samplers.LEAST))


def test_ranks_are_standardised_in_their_pool():
    """Only differences mean something: a shift or a scale of a score changes nothing, and one that is equal everywhere
    draws uniformly. What is not finite keeps its place at the end."""
    rng = np.random.default_rng(0)
    score = rng.normal(size=filled(1)[0].pos.shape)
    got, live = log_weights("rank", score)
    for b in range(2):
        x = score[b][live[b]]
        np.testing.assert_allclose(got[b][live[b]], (x - x.mean()) / x.std(), atol=1e-5)
    np.testing.assert_allclose(log_weights("rank", 7 * score - 100)[0][live], got[live], atol=1e-4)
    np.testing.assert_array_equal(log_weights("rank", np.full(score.shape, 3.0))[0][live], 0)
    score[:, :, :2] = [np.inf, -np.inf]
    mixed, _ = log_weights("rank", score)
    assert mixed[0, 0, 0] == np.inf and mixed[0, 0, 1] == -np.inf and np.isfinite(mixed[0, 0, 2:][live[0, 0, 2:]]).all()


def test_scorers_say_what_their_scores_are():
    """Attention is a mass; whoever says nothing gives ranks."""
    for scorer in (WindowAttention(), AccumulatedAttention(), BlockWalk()):
        assert scorer.scale == "mass"
    assert KeyNorm().scale == "rank"
    with pytest.raises(ValueError, match="scale 'odds' of a scorer; allowed: mass, log, rank"):
        log_weights("odds", 0.0)


# --- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_is_replayed_from_its_key_and_another_key_is_another_run():
    """Conformance 9: the draw comes from the buffer's key and counts the evictions."""
    method = tiny.build("h2o", sampler="reservoir", recent=2)
    texts = tiny.prompts(50, 21, 33)

    def run(seed: int):
        s = tiny.session(method, rng=jax.random.key(seed))
        s.feed(texts)
        return [pos.tolist() for row in s.kept() for layer in row for pos in layer]

    one = run(1)
    assert run(1) == one != run(2)


def test_another_eviction_draws_other_numbers():
    """A number that stayed with its entry would make the first draw final: top-k with noise."""
    s = tiny.session(tiny.build("knorm", sampler="reservoir"))
    s.feed(tiny.prompts(20, 20, 20))
    rng = [jax.vmap(jax.random.fold_in)(s.buffer.rng, s.buffer.events + i) for i in (0, 1)]
    block = jnp.zeros((tiny.BATCH, 1, 1), jnp.int32)
    first, second = (samplers.log_exponential(r, block, block, 1) for r in rng)
    assert (np.asarray(first) != np.asarray(second)).all()
    np.testing.assert_array_equal(s.buffer.events, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be an integer of at least 1, got 0"),
        ({"draws": 2.0}, "draws must be an integer of at least 1, got 2.0"),
        ({"block": -1}, "block must be an integer of at least 0, got -1"),
        ({"power": 0.0}, "power must be above 0 and finite, got 0.0"),
        ({"power": float("inf")}, "power must be above 0 and finite, got inf"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Reservoir(**options)


def test_one_set_in_all_heads_cannot_be_drawn_head_by_head():
    """TOVA's heads would hold different tokens under one score that is a mean over them."""
    tiny.session(tiny.build("tova", sampler="reservoir", share_heads=True))
    with pytest.raises(ValueError, match="keeps one set of tokens in all heads.*share_heads"):
        tiny.session(tiny.build("tova", sampler="reservoir"))
