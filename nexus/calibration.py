"""Calibration files: which query heads of a model retrieve, and how much each layer suffers from compression.

One JSON per model, made by `experiments/calibrate_heads.py` and named after the model. Fields:

    model               the name the file was made for
    heads  [L,J]        query heads of every layer by falling retrieval score, each in 0..N-1
    layer_weight  [L]   share of the compression error, sum 1
    provenance          data and its fingerprint, settings, seed, commit, versions, trials that counted
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from nexus.models.config import ModelConfig

FOLDER = Path(__file__).resolve().parent / "calibrations"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A checked file."""

    heads: np.ndarray  # [L,J] int32
    layer_weight: np.ndarray  # [L] float32, sum 1
    provenance: dict[str, Any]


def path_of(name: str) -> Path:
    """Where the committed calibration of a model stands, whether or not it exists."""
    return FOLDER / f"{Path(name).name}.json"


def load(calibration: str, cfg: ModelConfig) -> Calibration:
    """The calibration of a model.

    Args:
        calibration: path of a file, name of a model with a committed one, or "" for that of cfg.name.

    Raises:
        ValueError: there is none, with the command that makes one; or it does not fit the model.
    """
    path = Path(calibration).expanduser()
    if not calibration or path.suffix != ".json":
        path = path_of(calibration or cfg.name)
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json"))) or "none"
        raise ValueError(
            f"no calibration of retrieval heads for model {cfg.name!r} ({path} is missing; there: {there}). Make one: "
            f"python launch.py --config=configs/calibrate_heads.py:model={cfg.name}, then pass its calibration.json as "
            "calibration="
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        heads = np.asarray(found["heads"], np.int32)
        weight = np.asarray(found["layer_weight"], np.float64)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no calibration: {error!r}") from error
    _check(path, cfg, heads, weight)
    return Calibration(heads, (weight / weight.sum()).astype(np.float32), found.get("provenance", {}))


def _check(path: Path, cfg: ModelConfig, heads: np.ndarray, weight: np.ndarray) -> None:
    L, N = cfg.num_layers, cfg.num_heads
    if heads.ndim != 2 or len(heads) != L or not heads.size or heads.min() < 0 or heads.max() >= N:
        raise ValueError(f"{path}: heads must be [{L}, J] numbers in 0..{N - 1} for model {cfg.name!r}")
    if any(len(set(row)) < len(row) for row in heads.tolist()):
        raise ValueError(f"{path}: a head is listed twice in a layer")
    if weight.shape != (L,) or not np.isfinite(weight).all() or weight.min() < 0 or weight.sum() <= 0:
        raise ValueError(f"{path}: layer_weight must be {L} numbers of at least 0 with a positive sum")
