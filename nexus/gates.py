"""Retention gates: from a layer's normed attention input, how long will each kv head need this token?

    TRIM-KV, arXiv 2512.03324 (`two_layer`):              log_beta = logsigmoid(act(x W1 + b1) Wf + c)
    Make Each Token Count, arXiv 2605.09649 (`three_layer`):  log_beta = logsigmoid(act(act(x W1 + b1) W2 + b2) Wf + c)

beta in (0, 1) is a retention rate: an entry of age a is worth beta^a. W1, W2 belong to a layer; the final projection
(Wf [F,K], c [K]) belongs to a layer or, `tied`, to the whole model, which puts the scores of all layers on one scale.
`normalised` (ours): x is brought to mean 0 and deviation 1 and scaled by a learned g [D] first, so that the gates of
all layers begin on one scale. Everything is float32. Differs from the published code: the widths are ours to choose
(512 there), and log_beta is clipped to -1e-9, since a rate of exactly 1 makes a sum over the future infinite.

A gate file (`nexus/shipped.py`) says in its header which kind of gate it holds and which model it was trained for.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nexus import shipped
from nexus.models.config import ModelConfig

KINDS = ("two_layer", "three_layer")
ACTIVATIONS = {"silu": nn.silu, "gelu": nn.gelu, "relu": nn.relu}
TRAINED_BY = "configs/train_retention.py"
LEAST = 1e-9  # -log_beta is at least this

Gates = dict[str, dict[str, jax.Array]]
"""{"layer": {g [L,D], w1 [L,D,F], b1 [L,F], w2 [L,F,F], b2 [L,F]}, "final": {w [F,K], c [K]}}; [L,...] there if not
tied; g, w2 and b2 only of gates that have them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Shape of a gate. Raises ValueError for an unknown kind or activation, or a width below 1."""

    kind: str = "two_layer"
    width: int = 64  # F of the hidden layer(s)
    tied: bool = False  # one final projection for all layers
    bias: float = 5.0  # of the final projection before training: sigmoid(5) = .993, half-life about 100 tokens
    activation: str = "silu"
    normalised: bool = False  # the input, to mean 0 and deviation 1, then scaled

    def __post_init__(self) -> None:
        for name, value, allowed in (("kind", self.kind, KINDS), ("activation", self.activation, tuple(ACTIVATIONS))):
            if value not in allowed:
                raise ValueError(f"gate {name} {value!r}; allowed: {', '.join(allowed)}")
        if self.width < 1:
            raise ValueError(f"gate width must be at least 1, got {self.width}")


class Gate(nn.Module):
    """One layer's gate: x [...,D] -> log_beta [...,K] float32, below 0."""

    cfg: GateConfig
    num_heads: int  # K

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        F, D, act = self.cfg.width, x.shape[-1], ACTIVATIONS[self.cfg.activation]
        small = nn.initializers.normal(0.02)
        x = x.astype(jnp.float32)
        if self.cfg.normalised:
            x = jax.nn.standardize(x) * self.param("g", nn.initializers.ones, (D,))
        h = act(x @ self.param("w1", small, (D, F)) + self.param("b1", nn.initializers.zeros, (F,)))
        if self.cfg.kind == "three_layer":
            h = act(h @ self.param("w2", small, (F, F)) + self.param("b2", nn.initializers.zeros, (F,)))
        logit = h @ self.param("w", small, (F, self.num_heads))
        logit = logit + self.param("c", nn.initializers.constant(self.cfg.bias), (self.num_heads,))
        return jnp.minimum(nn.log_sigmoid(logit), -LEAST)


def init(model: ModelConfig, cfg: GateConfig, rng: jax.Array) -> Gates:
    """Untrained gates of every layer."""
    gate = Gate(cfg, model.num_kv_heads)

    def layer(key: jax.Array) -> dict[str, jax.Array]:
        return gate.init(key, jnp.zeros((1, model.dim)))["params"]

    made = jax.vmap(layer)(jax.random.split(rng, model.num_layers))
    final = {name: made.pop(name)[0] if cfg.tied else made.pop(name) for name in ("w", "c")}
    return {"layer": dict(made), "final": final}


def by_layer(gates: Gates, num_layers: int) -> dict[str, jax.Array]:
    """The parameters of every layer's gate, all leaves [L,...]: a tied projection is repeated."""
    tied = gates["final"]["c"].ndim == 1
    final = gates["final"]
    if tied:
        final = {name: jnp.broadcast_to(x, (num_layers, *x.shape)) for name, x in final.items()}
    return gates["layer"] | final


def log_beta(cfg: GateConfig, layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """x [B,T,D], one layer's slice of `by_layer` -> log_beta [B,K,T] float32."""
    rates: Any = Gate(cfg, layer["c"].shape[-1]).apply({"params": layer}, x)
    return jnp.moveaxis(rates, -1, 1)


def any_log_beta(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """`log_beta` of gates that say by themselves what they are: `by_layer` and an index "activation" [] int32."""
    kind, width = "three_layer" if "w2" in layer else "two_layer", layer["w1"].shape[-1]
    params = {name: value for name, value in layer.items() if name != "activation"}
    shapes = [GateConfig(kind=kind, width=width, activation=name, normalised="g" in layer) for name in ACTIVATIONS]
    return jax.lax.switch(layer["activation"], [functools.partial(log_beta, cfg) for cfg in shapes], params, x)


# --- files --------------------------------------------------------------------------------------------------------


def save(path: Path, gates: Gates, cfg: GateConfig, model: ModelConfig, about: dict[str, Any]) -> None:
    """Writes a gate file in float16. about: provenance."""
    flat = {f"{part}.{name}": np.asarray(x, np.float16) for part, leaves in gates.items() for name, x in leaves.items()}
    shipped.write(path, flat, model, about, gate=dataclasses.asdict(cfg))


def load(given: str, model: ModelConfig) -> tuple[GateConfig, dict[str, dict[str, np.ndarray]]]:
    """Gates for a model, as float32: from a file, or those shipped under a name.

    Raises ValueError: there are none, it is not a gate file, or gates of another model's shape; names both shapes.
    """
    path = shipped.find("gates", given, model, TRAINED_BY)
    file = Path(path).stat()
    return _read(path, (file.st_ino, file.st_mtime_ns, file.st_size), model)


@functools.lru_cache(maxsize=8)
def _read(path: str, state: tuple[int, ...], model: ModelConfig) -> tuple[GateConfig, dict[str, dict[str, np.ndarray]]]:
    """state: what changes when a training writes its file again."""
    flat, header = shipped.read(path, "gates")
    if "gate" not in header:
        raise ValueError(f"{path} is not a file of gates: its header does not say what kind")
    try:
        cfg = GateConfig(**header["gate"])
    except (TypeError, ValueError) as error:  # a field that this version does not know, or a value it has no code for
        raise ValueError(
            f"gates in {path}: their header {header['gate']} does not fit this version: {error}"
        ) from error
    expected = jax.eval_shape(functools.partial(init, model, cfg), jax.random.key(0))
    wanted = {f"{part}.{name}": x.shape for part, leaves in expected.items() for name, x in leaves.items()}
    got = {name: x.shape for name, x in flat.items()}
    if got != wanted:
        name = next(n for n in sorted(wanted | got) if got.get(n) != wanted.get(n))
        raise ValueError(
            f"gates in {path} were trained for model {header.get('model')!r} and do not fit {model.name!r}: "
            f"{name} has shape {got.get(name)}, the model needs {wanted.get(name)}"
        )
    parts: dict[str, dict[str, np.ndarray]] = {"layer": {}, "final": {}}
    for name, x in flat.items():
        part, leaf = name.split(".")
        parts[part][leaf] = x
    return cfg, parts
