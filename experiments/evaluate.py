"""Score against budget: every method at every budget on every task, the full cache first.

A run leaves config.json, env.json, predictions.jsonl (one line per example as it finishes), metrics.jsonl and
kept.jsonl (one line per cell), tokens.jsonl (what each cell kept of the first `eval.show_examples` examples of a task,
token by token), report.md, report.html, report.csv and figures/. Started again on the same folder it continues where it
stopped.
Where the full cache stays below `eval.full_floor`, the other methods are not run on that task: they would have nothing
to lose.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from ml_collections import config_dict

from experiments import folder, models, plan, report, rows
from experiments.folder import Folder
from experiments.plan import Cell
from experiments.progress import Progress
from nexus import answers, generate, record
from nexus.models.load import Model
from nexus.models.tokenizer import Tokenizer
from nexus.tasks import catalog
from nexus.tasks.example import Example, data_hash

Row = dict[str, Any]


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """Checks and fills in the config; nothing is loaded. Raises ValueError or KeyError."""
    return plan.resolve(config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Folder):
    """What every cell of a run shares."""

    config: config_dict.FrozenConfigDict
    model: Model
    settings: generate.Settings
    fields: Row  # the same in every row
    shown: set[tuple[tuple[int, str, int, str], int]]  # (cell, index) of the rows of tokens.jsonl that exist


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Runs what the folder still lacks, then writes the report."""
    # --- plan: whatever cannot run is refused here -------------------------------------------------------------------
    started, every = time.monotonic(), plan.asks_for_all(config)
    config = resolve(config)
    cells, settings = plan.cells(config), plan.settings(config)
    record.check_workdir(workdir, config.to_dict())
    print("\n".join(plan.describe(config)), flush=True)

    # --- model and examples ------------------------------------------------------------------------------------------
    model = models.load(config, eval__lengths=max(config.eval.lengths))
    cells = models.runnable(config, model, cells, every, told=True)
    tasks = sorted(config.eval.tasks, key=lambda name: not catalog.task_named(name).files)  # what may lack a file first
    wanted = itertools.product(tasks, config.eval.lengths)
    examples = {(task, length): _examples(config, model, task, length) for task, length in wanted}
    _check_told(config, model, cells, examples)
    data = {
        f"{task} at {length} tokens": data_hash(found)[: folder.DIGITS] for (task, length), found in examples.items()
    }
    folder.claim(workdir, config, model, data)  # only now: a refused model or length claims no folder
    left_out = [name for name in config.eval.methods if name not in {cell.method for cell in cells}]
    environment = record.start_process(workdir, left_out=left_out)
    fields = rows.shared_fields(config, model, environment["git_commit"])
    shown = {(_key(row), row["index"]) for row in record.read_rows(workdir / "tokens.jsonl")}
    this = Run(config=config, workdir=workdir, model=model, settings=settings, fields=fields, shown=shown)

    # --- cells -------------------------------------------------------------------------------------------------------
    done = {_key(row): row for row in this.rows("metrics")}
    answered: dict[tuple[int, str, int, str], dict[int, Row]] = {}
    for row in this.rows("predictions"):
        answered.setdefault(_key(row), {})[row["index"]] = row
    below_floor = {_task(row) for row in done.values() if _fails_floor(config, row)}
    with Progress(total=sum(len(examples[cell.task, cell.length]) for cell in cells)) as progress:
        for cell in cells:
            unfit = cell.method != plan.FULL and (cell.task, cell.length) in below_floor
            if unfit or cell.key in done:
                progress.skip(len(examples[cell.task, cell.length]))
                continue
            found = answered.get(cell.key, {})
            row = _fill(this, cell, examples[cell.task, cell.length], found, progress)
            if _fails_floor(config, row):
                below_floor.add(_task(row))

    # --- report ------------------------------------------------------------------------------------------------------
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(report.write(workdir), flush=True)


# --- one cell ---------------------------------------------------------------------------------------------------------
def _fill(this: Run, cell: Cell, examples: list[Example], found: dict[int, Row], progress: Progress) -> Row:
    """Answers the examples of a cell that are not in `found` (by index), writes its rows, returns its metrics row."""
    show = {example.index for example in examples[: this.config.eval.show_examples]}
    for batch in _batches(examples, this.config.eval.batch_size):
        if any(example.index not in found for example in batch):
            # The whole batch again, so that a continued run computes what an uninterrupted one does.
            answers, tokens = _answer(this, cell, batch, sum(example.index in show for example in batch))
            new = [row for row in answers if row["index"] not in found]
            if tokens := [row for row in tokens if (cell.key, row["index"]) not in this.shown]:
                this.append("tokens", tokens)
            this.append("predictions", new)  # last: what a kill leaves without these rows is computed again
            found = found | {row["index"]: row for row in new}
        progress.advance(len(batch))
    ordered = [found[example.index] for example in examples]
    data = data_hash(examples)[: folder.DIGITS]
    row = rows.metrics_row(cell, ordered, plan.suite_counts(this.config, cell.task), data)
    if plan.build(this.config, cell).scorer.foresees:
        row["told"] = True  # a control that knew the answers: the report says so
    this.append("kept", [rows.kept_row(cell, ordered)])
    this.append("metrics", [row])
    progress.row(row)
    return row


def _answer(this: Run, cell: Cell, batch: list[Example], num_shown: int) -> tuple[list[Row], list[Row]]:
    """One row of predictions per example of a batch, and one of tokens for the first `num_shown`."""
    ev, tokenizer = this.config.eval, this.model.tokenizer
    prompts = [_prompt(tokenizer, example, ev.question_mode) for example in batch]
    contexts, questions = [list(ids) for ids in zip(*prompts, strict=True)]
    own = batch[0].max_new_tokens
    limit = min(ev.max_new_tokens or own, own)  # never more than the task allows: the length counts the answer
    given = answers.answer_batch(
        this.model,
        plan.build(this.config, cell),
        this.settings,
        contexts,
        questions,
        limit,
        rng=jax.random.fold_in(jax.random.key(ev.seed), batch[0].index),
        capacity=plan.full_budget(this.config, cell.length),  # one for all batches: shapes, and programs, stay the same
        num_shares=num_shown,
        expected=[tokenizer.encode(example.golden) for example in batch],
    )
    texts = [tokenizer.decode(tokens) for tokens in given.tokens]
    answered = [
        rows.prediction_row(
            cell, example, given, i, text=texts[i], question_tokens=len(questions[i]), limit=limit, fields=this.fields
        )
        for i, example in enumerate(batch)
    ]
    shown = [
        rows.tokens_row(
            cell, batch[i], tokenizer.pieces(contexts[i]), shares, tokenizer.decode(questions[i], skip_special=False)
        )
        for i, shares in enumerate(given.shares)
    ]
    return answered, shown


def _prompt(tokenizer: Tokenizer, example: Example, question_mode: str) -> tuple[list[int], list[int]]:
    """(what the evictor has seen when it decides, what comes later). Turn end, header and prefix always come later."""
    context, question = example.context, example.question
    if question_mode == "query_aware":
        context, question = context + question, ""
    return tokenizer.prompt(context, question, example.answer_prefix, chat=example.chat)


def _batches(examples: list[Example], size: int) -> Iterator[list[Example]]:
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


# --- checks and files -------------------------------------------------------------------------------------------------
def _examples(config: config_dict.FrozenConfigDict, model: Model, task: str, length: int) -> list[Example]:
    """The samples of a task. Raises plan.ConfigError if they do not fit into the length, or their files are broken."""
    ev = config.eval
    try:
        request = catalog.Request(
            tokenizer=model.tokenizer,
            length=length,
            n=plan.num_examples(ev),
            seed=ev.seed,
            data_dir=ev.data_dir,
            ruler_source=ev.ruler_source,
            strict_upstream=ev.strict_upstream,
        )
        return catalog.examples(task, request)
    except ValueError as error:
        raise plan.of_task(task, length, error) from error


def _check_told(
    config: config_dict.FrozenConfigDict,
    model: Model,
    cells: list[Cell],
    examples: dict[tuple[str, int], list[Example]],
) -> None:
    """Raises plan.ConfigError where question and answer are longer than what a control can be told."""
    for cell in cells:
        scorer = plan.build(config, cell).scorer
        if not scorer.foresees:
            continue
        for example in examples[cell.task, cell.length]:
            question = _prompt(model.tokenizer, example, config.eval.question_mode)[1]
            try:
                scorer.told([0], [question], [model.tokenizer.encode(example.golden)])
            except ValueError as error:
                raise plan.ConfigError(f"method {cell.method!r}, {example.sample_id}: {error}") from error


def _fails_floor(config: config_dict.FrozenConfigDict, row: Row) -> bool:
    return row["method"] == plan.FULL and row["score"] < config.eval.full_floor


def _task(row: Row) -> tuple[str, int]:
    return row["task"], row["length"]


def _key(row: Row) -> tuple[int, str, int, str]:
    return row["length"], row["method"], row["budget"], row["task"]
