"""Soft tokens of Judge Q: rows of the embedding that no word has, trained to ask what a response will ask.

untrained   the mean embedding and a little noise: where a training begins, and a control for it
file        one safetensors file {"rows": [Ns,D]} whose header says which model they were trained for
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from nexus.models.config import ModelConfig

SHIPPED = Path(__file__).parent / "shipped"  # <name>-<model name>.safetensors
UNTRAINED = "untrained"
COUNT = 32  # Ns where no file says how many
NOISE = 0.1  # of untrained rows, in standard deviations of the embedding


def init(embed: jax.Array, count: int = COUNT, seed: int = 0) -> jax.Array:
    """Untrained rows [count,D] float32 of an embedding [V,D]: its mean and a little noise."""
    wide = embed.astype(jnp.float32)
    noise = jax.random.normal(jax.random.key(seed), (count, embed.shape[1]), jnp.float32)
    return wide.mean(axis=0) + NOISE * wide.std(axis=0) * noise


def save(path: Path, rows: Any, model: ModelConfig, about: dict[str, Any]) -> None:
    """Writes rows [Ns,D], whole or not at all. about: provenance, kept in the header as JSON."""
    temporary = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"model": model.name, "about": json.dumps(about)}
    safetensors.numpy.save_file({"rows": np.asarray(rows, np.float32)}, str(temporary), metadata=header)
    temporary.rename(path)


@functools.lru_cache(maxsize=8)
def load(path: str, model: ModelConfig) -> np.ndarray:
    """Rows [Ns,D] float32 of a file, for a model.

    Raises ValueError: not such a file, or rows of another model's width; names both shapes.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            trained_for, rows = (file.metadata() or {}).get("model"), file.get_tensor("rows")
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a file of soft tokens: {error}") from error
    if rows.ndim != 2 or rows.shape[1] != model.dim:
        raise ValueError(
            f"soft tokens in {path} were trained for model {trained_for!r} and do not fit {model.name!r}: "
            f"they have shape {rows.shape}, the model needs ({rows.shape[0]}, {model.dim})"
        )
    return rows.astype(np.float32)


def find(probes: str, model: ModelConfig) -> str:
    """Path of a file: `probes` is one, or names rows that are shipped for the model.

    Raises ValueError when it is neither; says what is there and how to train some.
    """
    if Path(probes).is_file():
        return probes
    shipped = SHIPPED / f"{probes}-{model.name}.safetensors"
    if not shipped.is_file():
        known = sorted(path.stem for path in SHIPPED.glob(f"{probes}-*.safetensors"))
        raise ValueError(
            f"probes={probes!r} is no file, and no soft tokens of this name are shipped for model {model.name!r} "
            f"(shipped: {', '.join(known) or 'none'}); train them with launch.py --config=configs/train_judgeq.py, or "
            f"take probes={UNTRAINED!r}, a control"
        )
    return str(shipped)
