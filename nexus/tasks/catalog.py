"""All tasks that an evaluation can name: which set each belongs to, and where its samples come from.

A new set adds its rows here. `python -m nexus.tasks` prints the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from nexus.tasks import prepare, ruler, ruler_files
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.generated import Generated

GENERATED, FILES = "generated", "files"
SOURCES = (GENERATED, FILES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Which samples of a task: the first n at L = `length` tokens.

    `data_dir` is the folder of the user's files ("" for none). `ruler_source="files"` reads RULER's tasks from it
    (`<data_dir>/<task>/validation.jsonl`) instead of making them.
    """

    tokenizer: Tokenizer
    length: int
    n: int
    seed: int
    data_dir: str = ""
    ruler_source: str = GENERATED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A row of the catalog. `files` says what must lie in `data_dir`; "" when nothing is needed."""

    name: str
    suite: str
    max_new_tokens: int
    load: Callable[[Request], list[Example]]
    files: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A set of tasks that is reported as one. `size`: how many the published set has, 0 when it is ours alone."""

    title: str
    about: str
    size: int = 0


SUITES = {
    "ruler": Suite(title="RULER", about="needles, variable tracking, word counts, questions; our generators", size=13),
    "ours": Suite(title="tasks of ours", about="what RULER leaves out"),
}


def _generated(suite: str, row: Generated) -> Task:
    def load(request: Request) -> list[Example]:
        return prepare.examples(row, request.tokenizer, request.length, request.n, request.seed)

    return Task(name=row.name, suite=suite, max_new_tokens=row.max_new_tokens, load=load)


def _ruler(row: Generated) -> Task:
    made = _generated("ruler", row)

    def load(request: Request) -> list[Example]:
        if request.ruler_source == FILES:
            return ruler_files.load(request.data_dir, row.name, request.length, request.n)
        return made.load(request)

    return dataclasses.replace(made, load=load)


_ROWS = [_ruler(ruler.TASKS[name]) for name in ruler.PUBLISHED]
_ROWS += [_generated("ours", row) for name, row in ruler.TASKS.items() if name not in ruler.PUBLISHED]
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}


def task_named(name: str) -> Task:
    """The row of a task. ValueError with the allowed names for any other name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    return TASKS[name]


def examples(task: str, request: Request) -> list[Example]:
    """Samples of a task. ValueError when it is unknown, does not fit, or its files are missing or broken."""
    return task_named(task).load(request)


def check(tasks: tuple[str, ...], data_dir: str, ruler_source: str) -> None:
    """ValueError when a task is unknown or needs files and `data_dir` is no folder; names what must lie in it."""
    if ruler_source not in SOURCES:
        raise ValueError(f"eval.ruler_source={ruler_source!r} is not known; allowed: {', '.join(SOURCES)}")
    for task in tasks:
        row = task_named(task)
        from_files = ruler_source == FILES and row.suite == "ruler"
        needed = row.files or (f"{task}/validation.jsonl (made with NVIDIA/RULER)" if from_files else "")
        if needed and not data_dir:
            raise ValueError(f"task {task} is read from files: set eval.data_dir to a folder with {needed}")
        if needed and not Path(data_dir).is_dir():
            raise ValueError(f"eval.data_dir={data_dir!r} is no folder; task {task} is read from {needed} in it")
