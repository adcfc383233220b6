"""The mesh: what lies where, and that it does not change what is computed. Eight devices are simulated in a process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import PartitionSpec as P

from nexus import record
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
        ("blocks.wqkv.29", (576, 960), P("fsdp", "model")),
        ("blocks.w_down.0", (1536, 576), P("model", "fsdp")),
        ("embed", (49152, 576), P("model", "fsdp")),
        ("embed", (49153, 576), P(None, "fsdp")),
        ("blocks.attn_norm", (30, 576), P()),
        ("gates.layer.w1", (30, 576, 64), P(None, "fsdp", "model")),
        ("optimizer.1.0.mu.layer.w1", (30, 576, 64), P(None, "fsdp", "model")),
        ("gates.final.w", (30, 64, 3), P()),
    ],
)
def test_one_table_says_what_lies_where(name, shape, expected):
    """The optimiser follows its parameters; what an axis does not divide (3 kv heads, odd vocabulary) is repeated."""
    assert sharding.spec(FakeMesh, name, shape) == expected


def test_sizes_must_use_the_devices():
    """Said before anything is loaded, with the numbers."""
    with pytest.raises(ValueError, match="mesh.data=1 x mesh.fsdp=2 x mesh.model=1 does not use the 1 devices"):
        mesh(data=1, fsdp=2)
    with pytest.raises(ValueError, match="mesh.fsdp must be at least 1, got 0"):
        MeshShape(fsdp=0)
    assert dict(mesh().shape) == {"data": 1, "fsdp": 1, "model": 1}


def test_eight_devices_compute_what_one_does():
    """Losses to 1e-5 over several steps on meshes with every axis; identical kept sets of a buffer split by rows (key
    re-rotation and one method broke when a model spanned devices, NVIDIA/kvpress#240, #241)."""
    command = [sys.executable, str(ROOT / "tests" / "training" / "eight_devices.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    one = np.array(lines["one"].split(), float)
    for name in ("data", "fsdp", "model", "all"):
        np.testing.assert_allclose(np.array(lines[name].split(), float), one, rtol=1e-5, err_msg=name)
    kept = {name: said for name, said in lines.items() if name.startswith("kept-")}
    assert len(kept) == 5 and set(kept.values()) == {"same"}, kept


# --- several processes ------------------------------------------------------------------------------------------------


def start(count: int, folder: Path, cache: Path, *arguments: str) -> list[subprocess.Popen]:
    """`count` processes that share four devices, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    shared = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // count}", "NEXUS_CACHE": str(cache),
        "NEXUS_COORDINATOR": address, "NEXUS_PROCESSES": str(count),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "tests" / "training" / "one_process.py"), str(folder), *arguments]
    return [
        subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | shared | {"NEXUS_PROCESS": str(i)},
        )
        for i in range(count)
    ]  # fmt: skip


def finished(processes: list[subprocess.Popen]) -> None:
    outputs = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)[-3000:]


def losses(folder: Path) -> np.ndarray:
    found = record.read_rows(folder / "train.jsonl")
    assert [row["step"] for row in found] == list(range(6))
    return np.array([row["loss"] for row in found])


def test_two_processes_are_one_and_survive_a_kill(tmp_path):
    """Two processes on this machine give one process's losses and gates; one is killed without warning, and the same
    commands go on from the last checkpoint. A process that was alone can read the checkpoint of two."""
    cache = tmp_path / "cache"
    finished(start(1, tmp_path / "one", cache))
    alone = losses(tmp_path / "one")

    killed = start(2, tmp_path / "two", cache, "3")
    until = time.monotonic() + 400  # compiling takes most of it
    while all(process.poll() is None for process in killed) and time.monotonic() < until:
        time.sleep(0.2)
    for process in killed:  # the other one notices, or is stopped
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    assert any(process.returncode == -9 for process in killed)
    assert len(record.read_rows(tmp_path / "two" / "train.jsonl")) == 4
    shutil.copytree(tmp_path / "two", tmp_path / "moved")
    finished(start(2, tmp_path / "two", cache))
    np.testing.assert_allclose(losses(tmp_path / "two"), alone, rtol=1e-5)
    finished(start(1, tmp_path / "moved", cache))  # restored on another mesh
    np.testing.assert_allclose(losses(tmp_path / "moved"), alone, rtol=1e-5)
    files = [safetensors.numpy.load_file(tmp_path / name / "gates.safetensors") for name in ("one", "two")]
    for name, value in files[0].items():
        np.testing.assert_allclose(files[1][name], value, atol=2e-3)
