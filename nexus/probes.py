"""Soft tokens of Judge Q: rows of the embedding that no word has, trained to ask what a response will ask.

untrained   the mean embedding and a little noise: where a training begins, and a control for it
file        {"rows": [Ns,D]}, whose header says which model they were trained for (`nexus/shipped.py`)
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nexus import shipped
from nexus.models.config import ModelConfig

TRAINED_BY = "configs/train_judgeq.py"
UNTRAINED = "untrained"
COUNT = 32  # Ns where no file says how many
NOISE = 0.1  # of untrained rows, in standard deviations of the embedding


def init(embed: jax.Array, count: int = COUNT, seed: int = 0) -> jax.Array:
    """Untrained rows [count,D] float32 of an embedding [V,D]: its mean and a little noise."""
    wide = embed.astype(jnp.float32)
    noise = jax.random.normal(jax.random.key(seed), (count, embed.shape[1]), jnp.float32)
    return wide.mean(axis=0) + NOISE * wide.std(axis=0) * noise


def save(path: Path, rows: Any, model: ModelConfig, about: dict[str, Any]) -> None:
    """Writes rows [Ns,D]. about: provenance."""
    shipped.write(path, {"rows": np.asarray(rows, np.float32)}, model, about)


@functools.lru_cache(maxsize=8)
def load(given: str, model: ModelConfig) -> np.ndarray:
    """Rows [Ns,D] float32 for a model: from a file, or those shipped under a name.

    Raises ValueError: there are none, it is not such a file, or rows of another model's width; names both shapes.
    """
    path = shipped.find("probes", given, model, TRAINED_BY)
    arrays, header = shipped.read(path, "soft tokens")
    rows = arrays.get("rows", np.zeros(0))
    if rows.ndim != 2 or rows.shape[1] != model.dim:
        raise ValueError(
            f"soft tokens in {path} were trained for model {header.get('model')!r} and do not fit {model.name!r}: "
            f"they have shape {rows.shape}, the model needs ({len(rows)}, {model.dim})"
        )
    return rows
