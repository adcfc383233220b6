"""From a dialogue config to checked settings and cells; nothing is loaded."""

from __future__ import annotations

import dataclasses

from ml_collections import config_dict

from experiments import plan, values
from nexus.tasks.dialogue import catalog, made
from nexus.tasks.dialogue.schema import Turn
from nexus.tasks.dialogue.script import HISTORIES, MODES

FIXED = {
    "question_mode": ("query_agnostic", "the cache was there before any question of a conversation"),
    "tail": ("counted", "turns live inside the budget, or it would not be one"),
}
Key = tuple[str, int, str, int, str]  # mode, length, method, budget, task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of the table: a cell of a plan in one mode."""

    mode: str
    base: plan.Cell

    @property
    def key(self) -> Key:
        return self.mode, *self.base.key

    @property
    def full(self) -> bool:
        return self.base.method == plan.FULL


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError or KeyError for anything that cannot run."""
    resolved = config_dict.ConfigDict(plan.resolve(config, _tasks).to_dict(), convert_dict=True)
    d, ev = resolved.dialogue, resolved.eval
    d.modes = values.names("dialogue.modes", d.modes, MODES)
    if d.history not in HISTORIES:
        raise ValueError(f"dialogue.history={d.history!r} is not known; allowed: {', '.join(HISTORIES)}")
    if d.questions < 1:
        raise ValueError(f"dialogue.questions={d.questions} is out of range: at least 1")
    for name, (value, why) in FIXED.items():
        if ev[name] != value:
            raise ValueError(f"eval.{name}={ev[name]!r}: dialogues are {value}, {why}")
    for task in ev.tasks:
        if not set(d.modes) & set(catalog.TASKS[task].modes):
            raise ValueError(
                f"dialogue.modes={','.join(d.modes)}: task {task} runs in {','.join(catalog.TASKS[task].modes)}"
            )
    if plan.FULL not in ev.methods and "mt_bench_101" in ev.tasks:
        raise ValueError("eval.methods lacks full: mt_bench_101 measures agreement with the full cache")
    return config_dict.FrozenConfigDict(resolved)


def cells(config: config_dict.FrozenConfigDict) -> list[Cell]:
    """All cells in the order they run: the full cache of a length first, on every task and in every mode."""
    return [
        Cell(mode=mode, base=cell)
        for cell in plan.cells(config)
        for mode in config.dialogue.modes
        if mode in catalog.TASKS[cell.task].modes
    ]


def limit(config: config_dict.FrozenConfigDict, turn: Turn) -> int:
    """Tokens an answer may take: the task's own limit, or the config's where that is shorter."""
    return min(config.eval.max_new_tokens or turn.max_new_tokens, turn.max_new_tokens)


def describe(config: config_dict.FrozenConfigDict) -> list[str]:
    """Plain lines for a person: what is about to run."""
    ev, d = config.eval, config.dialogue
    lines = [f"model {config.model.name}, {plan.num_examples(config.eval)} conversations per task, seed {ev.seed}"]
    lines.append(f"modes {', '.join(d.modes)}; history {d.history}; protocol {ev.protocol}")
    lines.append(f"tasks: {', '.join(ev.tasks)}")
    lines.append(f"methods: {', '.join(ev.methods)}")
    for length in ev.lengths:
        budgets = sorted(
            {cell.budget for cell in plan.cells(config) if cell.length == length and cell.method != "full"}
        )
        lines.append(f"length {length}: budget per layer and kv head {', '.join(map(str, budgets)) or 'full only'}")
    return lines


def _tasks(ev: config_dict.ConfigDict) -> tuple[str, ...]:
    """Dialogue tasks; "all" is every one that needs no files."""
    names = values.pieces(ev.tasks)
    found = values.names("eval.tasks", tuple(made.ROWS) if names == ("all",) else names, tuple(catalog.TASKS))
    catalog.check(found, ev.data_dir)
    return found
