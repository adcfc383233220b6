"""Scores of predictions, and intervals for their means.

`string_match_all` and `string_match_part` give shares in [0, 1]; `score` and everything reported is in [0, 100].
RULER's rules (NVIDIA/RULER), with control characters replaced by newlines as there: deleting them glues digits of two
lines into one number (NVIDIA/kvpress).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nexus.tasks.example import Example

RESAMPLES = 10_000
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean and its confidence limits; the limits are NaN where a single value leaves them unknown."""

    mean: float
    low: float
    high: float


def clean(prediction: str) -> str:
    """Strips, turns every control character into a newline, strips again."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """The share of references found in the prediction, ignoring case: in [0, 1], not all-or-nothing."""
    return sum(_found(clean(prediction), references)) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1.0 when any reference is found in the prediction, ignoring case, else 0.0."""
    return float(any(_found(clean(prediction), references)))


RULES: dict[str, Callable[[str, Example], float]] = {
    "all": lambda prediction, example: string_match_all(prediction, example.references),
    "part": lambda prediction, example: string_match_part(prediction, example.references),
}


def score(example: Example, prediction: str) -> float:
    """The score of one prediction in [0, 100], by the example's own rule."""
    return 100.0 * RULES[example.metric](prediction, example)


def nulls(predictions: Iterable[str]) -> int:
    """How many predictions are empty once cleaned."""
    return sum(not clean(prediction) for prediction in predictions)


def mean_interval(values: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean with a percentile bootstrap interval; the same values and seed give the same interval.

    Equal values give an interval of no width, however few they are. ValueError when there are none, one is not finite,
    or `confidence` is not inside (0, 1).
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"expected a non-empty list of finite numbers, got {values!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; expected a share between 0 and 1, such as 0.95")
    if array.size == 1:
        return Interval(float(array[0]), float("nan"), float("nan"))
    rng = np.random.Generator(np.random.Philox(seed))
    counts = rng.multinomial(array.size, np.full(array.size, 1 / array.size), size=RESAMPLES)
    tail = (1 - confidence) / 2
    low, high = np.quantile(counts @ array / array.size, [tail, 1 - tail])
    return Interval(float(array.mean()), float(low), float(high))


def paired_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean of a - b over the same samples, with its interval. ValueError when the lengths differ."""
    if len(a) != len(b):
        raise ValueError(f"paired scores of different length: {len(a)} and {len(b)}")
    return mean_interval([x - y for x, y in zip(a, b, strict=True)], confidence, seed)


def _found(prediction: str, references: Sequence[str]) -> list[bool]:
    if not references or not all(references):
        raise ValueError(f"references are {references!r}; expected at least one, and none empty")
    text = prediction.lower()
    return [reference.lower() in text for reference in references]
