"""What a run leaves on disk: JSON lines that survive a kill, a hash of the config, and where the numbers were made.

A line is appended and flushed to the disk before the next one begins. A process that is killed in the middle of a line
leaves a last line without its newline: readers ignore it and the next append removes it, so it is computed again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("jax", "jaxlib", "flax", "numpy", "tokenizers", "gguf", "safetensors", "ml_collections", "grain")


# --- JSON lines -------------------------------------------------------------------------------------------------------
def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line per row, on the disk when this returns. Raises ValueError for NaN and infinity."""
    lines = [json.dumps(dict(row), allow_nan=False, ensure_ascii=False) for row in rows]
    with open(path, "a+b") as file:
        _cut_torn_line(file)
        file.write("".join(line + "\n" for line in lines).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All complete lines; [] if there is no file. Raises ValueError with the line number for a broken line."""
    if not path.exists():
        return []
    complete = path.read_bytes().rpartition(b"\n")[0]
    rows = []
    for number, line in enumerate(complete.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
    return rows


def _cut_torn_line(file: Any) -> None:
    """Cuts what follows the last newline off `file` (open for "a+b")."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


# --- whole files ------------------------------------------------------------------------------------------------------
def write_text(path: Path, text: str) -> None:
    """Writes the whole file or leaves the old one: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads one JSON file. Raises ValueError that names the file if it holds something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error


# --- configs ----------------------------------------------------------------------------------------------------------
def config_hash(config: Mapping[str, Any]) -> str:
    """12 hex digits over every field, so two configs that differ anywhere have different hashes."""
    text = json.dumps(plain(config), sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def plain(value: Any) -> Any:
    """`value` as it comes back from JSON: tuples become lists, keys become text."""
    return json.loads(json.dumps(value, allow_nan=False))


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two configs differ, each with both values."""
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{prefix}{key}.")
        elif key not in old or key not in new or a != b:
            found.append(f"{prefix}{key} (there {a!r}, now {b!r})")
    return found


def check_workdir(workdir: Path, config: Mapping[str, Any]) -> None:
    """Raises ValueError with the differing fields if the folder was made with another config; writes nothing."""
    path = workdir / "config.json"
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"--workdir={workdir} is a file, not a folder")
    differing = differing_keys(read_json(path), plain(config)) if path.exists() else []
    if differing:
        raise ValueError(
            f"{workdir} was made with another config; differing: {'; '.join(differing)}. "
            "Give another --workdir, or leave it out to get one of its own"
        )


def open_workdir(workdir: Path, config: Mapping[str, Any]) -> None:
    """Creates the run folder and writes config.json, or checks that the folder was made with this very config.

    Raises ValueError with the differing fields if it was made with another one.
    """
    check_workdir(workdir, config)
    if not (workdir / "config.json").exists():
        write_json(workdir / "config.json", plain(config))


# --- where the numbers were made --------------------------------------------------------------------------------------
def git_commit(root: Path = ROOT) -> str:
    """Commit of the code, with "-dirty" if tracked or new files differ from it; "unknown" outside of a repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return "unknown"
    return commit + ("-dirty" if _git(root, "status", "--porcelain") else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def environment(root: Path = ROOT) -> dict[str, Any]:
    """Versions, device and commit of this process."""
    import jax  # here, so that reading a run folder never starts a device

    devices = jax.devices()
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if _installed(name)}
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(root),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": f"{len(devices)} x {devices[0].device_kind}" if devices else "none",
        "backend": jax.default_backend(),
        "versions": versions,
        "command": [word for word in sys.argv if not word.startswith("--workdir=")],  # nor whose folder it was
    }


def start_process(workdir: Path, **facts: Any) -> dict[str, Any]:
    """Adds this process, with facts about it, to env.json, which lists all that worked there; returns its entry."""
    entry = environment() | facts | {"wall_s": None}
    path = workdir / "env.json"
    earlier = read_json(path)["runs"] if path.exists() else []
    write_json(path, {"runs": [*earlier, entry]})
    return entry


def finish_process(workdir: Path, entry: Mapping[str, Any], seconds: float) -> None:
    """Writes how long the process of the last entry took."""
    earlier = read_json(workdir / "env.json")["runs"][:-1]
    write_json(workdir / "env.json", {"runs": [*earlier, {**entry, "wall_s": round(seconds, 1)}]})


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
