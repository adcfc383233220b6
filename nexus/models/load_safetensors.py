"""A directory with config.json and safetensors files (one, or shards with an index), as published on the hub."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import safetensors

from nexus.models import weights
from nexus.models.config import ModelConfig, from_hf
from nexus.models.transformer import Params

INDEX = "model.safetensors.index.json"
_IGNORED = "rotary_emb.inv_freq"  # old llama checkpoints store the frequencies they were trained with


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError naming the file when it is broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: broken or half-downloaded JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def config(directory: Path, *, name: str, dtype: str) -> ModelConfig:
    """ModelConfig of the directory's config.json. Raises FileNotFoundError or ValueError."""
    path = directory / "config.json"
    if not path.is_file():
        gguf = sorted(file.name for file in directory.glob("*.gguf"))
        hint = f"; pass one of its GGUF files instead: {', '.join(gguf)}" if gguf else ""
        raise FileNotFoundError(f"{directory}: no config.json in this directory{hint}")
    return from_hf(read_json(path), name=name, dtype=dtype)


def params(directory: Path, cfg: ModelConfig) -> Params:
    """Checked and assembled parameters.

    Raises:
      FileNotFoundError: no safetensors file, or a shard that the index names is absent.
      ValueError: a broken file; missing, unknown or misshapen tensors.
    """
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(_open(path)) for path in _files(directory)]
        owner = {name: file for file in opened for name in file.keys() if not name.endswith(_IGNORED)}
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in owner.items()}
        weights.check(cfg, shapes, str(directory))
        return weights.assemble(cfg, lambda name: owner[name].get_tensor(name))


def _files(directory: Path) -> list[Path]:
    if (directory / INDEX).is_file():
        index = read_json(directory / INDEX)
        paths = [directory / file for file in sorted(set(index.get("weight_map", {}).values()))]
    else:
        paths = sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{directory}: no safetensors file in this directory")
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise FileNotFoundError(f"{directory}: {len(absent)} of {len(paths)} shards are missing: {', '.join(absent)}")
    return paths


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        size = path.stat().st_size
        raise ValueError(f"{path}: broken or half-downloaded safetensors file of {size} bytes ({error})") from error
