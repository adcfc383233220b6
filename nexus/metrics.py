"""Scores of predictions, and intervals for their means.

`string_match_all` and `string_match_part` give shares in [0, 1]; `score` and everything reported is in [0, 100].
RULER's rules (NVIDIA/RULER), with control characters replaced by newlines as there: deleting them glues digits of two
lines into one number (NVIDIA/kvpress).
"""

from __future__ import annotations

import collections
import dataclasses
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nexus import longbench_rules

if TYPE_CHECKING:
    from nexus.tasks.example import Example

RESAMPLES = 10_000
_CONTROL = re.compile(r"[\x00-\x1f]")
_FIRST_SENTENCE_END = re.compile(r"\.|<context>|<example>")
_WORD = re.compile(r"[^\W_]+")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


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


def key_phrases(prediction: str, phrases: Sequence[str]) -> float:
    """The share of key phrases found once both are in lower case with single blanks: in [0, 1].

    A phrase lists its accepted paraphrases with "|" between them: "dawn|sunrise".
    """
    text = " ".join(prediction.lower().split())
    return sum(any(_found(text, phrase.split("|"))) for phrase in phrases) / len(phrases)


def rouge1_recall(prediction: str, reference: str) -> float:
    """The share of the reference's words, as a multiset, that the prediction has: in [0, 1].

    ROUGE-1 (Lin 2004), recall; words are runs of letters and digits in lower case, not stemmed.
    """
    ours, theirs = (collections.Counter(_WORD.findall(text.lower())) for text in (prediction, reference))
    return (ours & theirs).total() / theirs.total()


def only_label(prediction: str, question: str, target: str, labels: Sequence[str]) -> float:
    """1.0 when the target is the only label that the first sentence names, besides those of the question; else 0.0.

    The strict rule of BABILong (booydar/babilong): lower case; up to the first full stop and to any context or example
    tag; labels as substrings; a target with commas and more than 3 characters asks for all its parts and no more.
    """
    if not labels or not target:
        raise ValueError(f"labels are {labels!r} and the target is {target!r}; expected at least one, and one of them")
    said = _FIRST_SENTENCE_END.split(prediction.lower(), maxsplit=1)[0]
    named = {label.lower() for label in labels if label.lower() in said and label.lower() not in question.lower()}
    several = "," in target and len(target) > 3
    return float(named == set(target.lower().split(",") if several else [target.lower()]))


def _best(rule: Callable[[str, str], float]) -> Callable[[str, Example], float]:
    """The score against the accepted answer that gives the most."""
    return lambda prediction, example: max(rule(prediction, reference) for reference in example.references)


def _named(strict_upstream: bool) -> Callable[[str, Example], float]:
    return lambda prediction, example: max(
        longbench_rules.classification(prediction, reference, example.choices, strict_upstream)
        for reference in example.references
    )


RULES: dict[str, Callable[[str, Example], float]] = {
    "all": lambda prediction, example: string_match_all(prediction, example.references),
    "part": lambda prediction, example: string_match_part(prediction, example.references),
    "babi": lambda prediction, example: only_label(
        prediction, example.question, example.references[0], example.choices
    ),
    "key_phrases": lambda prediction, example: key_phrases(prediction, example.references[1:]),  # [0]: the sentence
    "f1": _best(lambda prediction, reference: token_f1(prediction, reference)),
    "rouge_l": _best(longbench_rules.rouge_l),
    "classification": _named(strict_upstream=False),
    "classification_upstream": _named(strict_upstream=True),
    "count": _best(longbench_rules.count),
    "retrieval": _best(longbench_rules.retrieval),
    "edit": _best(longbench_rules.edit_similarity),
}
# Scores that stand beside the one of a rule, by the field of the row that holds them.
BESIDE: dict[str, dict[str, Callable[[str, Example], float]]] = {
    "key_phrases": {"rouge1_recall": lambda prediction, example: rouge1_recall(prediction, example.references[0])},
}


def score(example: Example, prediction: str) -> float:
    """The score of one prediction in [0, 100], by the example's own rule."""
    scored = longbench_rules.first_line(prediction) if example.first_line else prediction
    return 100.0 * RULES[example.metric](scored, example)


def beside(example: Example, prediction: str) -> dict[str, float]:
    """The further scores of one prediction in [0, 100], by field name; empty for most rules."""
    return {name: 100.0 * rule(prediction, example) for name, rule in BESIDE.get(example.metric, {}).items()}


def normalised(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks (the rule of SQuAD, LongBench and others)."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def token_f1(prediction: str, reference: str) -> float:
    """F1 of the words of two normalised texts, as multisets, in [0, 1]; 0 without a common word."""
    ours, theirs = normalised(prediction).split(), normalised(reference).split()
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def nulls(predictions: Iterable[str]) -> int:
    """How many predictions are empty once cleaned."""
    return sum(not clean(prediction) for prediction in predictions)


def mean_interval(values: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean with a percentile bootstrap interval; the same values and seed give the same interval.

    Equal values give an interval of no width, however few they are. ValueError when there are none, one is not finite,
    or `confidence` is not inside (0, 1).
    """
    return group_interval([values], confidence, seed)


def group_interval(groups: Sequence[Sequence[float]], confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean of the groups' means, groups weighed alike whatever their sizes; each group is resampled by itself.

    A group of one value leaves the limits unknown. ValueError as `mean_interval`, for every group.
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in groups]
    for array, values in zip(arrays, groups, strict=True):
        if array.ndim != 1 or not array.size or not np.isfinite(array).all():
            raise ValueError(f"expected a non-empty list of finite numbers, got {values!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; expected a share between 0 and 1, such as 0.95")
    mean = float(np.mean([array.mean() for array in arrays]))
    if any(array.size == 1 for array in arrays):
        return Interval(mean, float("nan"), float("nan"))
    rng = np.random.Generator(np.random.Philox(seed))
    drawn = np.mean([_resampled(array, rng) for array in arrays], axis=0)
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(mean, float(low), float(high))


def _resampled(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means of RESAMPLES draws with replacement."""
    counts = rng.multinomial(array.size, np.full(array.size, 1 / array.size), size=RESAMPLES)
    return counts @ array / array.size


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
