"""One mesh with three axes, and one table that says which axis of which array lies on which axis of the mesh.

    data    copies of everything, each with its own rows of the batch
    fsdp    rows of the batch too; parameters, gates and optimiser are split over it and gathered when they are used
    model   splits the width of heads and feed-forward

The compiler inserts the communication; numbers do not depend on the mesh beyond the order of sums. An axis of an array
that its mesh axis does not divide (kv heads, a small gate) stays whole. A KV buffer is split by sequence alone: all
entries of a sequence are on one device, so a global budget is decided without communication; a `model` axis repeats it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "model")
ROWS = ("data", "fsdp")  # mesh axes that share the rows of a batch
Spec = tuple[Any, ...]

# (path of an array, mesh axis of each of its axes); the first that matches counts, what none matches is repeated.
RULES: tuple[tuple[str, Spec], ...] = (
    (r"embed$", ("model", "fsdp")),  # [V,D]
    (r"head$", ("fsdp", "model")),  # [D,V]
    (r"blocks\.(wqkv|w_gate_up)$", (None, "fsdp", "model")),  # [L,D,*]
    (r"blocks\.(wo|w_down)$", (None, "model", "fsdp")),  # [L,*,D]
    (r"blocks\.(wqkv|w_gate_up)\.\d+$", ("fsdp", "model")),  # [D,*], where each layer is an array
    (r"blocks\.(wo|w_down)\.\d+$", ("model", "fsdp")),  # [*,D]
    (r"layer\.w1$", (None, "fsdp", "model")),  # [L,D,F] of gates, and of their optimiser
    (r"layer\.w2$", (None, "fsdp", "model")),  # [L,F,F]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each axis; data = -1 takes what is left. Raises ValueError for a size below 1 (or -1)."""

    data: int = -1
    fsdp: int = 1
    model: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            size = getattr(self, name)
            if size < 1 and not (name == "data" and size == -1):
                raise ValueError(
                    f"mesh.{name} must be at least 1" + (", or -1" if name == "data" else "") + f", got {size}"
                )


def make_mesh(shape: MeshShape, devices: list[Any] | None = None) -> Mesh:
    """The mesh over all devices. Raises ValueError when the sizes do not multiply to their number."""
    found = jax.devices() if devices is None else devices
    rest = shape.fsdp * shape.model
    data = len(found) // rest if shape.data == -1 else shape.data
    if data * rest != len(found):
        raise ValueError(
            f"mesh.data={shape.data} x mesh.fsdp={shape.fsdp} x mesh.model={shape.model} does not use the "
            f"{len(found)} devices that are there"
        )
    return Mesh(np.array(found).reshape(data, shape.fsdp, shape.model), AXES)


def row_shards(mesh: Mesh) -> int:
    """Devices that share the rows of a batch."""
    return math.prod(mesh.shape[name] for name in ROWS)


def by_rows(mesh: Mesh) -> NamedSharding:
    """Of arrays [B,...]: batches, and a KV buffer's arrays that lead with B."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def of(mesh: Mesh, tree: Any) -> Any:
    """The sharding of every array (or ShapeDtypeStruct) of a tree, by its path and the rules."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: NamedSharding(mesh, spec(mesh, name_of(path), x.shape)), tree
    )


def spec(mesh: Mesh, name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """The rule of one array; axes that do not divide stay whole."""
    for pattern, axes in RULES:
        if re.search(pattern, name) and len(axes) == len(shape):
            fits = (axis if axis and n % mesh.shape[axis] == 0 else None for axis, n in zip(axes, shape, strict=True))
            return PartitionSpec(*fits)
    return PartitionSpec()


def name_of(path: Any) -> str:
    """a.b.c of a path in a tree of dictionaries, tuples and named tuples."""
    return ".".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def buffer(mesh: Mesh, buf: Any) -> Any:
    """The sharding of a KV buffer: arrays that lead with B by sequence, the layers' [L,B,...] on their second axis."""
    first, second = PartitionSpec(ROWS), PartitionSpec(None, ROWS)

    def one(path: Any, x: Any) -> NamedSharding:
        field = name_of(path).split(".")[0]
        if x.ndim == 0:
            return NamedSharding(mesh, PartitionSpec())
        stacked = field in ("tail_k", "tail_v", "tail_aux", "state", "memory")
        return NamedSharding(mesh, second if stacked else first)

    return jax.tree_util.tree_map_with_path(one, buf)
