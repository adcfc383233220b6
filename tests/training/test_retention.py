"""The training step: what it judges, what it moves, and that it learns."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nexus import gates
from nexus.gates import GateConfig
from nexus.models import transformer
from nexus.training import retention
from nexus.training.retention import Batch, Recipe, State
from tests import tiny
from tests.training import dense

CFG, SHAPE = tiny.CFG, GateConfig(width=8, bias=1.0)
RECIPE = Recipe(budget=4, context_positions=6, answer_positions=8, hinge_positions=24, sinks=2)
T = 24


def batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    doc = np.array([[0] * 13 + [1] * 9 + [-1] * 2, [0] * T])
    place = np.array([[*range(13), *range(9), 0, 0], [*range(T)]])
    answer = np.zeros((2, T), bool)
    answer[0, [11, 12, 20, 21]] = answer[1, 20:] = True
    cut = np.zeros((2, T), bool)
    cut[0, [9, 11, 20]] = cut[1, 20] = True
    tokens = rng.integers(0, CFG.vocab_size, (2, T)).astype(np.int32)
    return Batch(*map(jnp.asarray, (tokens, doc, place, answer, cut)))


def loss(recipe: Recipe, trained, shape: GateConfig = SHAPE, cfg=CFG):
    fn = functools.partial(retention.loss_fn, cfg, shape, recipe, tiny.model(cfg).params, batch(), jax.random.key(3))
    return fn(trained)


def fresh(shape: GateConfig = SHAPE):
    return gates.init(CFG, shape, jax.random.key(0))


def test_what_is_judged():
    """The position before each answer token, inside its document; then others at random, none twice."""
    where, is_answer, is_context = retention.positions(batch(), RECIPE, jax.random.key(0))
    for b, expected in enumerate([{10, 11, 19, 20}, {19, 20, 21, 22}]):
        assert set(np.asarray(where[b])[np.asarray(is_answer[b])].tolist()) == expected
        others = np.asarray(where[b])[np.asarray(is_context[b])].tolist()
        assert len(set(others)) == len(others) == 6 and not expected & set(others)
        assert not {12, 21, 22, 23} & set(others) if b == 0 else True  # nothing across documents or into padding


def test_keeping_activations_changes_nothing():
    """remat=False is a choice of memory against time."""
    kept, again = (loss(dataclasses.replace(RECIPE, remat=remat), fresh()) for remat in (False, True))
    np.testing.assert_allclose(kept[0], again[0], rtol=1e-6)


def test_the_teacher_says_what_the_streaming_path_says():
    """Log-probabilities of rollout and training drifted apart (awslabs/keys_values#140): the plain forward of training
    and the full cache, fed in chunks, judge every token alike."""
    text = tiny.prompt(T)
    tokens, place = jnp.asarray([text], jnp.int32), jnp.arange(T)[None]
    plain = Batch(tokens, jnp.zeros_like(tokens), place, jnp.zeros((1, T), bool), jnp.zeros((1, T), bool))
    attend = retention.teacher_fn(CFG, plain, gates.by_layer(fresh(), CFG.num_layers), SHAPE, RECIPE)
    hidden, _ = transformer.forward(CFG, tiny.model().params, tokens, attend, None)
    log_p = jax.nn.log_softmax(transformer.logits(CFG, tiny.model().params, hidden[0, :-1]))
    want = np.take_along_axis(np.asarray(log_p), np.asarray(text[1:])[:, None], axis=1)[:, 0]
    got = tiny.session(tiny.build("full"), batch=1).score([text])[0][1:]
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_rates_of_one_give_no_divergence():
    """Without fading the student is its own teacher."""
    still = jax.tree.map(jnp.zeros_like, fresh())
    still["final"]["c"] += 60.0
    _, numbers = loss(RECIPE, still)
    assert float(numbers["kl"]) < 1e-6 and float(numbers["context_kl"]) < 1e-6
    np.testing.assert_allclose(numbers["ntp"], numbers["teacher_ntp"], rtol=1e-6)


@pytest.mark.parametrize("sharing", retention.SHARING)
def test_cuts_that_leave_everything_change_nothing(sharing):
    """A budget of the whole row: the student is the teacher."""
    recipe = dataclasses.replace(RECIPE, sharing=sharing, cut_least=1.0, cut_most=1.0, cut_every=8)
    _, numbers = loss(recipe, fresh())
    assert float(numbers["kl"]) < 1e-6 and float(numbers["context_kl"]) < 1e-6


def test_gates_learn_from_cuts():
    """Every layer's gate has a gradient, and forty steps on one batch bring the student nearer to the teacher."""
    recipe = dataclasses.replace(RECIPE, cut_least=0.2, cut_most=0.2, cut_every=6, cap=0.0, ntp=0.0)
    grads = jax.grad(lambda g: loss(recipe, g)[0])(fresh())
    assert (np.abs(np.asarray(grads["layer"]["w1"])).max(axis=(1, 2)) > 0).all()
    optimizer = optax.adam(3e-2)
    step = jax.jit(retention.make_step(CFG, SHAPE, recipe, optimizer))
    state = State(jnp.int32(0), fresh(), optimizer.init(fresh()), jax.random.key_data(jax.random.key(0)))
    kl = []
    for _ in range(40):
        state, numbers = step(tiny.model().params, state, batch())
        kl.append(float(numbers["kl"]))
    assert np.mean(kl[-5:]) < 0.8 * np.mean(kl[:5])


@pytest.mark.parametrize("sharing", retention.SHARING)
def test_capacity_counts_all_layers_and_heads(sharing):
    """Equal rates everywhere: the hinge from its equation, with sinks that never fade."""
    even = jax.tree.map(jnp.zeros_like, fresh())
    even["final"]["c"] += 2.0
    _, numbers = loss(dataclasses.replace(RECIPE, sharing=sharing), even)
    doc, place = np.asarray(batch().doc), np.asarray(batch().place)
    rate = np.where(place < 2, 0.0, -np.log1p(np.exp(-2.0)))[:, None]
    alive = dense.occupancy(rate, doc)[:, 0]
    heads = CFG.num_layers * CFG.num_kv_heads if sharing == "global" else 1
    np.testing.assert_allclose(numbers["cap"], dense.capacity(alive * heads, place, doc, 4.0, heads), rtol=1e-4)
    np.testing.assert_allclose(numbers["alive"], alive[doc >= 0].mean(), rtol=1e-4)


def test_gradients_reach_every_gate_and_nothing_else():
    """The model is frozen: the step returns gates alone; every layer's gate and the tied projection move."""
    shape = GateConfig(kind="three_layer", width=8, tied=True, bias=1.0)
    start = fresh(shape)
    grads = jax.grad(lambda g: loss(RECIPE, g, shape)[0])(start)
    assert jax.tree.structure(grads) == jax.tree.structure(start)
    for name in ("w1", "w2"):
        assert (np.abs(np.asarray(grads["layer"][name])).max(axis=(1, 2)) > 0).all()
    assert (np.asarray(grads["final"]["w"]) != 0).all() and (np.asarray(grads["final"]["c"]) != 0).all()


def test_the_gradient_is_that_of_the_loss():
    """Finite differences, through both passes, the recomputed layers, the tiles and the vocabulary blocks."""
    start = fresh()
    grads = jax.grad(lambda g: loss(RECIPE, g)[0])(start)
    for part, name, index in [("final", "c", (0, 1)), ("layer", "b1", (1, 3)), ("final", "w", (1, 4, 0))]:

        def moved(by, part=part, name=name, index=index):
            changed = start[part] | {name: start[part][name].at[index].add(by)}
            return float(loss(RECIPE, start | {part: changed})[0])

        want = (moved(0.02) - moved(-0.02)) / 0.04
        np.testing.assert_allclose(float(grads[part][name][index]), want, rtol=0.05, atol=2e-4)


def test_it_learns():
    """Forty steps on one batch: below where it started, and within the capacity more than before."""
    optimizer = optax.adam(3e-2)
    step = jax.jit(retention.make_step(CFG, SHAPE, dataclasses.replace(RECIPE, context_positions=4), optimizer))
    start = fresh()
    state = State(jnp.int32(0), start, optimizer.init(start), jax.random.key_data(jax.random.key(0)))
    first = None
    for _ in range(40):
        state, numbers = step(tiny.model().params, state, batch())
        first = first or {name: float(x) for name, x in numbers.items()}
    assert float(numbers["loss"]) < 0.9 * first["loss"] and float(numbers["alive"]) < first["alive"]
    assert int(state.step) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharing": "per_model"}, "sharing 'per_model'; allowed: global, per_head"),
        ({"kl": -1.0}, "kl must be a finite number of at least 0, got -1.0"),
        ({"cap": float("nan")}, "cap must be a finite number of at least 0, got nan"),
        ({"sinks": -1}, "sinks must be at least 0, got -1"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"cut_most": 0.2}, r"cut_least=0.0 and cut_most=0.2 must be shares with 0 < cut_least <= cut_most <= 1"),
        ({"cut_least": 0.3, "cut_most": 0.2}, r"cut_least=0.3 and cut_most=0.2"),
        ({"cut_width": 0.0}, r"cut_width=0.0 above 0"),
    ],
)
def test_a_recipe_that_cannot_be(options, message):
    """Refused by name."""
    with pytest.raises(ValueError, match=message):
        Recipe(**options)
