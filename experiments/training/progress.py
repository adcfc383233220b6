"""One printed line per few steps, with the time left; a bar where there is a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich import progress as bars

from experiments.progress import make_console, time_left

EVERY = 5  # steps between two printed lines


class Steps:
    """Counts steps; a context manager."""

    def __init__(self, total: int, done: int, quiet: bool = False) -> None:
        self._console = make_console(quiet)
        self._total, self._done, self._fresh, self._started = total, done, 0, time.monotonic()
        self._bar = bars.Progress(
            bars.TextColumn("{task.completed:.0f} of {task.total:.0f} steps"), bars.BarColumn(),
            bars.TextColumn("{task.fields[left]} left"), console=self._console, transient=True,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("steps", total=total, completed=done, left="?")

    def __enter__(self) -> Steps:
        self._bar.start()
        names = ("loss", "kl", "ntp", "teacher", "cap", "alive")
        self.note(f"{'step':>6} {' '.join(f'{name:>7}' for name in names)} {'s':>6} {'left':>8}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, row: dict[str, Any]) -> None:
        """A step was done."""
        self._done, self._fresh = self._done + 1, self._fresh + 1
        self._bar.update(self._task, completed=self._done, left=self.left())
        if row["step"] % EVERY == 0 or self._done == self._total:
            parts = ("kl", "ntp", "teacher_ntp", "cap", "alive")  # the first stage has none of them
            told = " ".join(f"{row[name]:>7.3f}" if name in row else f"{'-':>7}" for name in parts)
            self.note(f"{row['step']:>6} {row['loss']:>7.3f} {told} {row['seconds']:>6.1f} {self.left():>8}")

    def left(self) -> str:
        """Time left at the pace of this process so far."""
        return time_left(self._started, self._fresh, self._total - self._done)

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
