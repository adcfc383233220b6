"""Checkpoints of a training: the newest and the best are kept, saving goes on in the background.

A checkpoint appears in the folder whole or not at all, so a process that is killed while saving, or a full disk, leaves
the one before it. It can be read back onto another mesh: `restore` takes shapes with the shardings that are wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies


class Checkpoints:
    """The checkpoints of one folder. Call `close` at the end, which waits for what is still being saved."""

    def __init__(self, folder: Path):
        best = policies.BestN(get_metric_fn=_loss, reverse=True, n=1)
        keep = policies.AnyPreservationPolicy([policies.LatestN(n=1), best])
        options = ocp.CheckpointManagerOptions(preservation_policy=keep, best_fn=_loss, best_mode="min")
        handler = ocp.StandardCheckpointHandler()
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handler)

    def save(self, step: int, state: Any, loss: float) -> None:
        """Starts to save the state after `step` steps; returns before it is on the disk."""
        self._manager.save(step, args=ocp.args.StandardSave(state), metrics={"loss": float(loss)}, force=True)

    def latest(self) -> int | None:
        """Steps done at the newest checkpoint, None where there is none."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """Steps done at the checkpoint with the lowest loss."""
        return self._manager.best_step()

    def restore(self, step: int, like: Any) -> Any:
        """The state after `step` steps. like: a state, or its ShapeDtypeStructs.

        Raises ValueError when the checkpoint holds other shapes, naming both.
        """
        wanted = _shapes(like)
        found = _shapes(self._manager.item_metadata(step))
        for name in sorted(wanted | found):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"checkpoint {step} in {self._manager.directory} holds {name} of shape {found.get(name)}; "
                    f"this config needs {wanted.get(name)}"
                )
        return self._manager.restore(step, args=ocp.args.StandardRestore(like))

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()


def _loss(numbers: dict[str, float]) -> float:
    return numbers["loss"]


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = [".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
             for path, _ in flat]  # fmt: skip
    return {name: tuple(leaf.shape) for name, (_, leaf) in zip(names, flat, strict=True)}
