"""report.csv: one row per cell with everything metrics.jsonl says of it, and one for each mean over tasks.

    kind    cell | mean (over the tasks of a length that are compared; `task` says of how many)
    table   number of the table in the report; rows of different tables do not belong together
    run     folder of the run; of a mean, of all its cells
    status  compared | not meaningful (the full cache stays below the floor on this task: nothing to lose; cells that
            were not run for this reason have a row without numbers) | repeated (an earlier run holds this cell: the
            tables show that one) | unfinished (a mean that lacks tasks)

Scores 0-100, fractions 0-1, bytes, tokens per second. Numbers are those of metrics.jsonl, not rounded further; a mean
has those of its cells that are the same in all, means of what was measured, and minus_<method>: the paired difference.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from experiments.boards import NOT_MEANINGFUL, ranks
from experiments.sections import Section
from experiments.summary import FULL, Row, Summary, in_mean, key, tasks_above_floor
from nexus.metrics import Interval

OWN = ("kind", "table", "run", "status")
MEASURED = ("kept_fraction_mean", "kept_fraction_max", "kv_bytes_allocated", "kv_bytes_live", "peak_bytes",
            "prefill_tokens_per_s", "decode_tokens_per_s", "truncated_share")  # fmt: skip
SUMMED = ("compile_s", "nulls")


def text(sections: Sequence[Section]) -> str:
    """The whole file."""
    rows = [row for number, section in enumerate(sections, 1) for row in _section(number, section)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    of_means = [name for name in names if name == "rank" or name.startswith("minus_")]
    fields = [*OWN, *(name for name in names if name not in (*OWN, *of_means)), *of_means]
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _section(number: int, section: Section) -> Iterable[Row]:
    results = section.results
    for part in section.parts:
        below = [row["task"] for row in tasks_above_floor(results, part.length)[1]]
        own = [row for row in results.rows if row["length"] == part.length]
        entries = list(dict.fromkeys((row["method"], row["budget"], row["ratio"]) for row in own))
        there = {key(row) for row in own}
        for row in own:
            status = NOT_MEANINGFUL if row["task"] in below else "compared"
            yield {"kind": "cell", "table": number, "status": status} | row
        for method, budget, ratio in entries:
            for task in below:
                if (part.length, method, budget, task) not in there:
                    yield _not_run(number, own[0], task, method, budget, ratio)
        place = ranks(part.grid)
        for summary in part.grid:
            yield _mean(number, summary, place.get((summary.method, summary.budget)))
    for row in results.repeated:
        yield {"kind": "cell", "table": number, "status": "repeated"} | row


def _not_run(number: int, like: Row, task: str, method: str, budget: int, ratio: float | None) -> Row:
    same = ("model", "dtype", "length", "protocol", "question_mode", "tail", "seed", "tokenizer_hash")
    return {"kind": "cell", "table": number, "status": NOT_MEANINGFUL, "task": task, "method": method,
            "budget": budget, "ratio": ratio, "num_examples": 0, **{name: like[name] for name in same}}  # fmt: skip


def _mean(number: int, summary: Summary, rank: int | None) -> Row:
    cells = list(summary.rows.values())
    common = {name: value for name, value in cells[0].items() if all(cell.get(name) == value for cell in cells)}
    for name in ("run", "config_hash", "git_commit"):
        common[name] = "+".join(dict.fromkeys(part for cell in cells for part in cell[name].split("+")))
    row = common | {name: summary.average(name) for name in MEASURED}
    row |= {name: sum(cell[name] for cell in cells) for name in SUMMED}
    for name, difference in {FULL: summary.difference, **summary.against}.items():
        row |= _difference(name, difference)
    mean = summary.mean
    return row | {
        "kind": "mean",
        "table": number,
        "status": "compared" if mean else "unfinished",
        "task": f"mean of {len(in_mean(list(summary.rows)))}",
        "num_examples": min(cell["num_examples"] for cell in cells),
        "score": mean.mean if mean else None,
        "score_low": _known(mean.low) if mean else None,
        "score_high": _known(mean.high) if mean else None,
        "rank": rank,
    }


def _difference(name: str, found: Interval | None) -> Row:
    mean, low, high = (found.mean, found.low, found.high) if found else (math.nan,) * 3
    return {f"minus_{name}": _known(mean), f"minus_{name}_low": _known(low), f"minus_{name}_high": _known(high)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
