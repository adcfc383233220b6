"""Dilution: attention on useful entries, on synthetic logits and in a model, and how attention ages.

See configs/dilution.py. A run leaves config.json, env.json, theory.jsonl (synthetic logits), pilots.jsonl (which heads
retrieve), predictions.jsonl and metrics.jsonl (the model, sample by sample and cell by cell), decay.jsonl (one line per
text), report.md and figures/. Started again on the same folder it does what is missing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import config_dict

from experiments import essay_pieces, folder, models, plan, rows, values
from experiments.dilute import cells, decay, needle, report, theory
from experiments.folder import Folder
from experiments.plan import Cell, ConfigError
from experiments.progress import time_left
from nexus import record
from nexus.models.load import Model
from nexus.scorers import Retention
from nexus.tasks import catalog
from nexus.tasks.example import Example

PARTS = ("theory", "model", "decay")
LEAST = {"useful": 1, "draws": 1, "kept": 1, "pilots": 1, "heads": 1, "text_length": 512, "texts": 1, "bins": 4}
LISTS = {"margins": float, "noises": float, "distractors": int, "separations": float}
ONLY = {"question_mode": "query_agnostic", "tail": "counted", "batch_size": 1, "full_floor": 0.0, "show_examples": 0,
        "ruler_source": "generated"}  # fmt: skip
NEEDLES = "niah_"  # tasks whose useful entries are known: one sentence each
Row = dict[str, Any]
Examples = dict[tuple[str, int], list[Example]]  # (task, length)


# --- config -----------------------------------------------------------------------------------------------------------
def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError or KeyError for anything that cannot run; nothing is loaded."""
    config = config_dict.ConfigDict(plan.resolve(config).to_dict(), convert_dict=True)
    d, ev = config.dilution, config.eval
    d.parts = values.pieces(d.parts)
    for part in d.parts:
        if part not in PARTS:
            raise ValueError(f"dilution.parts={part!r} is not known; allowed: {', '.join(PARTS)}")
    if not d.parts:
        raise ValueError(f"dilution.parts is empty; allowed: {', '.join(PARTS)}")
    for name, kind in LISTS.items():
        d[name] = _numbers(name, d[name], kind)
    for name, low in LEAST.items():
        if d[name] < low:
            raise ValueError(f"dilution.{name}={d[name]} is out of range: at least {low}")
    if min(d.noises) < 0 or min(d.distractors) < 1:
        raise ValueError(f"dilution.noises={d.noises} must be at least 0, dilution.distractors={d.distractors} 1")
    if d.text_length % (2 * decay.BLOCK):
        raise ValueError(f"dilution.text_length={d.text_length} is no multiple of {2 * decay.BLOCK}")
    for name, allowed in ONLY.items():
        if ev[name] != allowed:
            raise ValueError(f"eval.{name}={ev[name]!r} does not apply to this experiment; allowed: {allowed!r}")
    if plan.FULL not in ev.methods:
        raise ValueError(f"eval.methods lacks {plan.FULL!r}, the cache that says which heads retrieve")
    strange = [task for task in ev.tasks if not task.startswith(NEEDLES)]
    if strange:
        raise ValueError(f"eval.tasks={strange[0]!r} hides no needle; allowed: tasks that begin with {NEEDLES!r}")
    resolved = config_dict.FrozenConfigDict(config)
    for cell in plan.cells(resolved):
        if plan.build(resolved, cell).positions != "original":
            raise ValueError(f"method {cell.method!r}: positions must be 'original', so that entries can be looked at")
    return resolved


def _numbers(name: str, value: Any, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        found = tuple(kind(piece) for piece in values.pieces(value))
    except ValueError:
        raise ValueError(f"dilution.{name} takes numbers; got {value!r}") from None
    if not found or len(set(found)) < len(found):
        raise ValueError(f"dilution.{name}={found!r} must name at least one number, and none twice")
    return found


# --- run --------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Folder):
    """What the parts of a run share."""

    config: config_dict.FrozenConfigDict
    fields: Row  # the same in every row


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Does what the folder still lacks, then writes the report."""
    started, config = time.monotonic(), resolve(config)
    d = config.dilution
    record.check_workdir(workdir, config.to_dict())
    left = missing(config, workdir)
    model = _load(config) if {"model", "decay"} & left else None
    examples = _examples(config, model) if model and "model" in left else {}
    texts = (
        essay_pieces.pieces(model.tokenizer, "dilution", d.texts, d.text_length) if model and "decay" in left else []
    )
    gates = _gates(config, model) if model and texts else None
    folder.claim(workdir, config, model)  # only now: a refused model or sample claims no folder
    environment = record.start_process(workdir)
    commit = environment["git_commit"]
    own = {"seed": config.eval.seed, "config_hash": record.config_hash(config.to_dict()), "git_commit": commit}
    this = Run(config=config, workdir=workdir, fields=rows.shared_fields(config, model, commit) if model else own)
    if "theory" in left:
        _theory(this)
    if model and "model" in left:
        _pilots(this, model, examples)
        _cells(this, model, examples)
    if model and "decay" in left:
        _decay(this, model, texts, gates)
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(report.write(workdir), flush=True)


def missing(config: config_dict.FrozenConfigDict, workdir: Path) -> set[str]:
    """The parts that a folder lacks rows of."""
    d, found = config.dilution, lambda name: record.read_rows(workdir / f"{name}.jsonl")
    complete = {
        "theory": len({_setting(row) for row in found("theory")}) == len(d.margins) * len(d.noises),
        "model": len(found("metrics")) == len(plan.cells(config)),
        "decay": len(found("decay")) == d.texts,
    }
    return {part for part in d.parts if not complete[part]}


# --- synthetic logits -------------------------------------------------------------------------------------------------
def _theory(this: Run) -> None:
    """One setting per margin and noise, all with the same draws."""
    d, done = this.config.dilution, {_setting(row) for row in this.rows("theory")}
    for margin, noise in ((g, s) for g in d.margins for s in d.noises):
        if (margin, noise) in done:
            continue
        setting = theory.Setting(
            useful=d.useful, distractors=d.distractors, margin=margin, noise=noise, draws=d.draws, kept=d.kept,
            separations=d.separations,
        )  # fmt: skip
        this.append("theory", [row | this.fields for row in theory.simulate(setting, this.config.eval.seed)])
        print(f"[theory] margin {margin:g}, noise {noise:g}: {d.draws} draws", flush=True)


def _setting(row: Row) -> tuple[float, float]:
    return row["margin"], row["noise"]


# --- the model --------------------------------------------------------------------------------------------------------
def _pilots(this: Run, model: Model, examples: Examples) -> None:
    """Samples behind those that are reported: they say which heads retrieve."""
    ev, length = this.config.eval, min(this.config.eval.lengths)
    done = {(row["task"], row["index"]) for row in this.rows("pilots")}
    full = {cell.task: cell for cell in plan.cells(this.config) if (cell.length, cell.method) == (length, plan.FULL)}
    for task in ev.tasks:
        for example in examples[task, length][plan.num_examples(ev) :]:
            if (task, example.index) not in done:
                seen = _look(this, model, full[task], example)
                this.append("pilots", [cells.pilot_row(task, example.index, seen) | this.fields])
                print(f"[pilots] {example.sample_id}", flush=True)


def _cells(this: Run, model: Model, examples: Examples) -> None:
    """Sample by sample, and a row of metrics when a cell is complete."""
    n, wanted = plan.num_examples(this.config.eval), plan.cells(this.config)
    heads = cells.retrieval_heads(this.rows("pilots"), this.config.dilution.heads)
    found = {(*_cell(row), row["index"]): row for row in this.rows("predictions")}
    complete, began, fresh = {_cell(row) for row in this.rows("metrics")}, time.monotonic(), 0
    left = sum((*cell.key, index) not in found for cell in wanted for index in range(n))
    for cell in wanted:
        for example in examples[cell.task, cell.length][:n]:
            key = (*cell.key, example.index)
            if key in found:
                continue
            seen = _look(this, model, cell, example)
            text = model.tokenizer.decode(seen.said)
            found[key] = cells.prediction_row(cell, example, seen, text, this.fields)
            this.append("predictions", [found[key]])
            fresh, left = fresh + 1, left - 1
        if cell.key not in complete:
            row = cells.metrics_row(cell, [found[*cell.key, index] for index in range(n)], heads)
            this.append("metrics", [row])
            print(
                f"[model] {cell.length:>6} {cell.method:<18} {cell.task:<18} score {row['score']:>5.1f}, mass on the "
                f"needle {row['mass_useful']:.3f}, {time_left(began, fresh, left)} left", flush=True,
            )  # fmt: skip


def _look(this: Run, model: Model, cell: Cell, example: Example) -> needle.Look:
    config = this.config
    capacity = plan.full_budget(config, max(config.eval.lengths))  # one for all lengths: programs stay the same
    own = example.max_new_tokens
    return needle.look(
        model, plan.build(config, cell), plan.settings(config), needle.prompt_of(model, example, capacity),
        min(config.eval.max_new_tokens or own, own),
        jax.random.fold_in(jax.random.key(config.eval.seed), example.index), capacity,
    )  # fmt: skip


def _cell(row: Row) -> tuple[int, str, int, str]:
    return row["length"], row["method"], row["budget"], row["task"]


# --- attention by age -------------------------------------------------------------------------------------------------
def _decay(this: Run, model: Model, texts: list[list[int]], gates: Any) -> None:
    """One row per text: means over its queries, by bins of ages."""
    d, done = this.config.dilution, {row["text"] for row in this.rows("decay")}
    where, began, fresh = decay.bins(d.text_length, d.bins), time.monotonic(), 0
    for number, text in enumerate(texts):
        if number in done:
            continue
        found = decay.profile(model.config, model.params, jnp.asarray(text, jnp.int32), gates)
        curves = decay.curves({name: decay.binned(x, where) for name, x in found.items()})
        this.append("decay", [{"text": number, "tokens": len(text), "bins": where} | curves | this.fields])
        fresh += 1
        left = time_left(began, fresh, d.texts - number - 1)
        print(f"[decay {number + 1} of {d.texts}] {len(text)} tokens, {left} left", flush=True)


# --- what is loaded before the folder is claimed ----------------------------------------------------------------------
def _load(config: config_dict.FrozenConfigDict) -> Model:
    """The model. Raises ConfigError where it or what a method needs for it is missing."""
    model = models.load(
        config, eval__lengths=max(config.eval.lengths), dilution__text_length=config.dilution.text_length
    )
    heads = model.config.num_layers * model.config.num_heads
    if config.dilution.heads > heads:
        raise ConfigError(f"dilution.heads={config.dilution.heads} is more than the {heads} query heads of the model")
    models.runnable(config, model, plan.cells(config), every=False)
    return model


def _examples(config: config_dict.FrozenConfigDict, model: Model) -> Examples:
    """The samples of every task and length; behind those of the shortest length stand the pilots."""
    ev, found = config.eval, {}
    for task in ev.tasks:
        for length in ev.lengths:
            n = plan.num_examples(ev) + (config.dilution.pilots if length == min(ev.lengths) else 0)
            request = catalog.Request(tokenizer=model.tokenizer, length=length, n=n, seed=ev.seed)
            try:
                found[task, length] = catalog.examples(task, request)
            except ValueError as error:
                raise plan.of_task(task, length, error) from error
    return found


def _gates(config: config_dict.FrozenConfigDict, model: Model) -> Any:
    """The weights of the gates that are asked about the same tokens, None where none are named."""
    if not config.dilution.gates:
        return None
    try:
        return Retention(gates=config.dilution.gates).weights(model.config, model.params)
    except ValueError as error:
        raise ConfigError(f"dilution.gates={config.dilution.gates!r}: {error}") from error
