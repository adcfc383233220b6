"""All dialogue tasks that an evaluation can name: where their conversations come from and in which modes they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nexus.tasks.dialogue import longmemeval, made, mt_bench_101, scbench
from nexus.tasks.dialogue.schema import Conversation
from nexus.tasks.dialogue.script import MODES, MULTI_TURN, Tokenizer, shorten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Which conversations of a task: the first n at L = `length` tokens; `questions` for those that are made here."""

    tokenizer: Tokenizer
    length: int
    n: int
    seed: int
    questions: int = 5
    data_dir: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A row of the catalog.

    `files`: what must lie in `data_dir`, "" when nothing is needed. `line` turns (source_id, turn, prediction) into a
    line for an official scorer, where there is one.
    """

    name: str
    load: Callable[[Request], list[Conversation]]
    modes: tuple[str, ...] = MODES
    files: str = ""
    line: Callable[[str, int, str], Mapping[str, Any]] | None = None


def _made(name: str) -> Task:
    def load(r: Request) -> list[Conversation]:
        return [made.make(name, r.tokenizer, r.length, index, r.seed, r.questions) for index in range(r.n)]

    return Task(name=name, load=load)


def _scbench(name: str) -> Task:
    def load(r: Request) -> list[Conversation]:
        return [shorten(one, r.tokenizer, r.length) for one in scbench.load(r.data_dir, name, r.length, r.n)]

    return Task(name=name, load=load, files=f"{name}.jsonl ({scbench.LAYOUT})")


_ROWS = [
    *map(_made, made.ROWS),
    *map(_scbench, scbench.TASKS),
    Task(
        name=longmemeval.TASK, load=lambda r: longmemeval.load(r.data_dir, r.length, r.n), files="longmemeval.json",
        line=lambda source_id, turn, prediction: longmemeval.hypothesis(source_id, prediction),
    ),
    Task(
        name=mt_bench_101.TASK, load=lambda r: mt_bench_101.load(r.data_dir, r.length, r.n), modes=(MULTI_TURN,),
        files=mt_bench_101.FILE, line=mt_bench_101.reply,
    ),
]  # fmt: skip
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}


def task_named(name: str) -> Task:
    """The row of a task. ValueError with the allowed names for any other name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    return TASKS[name]


def check(tasks: tuple[str, ...], data_dir: str) -> None:
    """ValueError when a task is unknown or needs files and `data_dir` is no folder; names what must lie in it."""
    for task in tasks:
        needed = task_named(task).files
        if needed and not data_dir:
            raise ValueError(f"task {task} is read from files: set eval.data_dir to a folder with {needed}")
        if needed and not Path(data_dir).is_dir():
            raise ValueError(f"eval.data_dir={data_dir!r} is no folder; task {task} is read from {needed} in it")
