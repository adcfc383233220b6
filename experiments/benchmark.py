"""Ratios of speed and memory, measured side by side in one run: see configs/benchmark.py.

A run leaves config.json, results.jsonl (one line per case as it finishes), report.md and figures/ratios.png. Started
again on the same folder it measures the cases that are missing, and those whose packages have been installed since.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from experiments import folder, models, plan, values
from experiments.bench import cell, layout, memory, report, shared, speed, systems, theirs, timing
from experiments.bench.shared import Bench
from experiments.bench.timing import Measure
from nexus import methods, record
from nexus.models.config import DTYPES
from nexus.models.load import Model
from nexus.tasks import catalog

PARTS = ("prefill", "decode", "layout", "memory", "systems", "cell")
Key = tuple[str, str]  # part, case
Row = dict[str, Any]


# --- config -----------------------------------------------------------------------------------------------------------
def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError or KeyError for anything that cannot run; nothing is loaded."""
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    bench = config.bench
    for name, known in (("parts", PARTS), ("against", tuple(theirs.PACKAGES))):
        bench[name] = values.pieces(bench[name])
        for item in bench[name]:
            values.one_of(f"bench.{name}", item, known)
    built = [methods.build(name, budget=int(bench.budget)) for name in methods.names()]
    able = [method.name for method in built if not (method.full or method.scorer.foresees)]
    bench.systems = tuple(able) if values.pieces(bench.systems) == ("all",) else values.pieces(bench.systems)
    for name in bench.systems:
        values.one_of("bench.systems", name, tuple(able))
    if not 0 < bench.method_at_most < 1:
        raise ValueError(f"bench.method_at_most={bench.method_at_most} must be a share between 0 and 1")
    lists: tuple[str, ...] = ("lengths", "chunks", "batches", "spread", "memory_prompts", "memory_full")
    for name in lists:
        bench[name] = tuple(_number(f"bench.{name}", text) for text in values.pieces(bench[name]))
        if not bench[name]:
            raise ValueError(f"bench.{name} is empty")
    for name in ("budget", "repeats", "decode_steps", "evict_every", "cell_length", "cell_prompts", "cell_batch",
                 "cell_repeats"):  # fmt: skip
        _number(f"bench.{name}", bench[name])
    values.one_of("model.dtype", config.model.dtype, DTYPES)
    values.one_of("bench.against_dtype", bench.against_dtype, theirs.DTYPES)
    values.one_of("bench.task", bench.task, tuple(catalog.TASKS))
    if not bench.parts:
        raise ValueError(f"bench.parts is empty; allowed: {', '.join(PARTS)}")
    if len(bench.spread) != 2 or not bench.spread[0] < bench.budget < bench.spread[1]:
        raise ValueError(f"bench.spread={bench.spread} must be two numbers around bench.budget={bench.budget}")
    if bench.cell_prompts % bench.cell_batch:
        raise ValueError(f"bench.cell_prompts={bench.cell_prompts} is no multiple of cell_batch={bench.cell_batch}")
    if bench.seed < 0:
        raise ValueError(f"bench.seed={bench.seed} is out of range: at least 0")
    for name in (bench.equal, bench.unequal):
        if methods.build(name, budget=bench.budget).full:
            raise ValueError(f"bench.equal and bench.unequal evict; {name!r} does not")
    return config_dict.FrozenConfigDict(config)


def _number(name: str, value: Any) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{name} takes whole numbers; got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name}={number} is out of range: at least 1")
    return number


# --- run --------------------------------------------------------------------------------------------------------------
def cases(bench: config_dict.FrozenConfigDict) -> dict[Key, Callable[[Bench], Measure]]:
    """(part, case) -> what builds its contenders, in the order they run."""
    found: dict[Key, Callable[[Bench], Measure]] = {}
    for length in bench.lengths:
        found["prefill", f"{length} tokens"] = functools.partial(speed.prefill, length=length)
    for batch in bench.batches:
        found["decode", f"batch {batch}"] = functools.partial(speed.decoding, batch=batch)
    for batch in bench.batches:
        chunk = f"chunk of {bench.chunks[0]}, batch {batch}"
        found["layout", chunk] = functools.partial(layout.chunk_step, batch=batch)
        found["layout", f"decode, batch {batch}"] = functools.partial(layout.decode_step, batch=batch)
    found["memory", "peak of prefill"] = memory.peak
    found["memory", "keys and values"] = memory.keys_and_values
    for name in bench.systems:
        found["systems", name] = functools.partial(systems.cost, name=name)
    found["cell", f"{bench.task}, {bench.cell_length} tokens, {bench.cell_prompts} prompts"] = cell.cell
    return {key: build for key, build in found.items() if key[0] in bench.parts}


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Measures what the folder still lacks, then writes the report."""
    config = resolve(config)
    record.check_workdir(workdir, config.to_dict())
    model = _load(config)
    folder.claim(workdir, config, model)  # only now: a refused model claims no folder
    results = workdir / "results.jsonl"
    why_not = {name: theirs.why_not(name, config.bench.against, model.config) for name in theirs.PACKAGES}
    for name, why in why_not.items():
        print(f"{name}: {why or 'compared with'}", flush=True)
    wanted = cases(config.bench)
    done = {_key(row) for row in report.latest(record.read_rows(results)) if not _can_now(row, why_not)}
    left = {key: build for key, build in wanted.items() if key not in done}
    if left:
        bench = _prepare(config, model, why_not)
        fields = _fields(config, model)
        for number, (key, build) in enumerate(left.items(), len(wanted) - len(left) + 1):
            label = f"[{number} of {len(wanted)}] {key[0]}, {key[1]}"
            record.append_rows(results, [_measure(key, build, bench, label) | fields])
    print(report.write(workdir), flush=True)


def _measure(key: Key, build: Callable[[Bench], Measure], bench: Bench, label: str) -> Row:
    print(f"{label}: compiling and warming up", flush=True)
    began = time.monotonic()
    measure = build(bench)
    samples = timing.take_turns(measure, lambda line: print(f"{label}: {line}", flush=True))
    row: Row = {
        "part": key[0],
        "case": key[1],
        "unit": measure.unit,
        "samples": samples,
        "summary": {name: timing.summary(found) for name, found in samples.items()},
        "ratios": timing.ratio_rows(measure, samples),
        "missing": dict(measure.missing),
        "facts": measure.facts(),
        "wall_s": round(time.monotonic() - began, 1),
    }
    for ratio in row["ratios"]:
        print(f"    {ratio['top']} / {ratio['bottom']}: {ratio['median']:.2f}", flush=True)
    return row


def _key(row: Row) -> Key:
    return row["part"], row["case"]


def _can_now(row: Row, why_not: dict[str, str]) -> bool:
    """Something was missing in this case that is there now."""
    packages = {theirs.NAME: "transformers", cell.PRESS: "kvpress"}
    return any(
        why.startswith(theirs.NOT_INSTALLED) and not why_not[packages[name]] for name, why in row["missing"].items()
    )


# --- what cases share -------------------------------------------------------------------------------------------------
def _load(config: config_dict.FrozenConfigDict) -> Model:
    bench = config.bench
    return models.load(
        config, bench__lengths=max(bench.lengths), bench__cell_length=bench.cell_length,
        bench__budget=2 * bench.budget + bench.decode_steps,
    )  # fmt: skip


def _prepare(config: config_dict.FrozenConfigDict, model: Model, why_not: dict[str, str]) -> Bench:
    bench = config.bench
    try:
        request = catalog.Request(
            tokenizer=model.tokenizer, length=bench.cell_length, n=bench.cell_prompts, seed=bench.seed
        )
        examples = catalog.examples(bench.task, request)
    except ValueError as error:
        raise plan.of_task(bench.task, bench.cell_length, error) from error
    other = theirs.build(model, bench.against_dtype) if not all(why_not.values()) else None
    return shared.Bench(cfg=bench, model=model, theirs=other, why_not=why_not, examples=examples)


def _fields(config: config_dict.FrozenConfigDict, model: Model) -> Row:
    """Fields that are the same in every row of a run."""
    environment = record.environment()
    versions = environment["versions"] | {package: _version(package) for package in theirs.PACKAGES["kvpress"]}
    return {
        "model": config.model.name,
        "dtype": model.config.dtype,
        "against_dtype": config.bench.against_dtype,
        "config_hash": record.config_hash(config.to_dict()),
        "environment": environment | {"machine": _machine(), "versions": versions},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return theirs.NOT_INSTALLED


def _machine() -> str:
    """The processor's name where the system tells it, else its architecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
