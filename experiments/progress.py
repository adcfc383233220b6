"""One printed row per finished cell, and a bar with the time left where there is a terminal to draw it on."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.console import Console

HEADER = f"{'length':>6} {'method':<20} {'budget':>6} {'task':<16} {'score':>6}  {'95 % interval':<14} {'n':>3} " + (
    f"{'kept':>6} {'prefill':>9} {'decode':>9} {'left':>7}"
)


class Progress:
    """Counts examples. Use as a context manager: advance() per batch, row() per finished cell."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or make_console()
        self._total, self._done, self._fresh = total, 0, 0  # fresh: done by this process
        self._started = time.monotonic()
        columns = (bars.TextColumn("{task.completed:.0f} of {task.total:.0f} examples"), bars.BarColumn())
        self._bar = bars.Progress(
            *columns,
            bars.TextColumn("{task.fields[left]} left"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("examples", total=total, left="?")

    def __enter__(self) -> Progress:
        self._bar.start()
        self._print(HEADER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, count: int) -> None:
        """`count` examples were answered."""
        self._fresh += count
        self._move(count)

    def skip(self, count: int) -> None:
        """`count` examples need no answer: done by an earlier run, or below the floor."""
        self._move(count)

    def row(self, row: dict[str, Any]) -> None:
        """Prints a finished cell."""
        unknown = row["score_low"] is None
        interval = "-" if unknown else f"[{row['score_low']:.0f}, {row['score_high']:.0f}]"
        self._print(
            f"{row['length']:>6} {row['method']:<20} {row['budget']:>6} {row['task']:<16} {row['score']:>6.1f}  "
            f"{interval:<14} {row['num_examples']:>3} {row['kept_fraction_mean']:>6.1%} "
            f"{_rate(row['prefill_tokens_per_s'])} {_rate(row['decode_tokens_per_s'])} {self.left():>7}"
        )

    def left(self) -> str:
        """Time left at the pace of this process so far."""
        if not self._fresh:
            return "?"
        return time_left(self._started, self._fresh, self._total - self._done)

    def _move(self, count: int) -> None:
        self._done += count
        self._bar.update(self._task, completed=self._done, left=self.left())

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _rate(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.0f} t/s':>9}"


def make_console(quiet: bool = False) -> Console:
    """Where progress is printed: lines and a bar in a terminal, lines alone in a notebook or a file."""
    notebook = Console().is_jupyter
    return Console(soft_wrap=True, quiet=quiet, force_jupyter=False, force_terminal=False if notebook else None)


def time_left(started: float, done: int, rest: int) -> str:
    """Of `rest` pieces at the pace of the `done` ones since `started` (time.monotonic)."""
    minutes, seconds = divmod(round((time.monotonic() - started) / max(done, 1) * rest), 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m{seconds:02d}s"
