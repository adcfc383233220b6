"""A run folder: its files of rows, and what it was begun with, so that a run that is continued mixes nothing.

The config is not all that decides a run: files that it names can change between two starts, an edited data set, a
checkpoint exported again to the same path. Short hashes of both stand in inputs.json, and `claim` compares.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import config_dict

from experiments.plan import ConfigError
from nexus import record
from nexus.models.load import Model

SAMPLED = 512  # numbers of each array of a model
DIGITS = 12  # of a hash
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """What lies in a run folder."""

    workdir: Path

    def rows(self, name: str) -> list[Row]:
        return record.read_rows(self.workdir / f"{name}.jsonl")

    def append(self, name: str, new: list[Row]) -> None:
        record.append_rows(self.workdir / f"{name}.jsonl", new)


def claim(
    workdir: Path,
    config: config_dict.FrozenConfigDict,
    model: Model | None = None,
    data: Mapping[str, str] | None = None,
) -> None:
    """Makes the folder one of this config, model and data; call it when nothing can be refused any more.

    Args:
        model: None where none is loaded this time.
        data: what a reader calls a data set -> its hash; as much as is used this time.

    Raises:
        ConfigError: the folder was begun with another config, other weights or other data; nothing is written.
    """
    inputs = ({"the weights of the model": weights_hash(model)} if model else {}) | dict(data or {})
    path = workdir / "inputs.json"
    before = record.read_json(path) if path.exists() else {}
    changed = [name for name, found in inputs.items() if before.get(name, found) != found]
    if changed:
        raise ConfigError(
            f"{workdir} was begun with other contents of {', '.join(changed)}: they changed since; give another "
            "--workdir"
        )
    try:
        record.open_workdir(workdir, config.to_dict())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    record.write_json(path, before | inputs)


def weights_hash(model: Model) -> str:
    """Of `SAMPLED` numbers spread over every array of the model: other weights differ in some of them."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        flat = leaf.reshape(-1)
        some = np.asarray(flat[:: max(1, flat.size // SAMPLED)].astype("float32"))
        digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode() + some.tobytes())
    return digest.hexdigest()[:DIGITS]


def text_hash(*parts: Any) -> str:
    """Of anything that prints in full, in order."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:DIGITS]
