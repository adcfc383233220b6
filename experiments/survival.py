"""Survival of entries over many evictions, top against reservoir: see configs/survival.py.

A run leaves config.json, env.json, survival.jsonl (one line per sampler and group of entries as they finish),
report.md and figures/survival.png. Started again on the same folder it runs the samplers that are missing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import config_dict

from experiments import essay_pieces, folder, models, values
from experiments.lifetimes import report, simulation, streams
from experiments.lifetimes.simulation import Setting
from nexus import methods, record
from nexus.models.config import DTYPES
from nexus.samplers import Reservoir, Sampler, Top

PARTS = ("simulation", "model")
METHOD = "nexus_sampling"
COUNTS = (
    "draws", "ages", "kept", "arrivals", "cohorts", "repeats", "length", "budget", "chunk", "texts", "rows",
)  # fmt: skip
Key = tuple[str, str, float]  # part, sampler, power
Row = dict[str, Any]


# --- config -----------------------------------------------------------------------------------------------------------
def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError or KeyError for anything that cannot run; nothing is loaded."""
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    s = config.survival
    s.parts = values.pieces(s.parts)
    for part in s.parts:
        if part not in PARTS:
            raise ValueError(f"survival.parts={part!r} is not known; allowed: {', '.join(PARTS)}")
    if not s.parts:
        raise ValueError(f"survival.parts is empty; allowed: {', '.join(PARTS)}")
    s.powers = tuple(_number("powers", power, float) for power in values.pieces(s.powers))
    for name in COUNTS:
        if _number(name, s[name], int) < 1:
            raise ValueError(f"survival.{name}={s[name]} is out of range: at least 1")
    for name in ("seed", "spread", "noise"):
        if s[name] < 0:
            raise ValueError(f"survival.{name}={s[name]} is out of range: at least 0")
    values.one_of("model.dtype", config.model.dtype, DTYPES)
    if s.length % s.chunk:
        raise ValueError(f"survival.length={s.length} is no multiple of chunk={s.chunk}")
    if -(-s.budget // s.chunk) + s.ages > s.length // s.chunk:
        raise ValueError(
            f"survival.length={s.length} is too short: filling budget={s.budget} and following entries over "
            f"ages={s.ages} evictions takes {(-(-s.budget // s.chunk) + s.ages) * s.chunk} tokens"
        )
    for sampler in samplers(s):
        method(s, sampler)
    return config_dict.FrozenConfigDict(config)


def _number(name: str, value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"survival.{name} takes numbers; got {value!r}") from None


def samplers(s: config_dict.FrozenConfigDict) -> list[Sampler]:
    """What is compared. Raises ValueError for a power or a number of draws out of range."""
    return [Top(), *(Reservoir(power=power, draws=s.draws, share_heads=True) for power in s.powers)]


def method(s: config_dict.FrozenConfigDict, sampler: Sampler) -> methods.Method:
    """Nexus Sampling with a sampler. Raises ValueError where the budget does not hold what it protects."""
    return methods.build(METHOD, budget=s.budget, sampler=sampler.name, **_fields(sampler))


def _fields(sampler: Sampler) -> Row:
    return {"power": sampler.power, "draws": sampler.draws} if isinstance(sampler, Reservoir) else {}


# --- run --------------------------------------------------------------------------------------------------------------
def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Runs what the folder still lacks, then writes the report."""
    started, config = time.monotonic(), resolve(config)
    s, results = config.survival, workdir / "survival.jsonl"
    record.check_workdir(workdir, config.to_dict())
    done = {_key(row) for row in record.read_rows(results)}
    wanted = [(part, sampler) for part in s.parts for sampler in samplers(s)]
    left = [(part, sampler) for part, sampler in wanted if (part, sampler.name, _power(sampler)) not in done]
    needed = any(part == "model" for part, _ in left)
    model = models.load(config, survival__length=s.length) if needed else None
    texts = essay_pieces.pieces(model.tokenizer, "survival", s.texts, s.length) if model else []
    folder.claim(workdir, config, model)  # only now: a refused model claims no folder
    environment = record.start_process(workdir)
    for number, (part, sampler) in enumerate(left, len(wanted) - len(left) + 1):
        name = f"reservoir, power {sampler.power:g}" if isinstance(sampler, Reservoir) else sampler.name
        where, began = f"[{number} of {len(wanted)}] {part}, {name}", time.monotonic()
        print(where, flush=True)
        if part == "simulation":
            curves = simulation.survival(sampler, setting(s), s.seed)
        else:
            assert model is not None  # loaded above for this part
            rows = s.rows if isinstance(sampler, Reservoir) else 1  # top draws nothing
            say = lambda line, where=where: print(f"{where}: {line}", flush=True)  # noqa: E731
            curves = streams.survival(model, method(s, sampler), texts, rows, s.chunk, s.ages, s.seed, say)
        record.append_rows(results, _rows(part, sampler, curves, time.monotonic() - began))
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(report.write(workdir), flush=True)


def setting(s: config_dict.FrozenConfigDict) -> Setting:
    """The simulation of a config."""
    return Setting(**{field.name: s[field.name] for field in dataclasses.fields(Setting)})


def _key(row: Row) -> Key:
    return row["part"], row["sampler"], row["power"]


def _power(sampler: Sampler) -> float:
    return sampler.power if isinstance(sampler, Reservoir) else 0.0


def _rows(part: str, sampler: Sampler, curves: dict[str, np.ndarray], seconds: float) -> Iterator[Row]:
    """One row per group: means over units [units,A] and their standard errors."""
    for group, units in curves.items():
        n = len(units)
        error = units.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(units.shape[1])
        yield {
            "part": part, "sampler": sampler.name, "power": _power(sampler), "draws": _fields(sampler).get("draws", 0),
            "group": group, "units": n, "survival": units.mean(axis=0).round(6).tolist(),
            "error": error.round(6).tolist(), "wall_s": round(seconds, 1),
        }  # fmt: skip
