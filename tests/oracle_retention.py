"""Retention from the equations: gates in float64, utility as a sum over the future, term by term."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def log_beta(path: str, layer: int, x: np.ndarray) -> np.ndarray:
    """x [T,D] -> [T,K]: log sigmoid of two or three layers; a final projection without a layer axis is shared."""
    w = {name: value.astype(np.float64) for name, value in safetensors.numpy.load_file(path).items()}
    with safetensors.safe_open(path, framework="numpy") as file:
        act = ACTIVATIONS[json.loads(file.metadata()["gate"])["activation"]]
    if "layer.g" in w:
        x = x.astype(np.float64)
        spread = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        x = (x - x.mean(axis=-1, keepdims=True)) / spread * w["layer.g"][layer]
    h = act(x @ w["layer.w1"][layer] + w["layer.b1"][layer])
    if "layer.w2" in w:
        h = act(h @ w["layer.w2"][layer] + w["layer.b2"][layer])
    tied = w["final.c"].ndim == 1
    last, bias = (w["final.w"], w["final.c"]) if tied else (w["final.w"][layer], w["final.c"][layer])
    return -np.log1p(np.exp(-(h @ last + bias)))


def utility(rate: np.ndarray, age: np.ndarray, lookahead: int) -> np.ndarray:
    """log of the summed retention over the next `lookahead` steps; age n_seen + 1 - pos, one more with lookahead."""
    if lookahead == 1:
        return rate * age
    terms = rate[..., None] * (age[..., None] + 1 + np.arange(lookahead))
    return np.log(np.exp(terms).sum(axis=-1))


def score(scorer: Any) -> Callable[..., np.ndarray]:
    """A stream's score."""

    def of(s: Any, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        age = s.seen + 1 - at.astype(float)
        if scorer.longest_age:
            age = np.minimum(age, scorer.longest_age)
        return utility(log_beta(scorer.gates, layer, s.inputs[layer][at])[:, head], age, scorer.lookahead)

    return of
