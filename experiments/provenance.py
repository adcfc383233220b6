"""Where the numbers of a report were made: one line per process that worked on a run, and one for the tasks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def lines(processes: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """processes: of env.json, with `run` where several runs are joined; rows: of metrics.jsonl."""
    found = []
    for entry in processes:
        wall = "did not finish" if entry["wall_s"] is None else f"{entry['wall_s']:.0f} s"
        versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
        named = f"{entry['run']}, " if "run" in entry else ""
        found.append(
            f"{named}{entry['started']}: {wall}; {entry['device']}, {entry['cpus']} CPU cores, "
            f"Python {entry['python']}; commit `{entry['git_commit']}`; {versions}{_command(entry['command'])}"
        )
    wordings = {row["task"]: row["template_hash"] for row in rows}
    found.append(
        f"tokenizer `{rows[0]['tokenizer_hash'][:12]}`; wording of the tasks: "
        + ", ".join(f"{task} `{value[:8]}`" for task, value in wordings.items())
    )
    return found


def _command(argv: Sequence[str]) -> str:
    """What to type for the same run; nothing where the process was not begun by launch.py."""
    if not argv or Path(argv[0]).name != "launch.py":
        return ""
    return f"; `python launch.py {shlex.join(argv[1:])}`"
