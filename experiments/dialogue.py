"""Many questions on one cache: conversations turn by turn, and many requests on one cached state.

See configs/dialogue.py. A run leaves config.json, env.json, predictions.jsonl (one line per answer, appended batch by
batch), metrics.jsonl (one line per cell: task, mode, method, budget, length), answers/ (lines for the official scorers
of LongMemEval and MT-Bench-101), report.md and figures/. Started again on the same folder it continues where it
stopped. The full cache runs first; where it stays below `eval.full_floor` the others are not run on that task and mode.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import config_dict

from experiments import folder, models, plan, rows
from experiments.folder import Folder
from experiments.plan import ConfigError
from experiments.progress import Progress
from experiments.talks import report, settings, turns
from experiments.talks import rows as talk_rows
from experiments.talks.settings import Cell
from nexus import generate, record
from nexus.models.load import Model
from nexus.tasks.dialogue import catalog, script
from nexus.tasks.dialogue.script import Script

Row = dict[str, Any]
Task = tuple[str, int, str]  # mode, length, task
resolve = settings.resolve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Folder):
    """What every cell of a run shares."""

    config: config_dict.FrozenConfigDict
    model: Model
    settings: generate.Settings
    scripts: dict[Task, list[Script]]
    fields: Row  # the same in every row


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Runs what the folder still lacks, then writes the report."""
    # --- plan: whatever cannot run is refused here -------------------------------------------------------------------
    started, every = time.monotonic(), plan.asks_for_all(config)
    config = resolve(config)
    record.check_workdir(workdir, config.to_dict())
    print("\n".join(settings.describe(config)), flush=True)

    # --- model and conversations -------------------------------------------------------------------------------------
    model = models.load(config, eval__lengths=max(config.eval.lengths))
    able = set(models.runnable(config, model, plan.cells(config), every))
    cells = [cell for cell in settings.cells(config) if cell.base in able]
    scripts = _scripts(config, model, cells)
    data = {
        f"{task} at {length} tokens ({mode})": folder.text_hash(found)
        for (mode, length, task), found in scripts.items()
    }
    folder.claim(workdir, config, model, data)  # only now: a refused model or file claims no folder
    left_out = [name for name in config.eval.methods if name not in {cell.base.method for cell in cells}]
    environment = record.start_process(workdir, left_out=left_out)
    fields = rows.shared_fields(config, model, environment["git_commit"])
    this = Run(
        config=config, workdir=workdir, model=model, settings=plan.settings(config), scripts=scripts, fields=fields
    )

    # --- cells -------------------------------------------------------------------------------------------------------
    done = {_key(row): row for row in this.rows("metrics")}
    answered: dict[settings.Key, dict[talk_rows.Place, Row]] = {}
    for row in this.rows("predictions"):
        answered.setdefault(_key(row), {})[row["index"], row["turn"]] = row
    below = {_task(row) for row in done.values() if _fails_floor(config, row)}
    with Progress(total=sum(len(scripts[_task_of(cell)]) for cell in cells)) as progress:
        for cell in cells:
            if cell.key in done or (not cell.full and _task_of(cell) in below):
                progress.skip(len(scripts[_task_of(cell)]))
                continue
            row = _fill(this, cell, answered, progress)
            if _fails_floor(config, row):
                below.add(_task(row))

    # --- report ------------------------------------------------------------------------------------------------------
    _write_lines(this)
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(report.write(workdir), flush=True)


# --- one cell ---------------------------------------------------------------------------------------------------------
def _fill(this: Run, cell: Cell, answered: dict[settings.Key, dict[talk_rows.Place, Row]], progress: Progress) -> Row:
    """Holds the conversations of a cell that are not in `answered`, writes its rows, returns its metrics row."""
    found = answered.setdefault(cell.key, {})
    full = next((answered[other] for other in answered if _same_task(other, cell.key)), {})
    scripts = this.scripts[_task_of(cell)]
    for batch in _batches(this, scripts):
        places = {(s.conversation.index, n) for s in batch for n in range(1, len(s.conversation.asked) + 1)}
        if places - found.keys():
            # The whole batch again, so that a continued run computes what an uninterrupted one does.
            talk = turns.converse(
                this.model, plan.build(this.config, cell.base), this.settings, batch,
                functools.partial(settings.limit, this.config),
                rng=jax.random.fold_in(jax.random.key(this.config.eval.seed), batch[0].conversation.index),
                capacity=max(plan.full_budget(this.config, cell.base.length), _needs(this.config, scripts)),
            )  # fmt: skip
            made = talk_rows.prediction_rows(cell, batch, talk, this.model.tokenizer, this.fields, full)
            new = [row for row in made if (row["index"], row["turn"]) not in found]
            this.append("predictions", new)
            found |= {(row["index"], row["turn"]): row for row in new}
        progress.advance(len(batch))
    row = talk_rows.metrics_row(cell, [found[place] for place in sorted(found)])
    this.append("metrics", [row])
    progress.row(
        row | {"task": f"{row['task']} {row['mode']}", "score": -1.0 if row["score"] is None else row["score"]}
    )
    return row


def _batches(this: Run, scripts: Sequence[Script]) -> Iterator[list[Script]]:
    """Conversations of one shape, at most batch_size together, in their order within a shape."""
    limit = functools.partial(settings.limit, this.config)
    groups: dict[Any, list[Script]] = {}
    for one in scripts:
        groups.setdefault(turns.shape(one, limit), []).append(one)
    size = this.config.eval.batch_size
    for group in groups.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


# --- checks -----------------------------------------------------------------------------------------------------------
def _scripts(config: config_dict.FrozenConfigDict, model: Model, cells: Sequence[Cell]) -> dict[Task, list[Script]]:
    """The conversations of every task, length and mode. Raises ConfigError for what does not fit or is malformed."""
    ev, d = config.eval, config.dialogue
    most = min(model.config.max_position, model.config.sliding_window or model.config.max_position)
    load = functools.cache(lambda task, length: catalog.task_named(task).load(
        catalog.Request(tokenizer=model.tokenizer, length=length, n=plan.num_examples(ev), seed=ev.seed,
                        questions=d.questions, data_dir=ev.data_dir)))  # fmt: skip
    found: dict[Task, list[Script]] = {}
    for mode, length, task in dict.fromkeys(map(_task_of, cells)):
        try:
            made = [script.render(one, model.tokenizer, mode, d.history) for one in load(task, length)]
        except ValueError as error:
            raise plan.of_task(task, length, error) from error
        if (needs := _needs(config, made)) > most:
            raise ConfigError(
                f"task {task}, {mode}: a conversation needs {needs} tokens, {config.model.name} takes {most}"
            )
        found[mode, length, task] = made
    return found


def _needs(config: config_dict.FrozenConfigDict, scripts: Sequence[Script]) -> int:
    return max(one.needs(functools.partial(settings.limit, config)) for one in scripts)


# --- files and keys ---------------------------------------------------------------------------------------------------
def _write_lines(this: Run) -> None:
    """answers/<task>-<mode>-<method>-<budget>-<length>.jsonl for tasks with an official scorer, whole files."""
    files: dict[str, list[str]] = {}
    for row in sorted(this.rows("predictions"), key=lambda row: (row["index"], row["turn"])):
        line = catalog.TASKS[row["task"]].line
        if line is not None:
            name = "-".join(str(row[part]) for part in ("task", "mode", "method", "budget", "length"))
            text = json.dumps(line(row["sample_id"], row["turn"], row["prediction"]), ensure_ascii=False)
            files.setdefault(name, []).append(text + "\n")
    for name, lines in files.items():
        record.write_text(this.workdir / "answers" / f"{name}.jsonl", "".join(lines))


def _fails_floor(config: config_dict.FrozenConfigDict, row: Row) -> bool:
    return row["method"] == plan.FULL and row["score"] is not None and row["score"] < config.eval.full_floor


def _key(row: Row) -> settings.Key:
    return row["mode"], row["length"], row["method"], row["budget"], row["task"]


def _task(row: Row) -> Task:
    return row["mode"], row["length"], row["task"]


def _task_of(cell: Cell) -> Task:
    return cell.mode, cell.base.length, cell.base.task


def _same_task(key: settings.Key, other: settings.Key) -> bool:
    """The full cache's cell of the same mode, length and task."""
    return key[2] == plan.FULL and (key[0], key[1], key[4]) == (other[0], other[1], other[4])
