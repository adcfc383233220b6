"""The mesh: what lies where, and that it does not change what is computed. Eight devices are simulated in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from nexus.training import sharding
from nexus.training.sharding import MeshShape

ROOT = Path(__file__).resolve().parents[2]


def mesh(**shape: int):
    """A mesh of this process's one device, named as if it had more axes."""
    return sharding.make_mesh(MeshShape(**shape), jax.devices()[:1])


class FakeMesh:
    shape = {"data": 2, "fsdp": 2, "model": 2}


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blocks.wqkv", (30, 576, 960), P(None, "fsdp", "model")),
        ("blocks.w_down", (30, 1536, 576), P(None, "model", "fsdp")),
        ("embed", (49152, 576), P("model", "fsdp")),
        ("embed", (49153, 576), P(None, "fsdp")),
        ("blocks.attn_norm", (30, 576), P()),
        ("gates.layer.w1", (30, 576, 64), P(None, "fsdp", "model")),
        ("optimizer.1.0.mu.layer.w1", (30, 576, 64), P(None, "fsdp", "model")),
        ("gates.final.w", (30, 64, 3), P()),
    ],
)
def test_one_table_says_what_lies_where(name, shape, expected):
    """The optimiser follows its parameters; what an axis does not divide (3 kv heads, an odd vocabulary) stays whole."""
    assert sharding.spec(FakeMesh, name, shape) == expected


def test_sizes_must_use_the_devices():
    """Said before anything is loaded, with the numbers."""
    with pytest.raises(ValueError, match="mesh.data=1 x mesh.fsdp=2 x mesh.model=1 does not use the 1 devices"):
        mesh(data=1, fsdp=2)
    with pytest.raises(ValueError, match="mesh.fsdp must be at least 1, got 0"):
        MeshShape(fsdp=0)
    assert dict(mesh().shape) == {"data": 1, "fsdp": 1, "model": 1}


def test_eight_devices_compute_what_one_does():
    """Losses to 1e-5 over several steps on meshes with every axis, and identical kept sets of a buffer split by sequence."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "training" / "eight_devices.py")], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    one = np.array(lines["one"].split(), float)
    for name in ("data", "fsdp", "model", "all"):
        np.testing.assert_allclose(np.array(lines[name].split(), float), one, rtol=1e-5, err_msg=name)
    assert lines["kept"] == "same"
