"""Where a training goes on: its newest checkpoint, and a log that knows nothing later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from nexus import record
from nexus.checkpoint import Checkpoints


def resume(checkpoints: Checkpoints, state: Any, log: Path, *, writes: bool = True) -> tuple[Any, int]:
    """The newest state (or the given one) and its number of steps.

    What was logged after it is dropped, it will be computed again; `writes` False leaves the log to another process.
    """
    done = checkpoints.latest()
    if done is not None:
        state = checkpoints.restore(done, jax.tree.map(_shape, state))
    if writes:
        kept = [row for row in record.read_rows(log) if row["step"] < (done or 0)]
        log.unlink(missing_ok=True)
        record.append_rows(log, kept)
    return state, done or 0


def _shape(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
