"""Files of trained numbers: one safetensors file with a header that says what it is, for which model, and how made.

Those of the repository lie in `nexus/shipped/`, named <name>-<model name>.safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from nexus.models.config import ModelConfig

FOLDER = Path(__file__).parent / "shipped"


def find(option: str, given: str, model: ModelConfig, train: str) -> str:
    """Path of a file: `given` is one, or the name of what is shipped for the model.

    Raises ValueError when it is neither; names the option, what there is, and the config that trains some (`train`).
    """
    if Path(given).is_file():
        return given
    path = FOLDER / f"{given}-{model.name}.safetensors"
    if not path.is_file():
        stems = sorted(file.stem for file in FOLDER.glob("*.safetensors"))
        known = ", ".join(stem for stem in stems if stem.startswith(f"{given}-")) or "none"
        raise ValueError(
            f"{option}={given!r} is no file, and nothing of this name is shipped for model {model.name!r} (for others: "
            f"{known}); train with launch.py --config={train}:model=..."
        )
    return str(path)


def write(path: Path, arrays: Mapping[str, np.ndarray], model: ModelConfig, about: Any, **header: Any) -> None:
    """Writes a file, whole or not at all. about: provenance; header: whatever a reader needs; both as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    said = {name: json.dumps(value) for name, value in (header | {"about": about}).items()} | {"model": model.name}
    safetensors.numpy.save_file(dict(arrays), str(temporary), metadata=said)
    temporary.chmod(0o644)
    temporary.rename(path)


def read(path: str, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays as float32, and the header. Raises ValueError that names the file when it is no safetensors file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            said = file.metadata() or {}
            arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a file of {what}: {error}") from error
    return arrays, {name: value if name == "model" else json.loads(value) for name, value in said.items()}
