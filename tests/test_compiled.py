"""Programs on disk: a second start compiles nothing (sgl-project/sglang-jax#117), and says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nexus import compiled, record

START = """
import json, jax
from nexus.compiled import keep_programs
folder = keep_programs()
counts = {"hits": 0, "misses": 0}
def heard(event, **_):
    for name in counts:
        counts[name] += event == f"/jax/compilation_cache/cache_{name}"
jax.monitoring.register_event_listener(heard)
import nexus
from nexus import methods
from nexus.generate import Session, Settings
session = Session(nexus.load("tiny-llama").model, methods.build("streaming_llm", budget=32), Settings(), 1)
session.feed([list(range(5, 105))])
answer = session.generate(4, end=())
print(json.dumps(counts | {"answer": answer, "folder": str(folder), "peak": session.peak_bytes}))
"""


def started(**environment: str) -> dict:
    inherited = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=record.ROOT, env=inherited | environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_start_compiles_nothing(tmp_path):
    first, second = (started(NEXUS_CACHE=str(tmp_path)) for _ in range(2))
    assert first["misses"] > 2
    assert second["misses"] == 0 and second["hits"] > 2
    assert second["answer"] == first["answer"] and second["peak"] == first["peak"] > 0
    assert Path(first["folder"]).parent == tmp_path / "xla"


def test_a_folder_that_the_user_named_is_used(tmp_path):
    named = tmp_path / "mine"
    assert started(NEXUS_CACHE=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(named))["folder"] == str(named)
    assert not (tmp_path / "xla").exists()


def test_another_processor_has_another_folder_and_another_clock_has_not(tmp_path, monkeypatch):
    def name(flags: str, clock: int) -> str:
        (tmp_path / "cpuinfo").write_text(f"model name\t: One\nflags\t\t: {flags}\ncpu MHz\t: {clock}\n")
        monkeypatch.setattr(compiled, "CPU_INFO", tmp_path / "cpuinfo")
        return compiled.processor()

    assert name("sse avx", 1) == name("sse avx", 2) != name("sse avx amx_bf16", 1)
    monkeypatch.setattr(compiled, "CPU_INFO", tmp_path / "absent")
    assert compiled.processor() != name("sse avx", 1)
