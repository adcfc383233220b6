"""What a run was made from besides its config, samples and weights: a run that is continued mixes no two of them.

Files that a config names can change between two starts: an edited data set, a checkpoint exported again to the same
path. Rows carry short hashes of both, and a continued run compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.plan import ConfigError
from nexus.models.load import Model
from nexus.tasks.example import Example, data_hash

SAMPLED = 512  # numbers of each array of a model
Row = dict[str, Any]


def sample_hash(example: Example) -> str:
    """Of all its fields."""
    return data_hash([example])[:12]


def weights_hash(model: Model) -> str:
    """Of `SAMPLED` numbers spread over every array of the model: other weights differ in some of them."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        flat = leaf.reshape(-1)
        some = np.asarray(flat[:: max(1, flat.size // SAMPLED)].astype("float32"))
        digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode() + some.tobytes())
    return digest.hexdigest()[:12]


def check(
    predictions: Sequence[Row], examples: Mapping[tuple[str, int], Sequence[Example]], weights: str, workdir: Any
) -> None:
    """Raises ConfigError when rows of a run folder come from other samples or weights than those at hand."""
    now = {
        (task, length, example.index): sample_hash(example)
        for (task, length), found in examples.items()
        for example in found
    }
    for row in predictions:
        at = row["task"], row["length"], row["index"]
        if row.get("sample_hash", now.get(at)) != now.get(at):
            raise ConfigError(
                f"sample {row['index']} of task {row['task']} is not the one that {workdir} was begun with: the data "
                "changed since; give another --workdir"
            )
        if row.get("weights_hash", weights) != weights:
            raise ConfigError(
                f"model.name={row['model']!r} has other weights than {workdir} was begun with: give another --workdir"
            )
