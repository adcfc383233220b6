"""The training step of retention gates: a frozen model, its own teacher, and gates that decide what it still sees.

    loss = kl * KL(answers) + context_kl * KL(sampled context) + ntp * cross-entropy(answers) + cap * capacity

The student is the model with `gated_attention`; only the gates have gradients.
Its keys fade with age, or are cut softly as a stream is (`cuts`). Capacity counts beta^age in both: under cuts, where
only the order of scores matters, it keeps their scale. TRIM-KV (arXiv 2512.03324) and Make Each
Token Count (arXiv 2605.09649) call these fwkl, ntp and cap; `kl = ntp = .5` is their mean (fwkl_ntp). Position labels
of KL and cross-entropy are both shifted here: hidden state t is judged by token t + 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from nexus import gates, rope
from nexus.gates import GateConfig, Gates
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.training import cuts, losses
from nexus.training.attention import Fading, gated_attention

SHARING = ("global", "per_head")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is minimised. Raises ValueError for weights below 0 or an unknown sharing."""

    sharing: str = "global"  # of the budget: one for the model, or one per head
    budget: int = 64  # M of the capacity hinge
    kl: float = 1.0
    context_kl: float = 0.5
    ntp: float = 1.0
    cap: float = 1.0
    context_positions: int = 32  # sampled per row
    answer_positions: int = 96  # per row, at most
    hinge_positions: int = 64  # sampled per step
    sinks: int = 4  # first tokens of a document that never fade
    cut_least: float = 0.0  # soft cuts in place of the age term, see `cuts`: share of a row's tokens that they leave,
    cut_most: float = 0.0  # drawn for every step between the two, on a log scale; 0 = the age term
    cut_every: int = 128  # tokens between cuts
    cut_marks: int = 16  # more of them, behind texts and before and in answers: at most so many in a row
    cut_width: float = 0.5  # of a soft cut, in units of log(-score)
    regress_age: int = 256  # of the optional first stage, see `regression`
    remat: bool = True  # layers are computed again in the backward pass; False: faster, and every activation is kept

    def __post_init__(self) -> None:
        if self.sharing not in SHARING:
            raise ValueError(f"sharing {self.sharing!r}; allowed: {', '.join(SHARING)}")
        for name in ("kl", "context_kl", "ntp", "cap"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")
        if self.sinks < 0:
            raise ValueError(f"sinks must be at least 0, got {self.sinks}")
        for name in ("budget", "context_positions", "answer_positions", "hinge_positions", "regress_age"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.cut_most and not 0 < self.cut_least <= self.cut_most <= 1:
            raise ValueError(
                f"cut_least={self.cut_least} and cut_most={self.cut_most} must be shares with "
                "0 < cut_least <= cut_most <= 1; cut_most=0 trains without cuts"
            )
        if self.cut_every < 1 or self.cut_marks < 0 or not 0 < self.cut_width < math.inf:
            raise ValueError(
                f"cut_every={self.cut_every} must be at least 1, cut_marks={self.cut_marks} at least 0 and "
                f"cut_width={self.cut_width} above 0"
            )


class Batch(NamedTuple):
    """Packed rows."""

    tokens: jax.Array  # [B,T] int32
    doc: jax.Array  # [B,T] int32, -1 for padding
    place: jax.Array  # [B,T] int32, position inside the document
    answer: jax.Array  # [B,T] bool: this token of an answer is judged
    cut: jax.Array  # [B,T] bool: a stream is cut before this token


class State(NamedTuple):
    """What a checkpoint holds."""

    step: jax.Array  # [] int32
    gates: Gates
    optimizer: Any
    rng: jax.Array  # data of a key: checkpoints hold plain arrays


def teacher_fn(cfg: ModelConfig, batch: Batch, by_layer: Any, shape: GateConfig, recipe: Recipe):
    """The teacher's attend function. Its state is None, or an array [L,B,K,T] that is filled with log_beta."""
    rotated, rates = _rotation(cfg, batch), _rates(batch, by_layer, shape, recipe)

    def attend(layer, seen, q, k, v, x):
        if seen is not None:
            seen = seen.at[layer].set(rates(layer, jax.lax.stop_gradient(x)))
        return gated_attention(*rotated(q, k), v, batch.doc, None), seen

    return attend


def student_fn(
    cfg: ModelConfig, batch: Batch, by_layer: Any, shape: GateConfig, recipe: Recipe, at: jax.Array, tau: Any,
    places: Any,
):  # fmt: skip
    """The student's attend function. Its state sums up what the gates let live.

    tau [L,B,K,C], places [B,C]: see `cuts`; None for fading.
    """
    rotated, rates = _rotation(cfg, batch), _rates(batch, by_layer, shape, recipe)
    age, valid = batch.place[:, at] + 1, batch.doc[:, at] >= 0  # [B,J]

    def attend(layer, held, q, k, v, x):
        beta = rates(layer, x)
        alive = losses.occupancy(beta, batch.doc, at)  # [B,K,J]
        total, positive = losses.hinge(alive, age[:, None], recipe.budget, 1, valid[:, None])
        held = Held(held.alive + alive.sum(axis=1), held.total + total, held.positive + positive)
        added: Any = Fading(beta)
        if tau is not None:
            added = cuts.cuts(beta, tau[layer], batch.doc, places, recipe.cut_width)
        return gated_attention(*rotated(q, k), v, batch.doc, added), held

    return attend


def _rotation(cfg: ModelConfig, batch: Batch) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    freq = jnp.asarray(rope.inv_freq(cfg.rope, cfg.head_dim))
    cos, sin = (x[:, None] for x in rope.cos_sin(batch.place, freq))  # [B,1,T,H/2]
    return lambda q, k: (rope.rotate(q, cos[:, :, None], sin[:, :, None]), rope.rotate(k, cos, sin))


def _rates(
    batch: Batch, by_layer: Any, shape: GateConfig, recipe: Recipe
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(layer, x [B,T,D]) -> log_beta [B,K,T], 0 for sinks."""
    sink = (batch.place < recipe.sinks)[:, None]

    def rates(layer: jax.Array, x: jax.Array) -> jax.Array:
        here = jax.tree.map(lambda w: w[layer], by_layer)
        return jnp.where(sink, 0.0, gates.log_beta(shape, here, x))

    return rates


class Held(NamedTuple):
    """Sums over layers and heads of what is alive at the sampled positions."""

    alive: jax.Array  # [B,J] expected entries
    total: jax.Array  # [] sum of the hinges of single heads
    positive: jax.Array  # [] number of positive ones


def loss_fn(
    cfg: ModelConfig, shape: GateConfig, recipe: Recipe, params: Any, batch: Batch, rng: jax.Array, trained: Gates
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of a batch and its parts; gradients reach `trained` alone."""
    B, T = batch.tokens.shape
    for_hinge, for_context, for_cut = jax.random.split(rng, 3)
    at = jax.random.choice(for_hinge, T, (recipe.hinge_positions,), replace=False)
    run = functools.partial(transformer.forward, cfg, params, batch.tokens, remat=recipe.remat)
    layers = gates.by_layer(trained, cfg.num_layers)
    rates = jnp.zeros((cfg.num_layers, B, cfg.num_kv_heads, T), jnp.float32) if recipe.cut_most else None
    teacher, rates = run(teacher_fn(cfg, batch, layers, shape, recipe), rates)
    share = cut_share(recipe, for_cut)
    tau = places = None
    if rates is not None:
        places = cuts.places(batch.cut, recipe.cut_every, recipe.cut_marks)
        tau = cuts.thresholds(rates, batch.doc, places, share * T, recipe.cut_width, recipe.sharing)
    zero = jnp.zeros((), jnp.float32)
    start = Held(jnp.zeros((B, at.shape[0]), jnp.float32), zero, jnp.zeros((), jnp.int32))
    student, held = run(student_fn(cfg, batch, layers, shape, recipe, at, tau, places), start)

    where, is_answer, is_context = positions(batch, recipe, for_context)
    pick = lambda x: jnp.take_along_axis(x, where[..., None], axis=1).reshape(-1, cfg.dim)  # noqa: E731
    target = jnp.take_along_axis(batch.tokens, where + 1, axis=1).reshape(-1)
    kl, ce, teacher_ce = losses.divergence(cfg, params, jax.lax.stop_gradient(pick(teacher)), pick(student), target)
    answer, context = is_answer.reshape(-1).astype(jnp.float32), is_context.reshape(-1).astype(jnp.float32)
    heads = cfg.num_layers * cfg.num_kv_heads
    age, valid = batch.place[:, at] + 1, batch.doc[:, at] >= 0
    if recipe.sharing == "global":
        cap = losses.capacity(*losses.hinge(held.alive, age, recipe.budget, heads, valid))
    else:
        cap = losses.capacity(held.total, held.positive)
    parts = {
        "kl": losses.weighted_mean(kl, answer),
        "context_kl": losses.weighted_mean(kl, context),
        "ntp": losses.weighted_mean(ce, answer),
        "cap": cap,
    }
    loss = sum(getattr(recipe, name) * part for name, part in parts.items())
    seen = {
        "teacher_ntp": losses.weighted_mean(teacher_ce, answer),
        "alive": jnp.where(valid, held.alive, 0).sum() / heads / jnp.maximum(valid.sum(), 1),
        "answers": answer.sum(),
        "cut_share": share,
    }
    return loss, {"loss": loss, **parts, **seen}


def cut_share(recipe: Recipe, rng: jax.Array) -> jax.Array:
    """[] the share of a row that the cuts of this step leave, between `cut_least` and `cut_most`; 1 without cuts."""
    if not recipe.cut_most:
        return jnp.ones(())
    low, high = math.log(recipe.cut_least), math.log(recipe.cut_most)
    return jnp.exp(jax.random.uniform(rng, (), minval=low, maxval=high))


def positions(batch: Batch, recipe: Recipe, rng: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Positions [B,J] whose next token is judged, and which of them are answers, and which sampled context.

    Every answer up to `answer_positions` per row (beyond that, a random choice), then random other tokens.
    """
    follows = (batch.doc[:, 1:] >= 0) & (batch.doc[:, 1:] == batch.doc[:, :-1])
    answer = batch.answer[:, 1:] & follows
    draw = jax.random.uniform(rng, answer.shape)
    A = min(recipe.answer_positions, answer.shape[1])
    C = min(recipe.context_positions, answer.shape[1])
    value, first = jax.lax.top_k(jnp.where(answer, 1.0 + draw, 0.0), A)
    other, second = jax.lax.top_k(jnp.where(follows & ~answer, 1.0 + draw, 0.0), C)
    where = jnp.concatenate([first, second], axis=1)
    nothing = jnp.zeros_like
    is_answer = jnp.concatenate([value > 0, nothing(other, bool)], axis=1)
    is_context = jnp.concatenate([nothing(value, bool), other > 0], axis=1)
    return where, is_answer, is_context


def make_step(
    cfg: ModelConfig, shape: GateConfig, recipe: Recipe, optimizer: optax.GradientTransformation
) -> Callable[[Any, State, Batch], tuple[State, dict[str, jax.Array]]]:
    """(params, state, batch) -> (state, numbers): one optimiser step on the gates. Pure, not compiled yet."""

    def step(params: Any, state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        fn = functools.partial(loss_fn, cfg, shape, recipe, params, batch, rng)
        return moved(optimizer, state, fn)

    return step


def moved(
    optimizer: optax.GradientTransformation, state: State, loss: Callable[[Gates], tuple[jax.Array, Any]]
) -> tuple[State, dict[str, jax.Array]]:
    """The state after a step down the gradient of loss(gates) -> (loss, numbers), and the numbers with its norm."""
    grads, numbers = jax.grad(loss, has_aux=True)(state.gates)
    updates, optimizer_state = optimizer.update(grads, state.optimizer, state.gates)
    trained: Any = optax.apply_updates(state.gates, updates)
    numbers["grad_norm"] = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(grads)))
    return State(state.step + 1, trained, optimizer_state, state.rng), numbers
