"""Two runs against each other, example by example, wherever both hold the same cell with the same samples.

The runs may differ in anything else (protocol, question mode, precision, options, commit, machine): that is what is
compared, and it is named. difference = mean over examples of (second - first), with the interval of
`nexus.metrics.paired_interval`; the mean over tasks as in `experiments.summary`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from experiments.joined import SETTING, samples
from experiments.summary import CellKey, Results, Row, in_mean, key, mean_over_tasks
from nexus import metrics, record

Answers = dict[tuple[str, int], Row]  # (task, index) -> row of predictions

NOTE = (
    "Example by example over the samples that both runs answered; [low, high] is a 95 % bootstrap interval of the mean "
    "difference. Answers changed: examples with another text, whatever their score."
)
MANY = 12  # differing settings that are named one by one
IGNORED = ("eval.methods", "eval.tasks", "eval.lengths", "eval.budgets", "eval.ratios")  # which cells there are


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One cell in both runs, or the mean over `task` = "mean of n". Scores and differences 0-100."""

    length: int
    method: str
    budget: int
    task: str
    first: float
    second: float
    difference: metrics.Interval
    num_examples: int  # of a mean: the fewest of its tasks
    changed: int  # examples whose answers are not the same text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """What two runs have in common."""

    first: str
    second: str
    differing: list[str]  # settings, each with both values
    lines: list[Line]
    other_samples: list[str]  # tasks both hold, with different samples: not compared


def compare(runs: Sequence[Results]) -> list[Pair]:
    """All pairs of runs that hold a cell in common, in the order of the runs; their own names of methods."""
    pairs = [_pair(first, second) for first, second in itertools.combinations(runs, 2)]
    return [pair for pair in pairs if pair.lines or pair.other_samples]


def remarks(pair: Pair) -> list[str]:
    """What a reader must know of a pair."""
    lines = ["the runs have the same settings"]
    if pair.differing:
        lines = [f"{pair.second} (now) differs from {pair.first} (there) in {'; '.join(pair.differing)}"]
    if pair.other_samples:
        lines.append(f"not compared, since the samples are not the same: {', '.join(pair.other_samples)}")
    return lines


def _pair(first: Results, second: Results) -> Pair:
    a, b = samples(first), samples(second)
    finished = {key(row) for row in second.rows}
    shared = [key(row) for row in first.rows if key(row) in finished]
    both = {at: a[at].keys() & b[at].keys() for at in a.keys() & b.keys()}
    same = {at: bool(indices) and all(a[at][i] == b[at][i] for i in indices) for at, indices in both.items()}
    other = list(dict.fromkeys(f"{task} at {length}" for length, _, _, task in shared if not same[task, length]))
    lines = _lines(first, second, [cell for cell in shared if same[cell[3], cell[0]]])
    return Pair(
        first=first.name, second=second.name, differing=_differing(first, second), lines=lines, other_samples=other
    )


def _differing(first: Results, second: Results) -> list[str]:
    a, b = ({name: run.rows[0].get(name) for name in (*SETTING, "git_commit")} for run in (first, second))
    methods = [m for m in first.config["eval"]["methods"] if m in second.config["eval"]["methods"]]
    one, other = (
        {section: run.config[section] for section in ("model", "eval", "cache")}
        | {"method": {name: run.config["method"].get(name, {}) for name in methods}}
        for run in (first, second)
    )
    seen = {*(f"eval.{name}" for name in SETTING), *IGNORED}
    settings = [text for text in record.differing_keys(one, other) if text.split(" ")[0] not in seen]
    found = record.differing_keys(a, b) + settings
    return [*found[:MANY], *([f"and {len(found) - MANY} more"] if len(found) > MANY else [])]


def _lines(first: Results, second: Results, cells: Sequence[CellKey]) -> list[Line]:
    """A line per cell; after the last task of a method and budget, one for the mean over tasks."""
    wanted, found = set(cells), []
    ours, theirs = (_answers(run, wanted) for run in (first, second))
    groups: dict[tuple[int, str, int], list[str]] = {}
    for length, method, budget, task in cells:
        groups.setdefault((length, method, budget), []).append(task)
    for (length, method, budget), tasks in groups.items():
        a: Answers = {}
        b: Answers = {}
        for task in tasks:
            own, other = ours[length, method, budget, task], theirs[length, method, budget, task]
            both = sorted(own.keys() & other.keys())
            a |= {(task, i): own[i] for i in both}
            b |= {(task, i): other[i] for i in both}
            found.append(_line((length, method, budget), task, [task], a, b))
        if len(tasks) > 1:
            found.append(_line((length, method, budget), f"mean of {len(in_mean(tasks))}", tasks, a, b))
    return found


def _line(entry: tuple[int, str, int], name: str, tasks: list[str], a: Answers, b: Answers) -> Line:
    at = [place for place in a if place[0] in tasks]
    a, b = {place: a[place] for place in at}, {place: b[place] for place in at}
    if len(tasks) == 1:
        difference = metrics.paired_interval([b[p]["score"] for p in at], [a[p]["score"] for p in at])
    else:
        difference = mean_over_tasks(b, tasks, a)
    return Line(
        length=entry[0], method=entry[1], budget=entry[2], task=name, first=mean_over_tasks(a, tasks).mean,
        second=mean_over_tasks(b, tasks).mean, difference=difference,
        num_examples=min(sum(place[0] == task for place in at) for task in tasks),
        changed=sum(a[p]["prediction"] != b[p]["prediction"] for p in at),
    )  # fmt: skip


def _answers(run: Results, wanted: set[CellKey]) -> dict[CellKey, dict[int, Row]]:
    found: dict[CellKey, dict[int, Row]] = {}
    for row in run.predictions:
        if key(row) in wanted:
            found.setdefault(key(row), {})[row["index"]] = row
    return found
