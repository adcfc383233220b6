"""From a config to the list of cells to fill; everything that can be wrong with a config is refused here.

A cell is one (length, method, budget, task): one row of the table. Nothing is loaded to plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from ml_collections import config_dict

from experiments import values
from nexus import generate, methods
from nexus.models.config import ASKED
from nexus.tasks import catalog

FULL = "full"
QUESTION_MODES = ("query_agnostic", "query_aware")


class ConfigError(ValueError):
    """A config asks for what the loaded model cannot do."""


def of_task(task: str, length: int, error: Exception) -> ConfigError:
    """What is wrong with a task's samples; task and length are said once."""
    said = str(error)
    return ConfigError(said if said.startswith(f"task {task} ") else f"task {task} at length {length}: {said}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of the table. `ratio` is what the config asked for, None if it asked for an integer budget."""

    length: int  # tokens
    method: str
    budget: int  # kept entries per layer and kv head
    ratio: float | None
    task: str

    @property
    def key(self) -> tuple[int, str, int, str]:
        return self.length, self.method, self.budget, self.task


# --- config -----------------------------------------------------------------------------------------------------------
def single_prompt_tasks(ev: config_dict.ConfigDict) -> tuple[str, ...]:
    """Tasks of nexus/tasks/catalog.py. Raises ValueError for unknown ones and for files that are not there."""
    tasks = _tasks(ev.tasks)
    catalog.check(tasks, ev.data_dir, ev.ruler_source)
    return tasks


def resolve(
    config: config_dict.ConfigDict,
    tasks: Callable[[config_dict.ConfigDict], tuple[str, ...]] = single_prompt_tasks,
) -> config_dict.FrozenConfigDict:
    """The config with typed lists and "all" written out. Raises ValueError or KeyError for anything that cannot run.

    tasks: config.eval -> its tasks, checked; experiments with tasks of another catalog give their own.
    """
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    ev = config.eval
    ev.lengths = values.numbers("eval.lengths", ev.lengths, int, low=1)
    ev.budgets = values.numbers("eval.budgets", ev.budgets, int, low=0)
    ev.ratios = values.numbers("eval.ratios", ev.ratios, float, low=0.0, high=1.0)
    if 0.0 in ev.ratios:
        raise ValueError("eval.ratios=0 keeps nothing: a ratio lies above 0 and up to 1")
    ev.tasks = tasks(ev)
    ev.methods = values.names("eval.methods", ev.methods, methods.names())
    for name, low, high in (
        ("num_examples", 1, None),
        ("limit", 0, None),
        ("batch_size", 1, None),
        ("seed", 0, None),
        ("show_examples", 0, None),
        ("max_new_tokens", 0, None),
        ("full_floor", 0.0, 100.0),
    ):
        values.within(f"eval.{name}", ev[name], low, high)
    values.one_of("eval.question_mode", ev.question_mode, QUESTION_MODES)
    values.one_of("model.dtype", config.model.dtype, ("", *ASKED))
    if not config.model.name:
        raise ValueError("model.name is empty: give a preset, a path or a hub name")
    _check_grid(ev)
    resolved = config_dict.FrozenConfigDict(config)
    settings(resolved)
    for cell in cells(resolved):
        build(resolved, cell)
    return resolved


def asks_for_all(config: config_dict.ConfigDict) -> bool:
    """Whether the methods are "all", rather than named one by one."""
    return values.pieces(config.eval.methods) == ("all",)


def _check_grid(ev: config_dict.ConfigDict) -> None:
    if ev.budgets and ev.ratios:
        raise ValueError(
            f"eval.budgets={values.text(ev.budgets)} and eval.ratios={values.text(ev.ratios)} exclude each other; "
            "empty one of them, for example --config.eval.ratios="
        )
    if not ev.budgets and not ev.ratios and set(ev.methods) != {FULL}:
        raise ValueError("eval.budgets and eval.ratios are both empty: give one of them, or eval.methods=full alone")
    if ev.full_floor > 0 and FULL not in ev.methods:
        raise ValueError(
            f"eval.full_floor={ev.full_floor} needs the full cache, and eval.methods={values.text(ev.methods)} lacks "
            "it: add full, or set eval.full_floor=0"
        )
    for length in ev.lengths:
        budgets = [budget for budget, _ in _budgets(ev, length)]
        if len(set(budgets)) < len(budgets):
            given = values.text(ev.ratios)
            raise ValueError(f"eval.ratios={given} give the same budget twice at length {length}: {budgets}")


def settings(config: config_dict.FrozenConfigDict) -> generate.Settings:
    """The protocol of every cell. Raises ValueError with the allowed names."""
    return generate.Settings(
        protocol=config.eval.protocol,
        tail=config.eval.tail,
        chunk=config.cache.chunk,
        evict_every=config.cache.evict_every,
    )


def build(config: config_dict.FrozenConfigDict, cell: Cell) -> methods.Method:
    """The method of a cell. Raises ValueError if its parts do not fit the budget."""
    cache = config.cache
    try:
        return methods.build(
            cell.method,
            budget=cell.budget,
            num_sinks=cache.num_sinks,
            recent=cache.recent,
            min_per_head=cache.min_per_head,
            **config.method[cell.method].to_dict(),
        )
    except ValueError as error:
        text = str(error).removeprefix(f"method {cell.method!r}: ")
        raise ValueError(f"method {cell.method!r} at budget {cell.budget} (length {cell.length}): {text}") from error


# --- cells ------------------------------------------------------------------------------------------------------------
def cells(config: config_dict.FrozenConfigDict) -> list[Cell]:
    """All cells in the order they run: at each length the full cache on every task, then method by method."""
    ev, found = config.eval, []
    for length in ev.lengths:
        for method in sorted(ev.methods, key=lambda name: name != FULL):  # stable: full first, the others as given
            grid = [(full_budget(config, length), None)] if method == FULL else _budgets(ev, length)
            for budget, ratio in grid:
                found += [
                    Cell(length=length, method=method, budget=budget, ratio=ratio, task=task) for task in ev.tasks
                ]
    return found


def full_budget(config: config_dict.FrozenConfigDict, length: int) -> int:
    """Entries that hold prompt and answer, which the length counts both."""
    return math.ceil(length / config.cache.chunk) * config.cache.chunk


def _budgets(ev: config_dict.ConfigDict, length: int) -> list[tuple[int, float | None]]:
    if ev.ratios:
        return [(round(ratio * length), ratio) for ratio in ev.ratios]
    return [(budget, None) for budget in ev.budgets]


def suite_counts(config: config_dict.FrozenConfigDict, task: str) -> tuple[int, int]:
    """Of the set that a task belongs to: tasks in this run, and tasks of the published set (0 if it is ours)."""
    suite = catalog.task_named(task).suite
    tasks = sum(catalog.task_named(name).suite == suite for name in config.eval.tasks)
    return tasks, catalog.SUITES[suite].size


def num_examples(ev: config_dict.FrozenConfigDict) -> int:
    """Examples per task: eval.num_examples, at most eval.limit where there is one."""
    return min(ev.num_examples, ev.limit or ev.num_examples)


def describe(config: config_dict.FrozenConfigDict) -> list[str]:
    """Plain lines for a person: what is about to run; ratios with the budgets they become."""
    ev = config.eval
    limit = f" (of {ev.num_examples}: eval.limit={ev.limit})" if num_examples(ev) < ev.num_examples else ""
    lines = [f"model {config.model.name}, {num_examples(ev)} examples per task{limit}, seed {ev.seed}"]
    lines.append(f"protocol {ev.protocol}, {ev.question_mode}, tail {ev.tail}")
    for name, suite in catalog.SUITES.items():
        tasks = [task for task in ev.tasks if catalog.task_named(task).suite == name]
        count = f"{len(tasks)} of {suite.size} {suite.title} tasks" if suite.size else suite.title
        lines += [f"{count}: {', '.join(tasks)}"] if tasks else []
    lines.append(f"methods: {', '.join(ev.methods)}")
    for length in ev.lengths:
        grid = [f"{b} entries" + (f" (ratio {r:g})" if r is not None else "") for b, r in _budgets(ev, length)]
        lines.append(f"length {length}: budget per layer and kv head {', '.join(grid) or 'full only'}")
    return lines


# --- values -----------------------------------------------------------------------------------------------------------
def _tasks(value: Iterable[Any]) -> tuple[str, ...]:
    """Task names; the name of a set stands for its tasks, "all" for every task that needs no files."""
    found: list[str] = []
    for item in values.pieces(value):
        members = [name for name, task in catalog.TASKS.items() if task.suite == item]
        if item == "all":
            members = [name for name, task in catalog.TASKS.items() if not task.files]
        found += members or [item]
    known = [name for name in found if catalog.known(name)]
    values.names("eval.tasks", found, [*catalog.TASKS, *catalog.SUITES, *known])
    return values.unique("eval.tasks", found)
