"""Several processes that train as one: start, share of the rows, agreement, and who writes.

`mesh.distributed=True` joins the processes before anything touches a device. On TPU pods and under Slurm or MPI nothing
else is needed; elsewhere every process is told by NEXUS_COORDINATOR (host:port), NEXUS_PROCESSES and NEXUS_PROCESS. All
processes see one folder (checkpoints are written by all of them); the first one writes everything else.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from experiments.plan import ConfigError
from nexus.training import sharding

NAMES = ("NEXUS_COORDINATOR", "NEXUS_PROCESSES", "NEXUS_PROCESS")


def start(distributed: bool) -> None:
    """Joins the processes. Raises ConfigError when only a part of the three variables is set, or a number is none."""
    if not distributed or jax.distributed.is_initialized():
        return
    given = [name for name in NAMES if os.environ.get(name)]
    if not given:
        jax.distributed.initialize()
        return
    if len(given) < len(NAMES):
        missing = [name for name in NAMES if name not in given]
        raise ConfigError(f"mesh.distributed needs all of {', '.join(NAMES)} or none; {', '.join(missing)} is missing")
    try:
        count, index = int(os.environ[NAMES[1]]), int(os.environ[NAMES[2]])
    except ValueError as error:
        raise ConfigError(f"{NAMES[1]} and {NAMES[2]} take whole numbers: {error}") from error
    jax.distributed.initialize(os.environ[NAMES[0]], count, index)


def first() -> bool:
    """Whether this process writes logs, gates and reports."""
    return jax.process_index() == 0


def any_of(flag: bool) -> bool:
    """Whether the flag is set anywhere: all processes must save and stop at the same step."""
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag)))) if jax.process_count() > 1 else flag


def spread(mesh: Mesh, tree: Any) -> Any:
    """A tree that every process holds whole, laid out by the rules."""
    if jax.process_count() > 1:
        tree = jax.tree.map(np.asarray, tree)
    return jax.device_put(tree, sharding.of(mesh, tree))


def joined(mesh: Mesh, rows: Any) -> Any:
    """Global arrays [B,...] from the rows of each process."""
    where = sharding.by_rows(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(where, np.asarray(x)), rows)


def whole(tree: Any) -> Any:
    """The tree as NumPy arrays; every process must call it."""
    if jax.process_count() > 1:
        return multihost_utils.process_allgather(tree, tiled=True)
    return jax.tree.map(np.asarray, tree)
