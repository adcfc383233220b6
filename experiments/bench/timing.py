"""Timings taken in turn (A B C A B C ...), so that a machine that slows down slows all contenders alike.

A ratio is formed turn by turn and summarised by its median, smallest and largest value. The first run of everything is
a warm-up and not counted.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Samples = dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """`top` over `bottom`, two names of contenders; `at_most`: what we allow ourselves, if anything."""

    top: str
    bottom: str
    at_most: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """What is run side by side. A contender takes the index of the turn and returns its sample in `unit`."""

    unit: str
    contenders: Mapping[str, Callable[[int], float]]
    ratios: Sequence[Ratio] = ()
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)  # contenders that cannot run, and why
    turns: int = 1
    group: int = 1  # this many turns make one sample, their sum
    warm_up: Callable[[], Any] | None = None  # None: every contender once
    facts: Callable[[], dict[str, Any]] = dict  # what else is known after the last turn


def take_turns(measure: Measure, tell: Callable[[str], None]) -> Samples:
    """Runs all contenders in turn; `tell` gets a line after each turn, with the time left of this measure."""
    if measure.warm_up is not None:
        measure.warm_up()
    else:
        for run in measure.contenders.values():
            run(0)
    raw: Samples = {name: [] for name in measure.contenders}
    began = time.monotonic()
    for turn in range(measure.turns):
        for name, run in measure.contenders.items():
            raw[name].append(run(turn))
        pace = (time.monotonic() - began) / (turn + 1)
        tell(f"turn {turn + 1} of {measure.turns}, {pace * (measure.turns - turn - 1):.0f} s left")
    size = measure.group
    return {name: [sum(x[i : i + size]) for i in range(0, len(x), size)] for name, x in raw.items()}


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Median, smallest, largest and number of samples."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "n": len(samples)}


def ratio_rows(measure: Measure, samples: Samples) -> list[dict[str, Any]]:
    """One row per ratio whose two sides were both measured."""
    found = []
    for ratio in measure.ratios:
        if {ratio.top, ratio.bottom} <= samples.keys():
            pairs = zip(samples[ratio.top], samples[ratio.bottom], strict=True)
            found.append(dataclasses.asdict(ratio) | summary([top / bottom for top, bottom in pairs]))
    return found
