"""Retention: a gate says when a token is written how long it will be needed; queries play no part.

TRIM-KV, arXiv 2512.03324 (one budget per head), and Make Each Token Count, arXiv 2605.09649 (one global budget).
With t tokens seen and an entry written at position i:

    lookahead 1:  score = log_beta (t + 1 - i)
    lookahead n:  score = log sum_{s = t+1 .. t+n} beta^(s - i), where t counts one more than above, as in the
                  published code: ages are then one larger, and log_beta (t + 2 - i) for n = 1

log_beta is stored with the entry in float32. Ranks change with age, so nothing is cached between evictions.
Differs from the code: the age is capped at `longest_age`, where one is given, which keeps old and precious entries
above young and indifferent ones in prompts longer than those of the training; no cap reproduces the paper.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from nexus import gates as retention_gates
from nexus.gates import LEAST
from nexus.models.config import ModelConfig
from nexus.scorers.base import Call, Entries, Scorer

COLUMN = "log_beta"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention(Scorer):
    """score = log of the retention an entry has left."""

    gates: str = "global_retention"  # a gate file, or the name of gates that are shipped for the model
    lookahead: int = 1  # tokens of the future that count
    longest_age: int = 0  # tokens; 0 = no cap

    aux: ClassVar[tuple[str, ...]] = (COLUMN,)
    scale: ClassVar[str] = "log"  # drawn by a reservoir, the weight is the retention itself

    def __post_init__(self) -> None:
        if self.lookahead < 1:
            raise ValueError(f"lookahead must be at least 1, got {self.lookahead}")
        if self.longest_age < 0:
            raise ValueError(f"longest_age must be at least 0 (0 = no cap), got {self.longest_age}")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """The gates of every layer. Raises ValueError, see `nexus.gates`."""
        shape, found = retention_gates.load(self.gates, cfg)
        layers = retention_gates.by_layer(jax.tree.map(jnp.asarray, found), cfg.num_layers)
        activation = list(retention_gates.ACTIVATIONS).index(shape.activation)
        return layers | {"activation": jnp.full(cfg.num_layers, activation, jnp.int32)}

    def write(self, call: Call) -> dict[str, jax.Array]:
        return {COLUMN: retention_gates.any_log_beta(call.weights, call.x)}

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        rate = jnp.minimum(entries.aux(COLUMN), -LEAST)
        age = (entries.buffer.seen[:, None, None] + 1 - entries.pos).astype(jnp.float32)
        if self.longest_age:
            age = jnp.minimum(age, float(self.longest_age))
        if self.lookahead == 1:
            return rate * age
        return log_utility(rate, age + 1, self.lookahead)


def log_utility(rate: jax.Array, age: jax.Array, lookahead: int) -> jax.Array:
    """log sum_{j = 0 .. n-1} exp(rate (age + j)), n = lookahead; rate < 0."""
    return rate * age + _log1mexp(lookahead * rate) - _log1mexp(rate)


def _log1mexp(x: jax.Array) -> jax.Array:
    """log(1 - exp(x)) for x < 0, accurate at both ends."""
    return jnp.where(x > -0.6931472, jnp.log(-jnp.expm1(x)), jnp.log1p(-jnp.exp(x)))
