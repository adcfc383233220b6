"""Ablation of learned retention: variants trained one after another and compared with base; see configs/ablation.py.

A run leaves config.json, env.json, evaluations/full, then for each variant trainings/<name> (a folder of
experiments/train.py, unless its gates are given or another variant's) and evaluations/<name> (a folder of
experiments/evaluate.py); variants.jsonl (one line per finished variant), metrics.jsonl, kinds.jsonl, report.md and
figures/, which are written anew after every variant. Started again on the same folder it goes on where it stopped, in
the middle of a training too: the gates and scores are those of an uninterrupted run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import config_dict

from experiments import evaluate, folder, models, plan, train
from experiments.ablate import report, variants
from experiments.ablate.variants import FULL, Variant
from experiments.plan import ConfigError
from experiments.progress import time_left
from experiments.summary import load, tasks_above_floor
from experiments.training.report import SMOOTH
from nexus import gates, record, shipped
from nexus.models.load import Model

Row = dict[str, Any]
WRITTEN_LAST = "report.md"  # by a training and by an evaluation: it is finished
GATE_FIELDS = ("kind", "width", "tied", "activation", "normalised")  # of a gate's shape: given gates must have them
LAST = ("kl", "ntp", "teacher_ntp", "cap", "alive")  # of train.jsonl: their mean over the last steps is reported
resolve = variants.resolve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What all variants share."""

    config: config_dict.FrozenConfigDict
    workdir: Path
    found: list[Variant]

    def training(self, variant: Variant) -> Path:
        return self.workdir / "trainings" / variant.trained_as

    def gates(self, variant: Variant) -> str:
        """File, or name of shipped ones, of a variant's gates."""
        return variant.given or str(self.training(variant) / "gates.safetensors")


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Does what the folder still lacks; the report is written after every variant."""
    # --- plan: whatever cannot run is refused here -------------------------------------------------------------------
    started, config = time.monotonic(), resolve(config)
    this = Run(config=config, workdir=workdir, found=variants.of(config))
    record.check_workdir(workdir, config.to_dict())
    print("\n".join(_plan(this)), flush=True)
    model = models.load(config, eval__lengths=max(config.eval.lengths), data__row=config.data.row)
    otherwise = {variant.name: _otherwise(variant, model) for variant in this.found}
    folder.claim(workdir, config, model)  # only now: a refused model or gate file claims no folder
    del model  # every part loads its own
    environment = record.start_process(workdir)

    # --- the full cache: which tasks are worth comparing on ----------------------------------------------------------
    _evaluate(workdir / "evaluations" / FULL, variants.evaluation_of_full(config))
    tasks = _tasks(this)

    # --- variant by variant ------------------------------------------------------------------------------------------
    lines, told = workdir / "variants.jsonl", ""
    done = {row["ablation"] for row in record.read_rows(lines)}
    for number, (variant, left) in enumerate(zip(this.found, _time_left(this), strict=True), 1):
        if variant.name in done:
            continue
        where = f"[{number} of {len(this.found)}] {variant.name}"
        if not variant.given and not _finished(this.training(variant)):
            print(f"{where}: trains {variant.training.train.steps} steps{left}", flush=True)
            train.run(_thawed(variant.training), this.training(variant))
            if not _finished(this.training(variant)):
                print(f"{where}: the training was stopped; the same command goes on", flush=True)
                return
        print(f"{where}: evaluates {variant.method}", flush=True)
        evaluation = Path("evaluations") / variant.name
        _evaluate(workdir / evaluation, variants.evaluation(config, variant, this.gates(variant), tasks))
        record.append_rows(lines, [_line(this, variant, evaluation, otherwise[variant.name])])
        told = report.write(workdir)
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(told or report.write(workdir), flush=True)


def _plan(this: Run) -> list[str]:
    """Plain lines for a person: what is about to run."""
    lines = [f"model {this.config.model.name}; {len(this.found)} variants, base first"]
    for variant in this.found:
        source = f"gates {variant.given}" if variant.given else f"training {variant.trained_as}"
        lines.append(f"  {variant.name}: {', '.join(variant.changes) or 'nothing changed'}; {source}")
    return lines


def _time_left(this: Run) -> Iterator[str]:
    """For each variant a text: how many trainings come after those of this process, and how long they may take."""
    started, fresh = time.monotonic(), 0
    for i, variant in enumerate(this.found):
        rest = {this.training(v) for v in this.found[i:] if not v.given and not _finished(this.training(v))}
        known = f"about {time_left(started, fresh, len(rest))} left" if fresh else "time left known after the first"
        yield f"; {len(rest)} trainings to go, {known}"
        fresh += this.training(variant) in rest


# --- one variant ------------------------------------------------------------------------------------------------------
def _evaluate(folder: Path, config: config_dict.ConfigDict) -> None:
    """Runs an evaluation that is not finished."""
    if _finished(folder):
        record.check_workdir(folder, plan.resolve(config).to_dict())
    else:
        evaluate.run(config, folder)


def _finished(folder: Path) -> bool:
    return (folder / WRITTEN_LAST).exists()


def _tasks(this: Run) -> list[str]:
    """The tasks on which the full cache reaches the floor, at one length at least. Raises ConfigError without any."""
    full = load(this.workdir / "evaluations" / FULL)
    able = {task for length in full.lengths for task in tasks_above_floor(full, length)[0]}
    if not able:
        raise ConfigError(
            f"the full cache stays below eval.full_floor={this.config.eval.full_floor:g} on every task of "
            f"{', '.join(this.config.eval.tasks)}: there is nothing to compare"
        )
    return [task for task in this.config.eval.tasks if task in able]


def _line(this: Run, variant: Variant, evaluation: Path, otherwise: Sequence[str]) -> Row:
    """The row of variants.jsonl."""
    own = variant.trained_as == variant.name
    source = f"given: {variant.given}" if variant.given else "trained"
    return {
        "ablation": variant.name,
        "changes": list(variant.changes),
        "method": variant.method,
        "gates": source if own else f"of {variant.trained_as}",
        "otherwise": list(otherwise) if own else [],
        "training": _summary(record.read_rows(this.training(variant) / "train.jsonl"))
        if own and not variant.given
        else None,
        "evaluation": evaluation.as_posix(),
    }


def _summary(rows: Sequence[Row]) -> Row:
    """Of train.jsonl: number of steps, seconds, and means over the last steps of the last stage."""
    last = [row for row in rows[-SMOOTH:] if "kl" in row]
    means = {name: round(float(np.mean([row[name] for row in last])), 4) for name in LAST if last}
    return {"steps": len(rows), "seconds": round(sum(row["seconds"] for row in rows), 1)} | means


# --- gates that are given ---------------------------------------------------------------------------------------------
def _otherwise(variant: Variant, model: Model) -> list[str]:
    """In what the training of given gates differs from the one that the config asks for; [] where nothing is given.

    Raises ConfigError: there are no such gates, they belong to another model, or are not what the variant is about.
    """
    if not variant.given:
        return []
    try:
        shape, _ = gates.load(variant.given, model.config)
        path = shipped.find("ablation.gates", variant.given, model.config, gates.TRAINED_BY)
    except ValueError as error:
        raise ConfigError(f"gates of variant {variant.name!r}: {error}") from error
    asked = variant.training.gate.to_dict()
    if other := [f"{name} {getattr(shape, name)}" for name in GATE_FIELDS if getattr(shape, name) != asked[name]]:
        wanted = ", ".join(f"{name} {asked[name]}" for name in GATE_FIELDS)
        raise ConfigError(f"gates of variant {variant.name!r}: {path} has {', '.join(other)}; wanted {wanted}")
    about = shipped.read(path, "gates")[1]["about"]
    if "config" not in about:
        return ["unknown: the file does not say"]
    there, here = about["config"], record.plain(variant.training.to_dict())
    sections = [name for name in variants.TRAINED if name in there]  # fields that came later are not compared
    old = {name: {key: there[name][key] for key in there[name] if key in here[name]} for name in sections}
    return record.differing_keys(old, {name: {key: here[name][key] for key in old[name]} for name in sections})


def _thawed(config: config_dict.FrozenConfigDict) -> config_dict.ConfigDict:
    return config_dict.ConfigDict(config.to_dict(), convert_dict=True)
