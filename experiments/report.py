"""Turns a run folder into report.md, figures/ and a printed table. Reads the folder only: no model code, no device.

python -m experiments.report runs/llama_ruler-0123456789ab
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import figures
from experiments.summary import FULL, Results, Row, Summary, load, summaries, tasks_above_floor
from nexus import record
from nexus.metrics import Interval

MB = 1e6


def write(workdir: Path) -> str:
    """Writes report.md and figures/*.png; returns the score tables to print. Works on unfinished runs too."""
    results = load(workdir)
    sections, printed = [_header(results)], []
    for length in results.lengths:
        grid = summaries(results, length)
        sections += [f"## Length {length}", _floor(results, length)]
        printed += [f"length {length}", _floor(results, length)]
        if not grid:
            continue
        pictures = figures.write(workdir / "figures", results, length, grid)
        scores = _scores(results, length, grid)
        printed.append(scores)
        sections += [scores, *_notes(results, length, grid)]
        sections += [f"![{text}](figures/{name})" for name, text in pictures]
        sections += [f"### Cost at length {length}", _costs(grid), COST_NOTE]
    sections.append(_provenance(results))
    record.write_text(workdir / "report.md", "\n\n".join(filter(None, sections)) + "\n")
    return "\n".join([*filter(None, printed), f"report: {workdir / 'report.md'}"])


# --- sections ---------------------------------------------------------------------------------------------------------
def _header(results: Results) -> str:
    first, ev = results.rows[0], results.config["eval"]
    left_out = results.env["runs"][-1].get("left_out", [])
    methods = [method for method in ev["methods"] if method not in left_out]
    expected = sum(_grid_size(ev, method) for method in methods) * len(ev["lengths"]) * len(ev["tasks"])
    skipped = sum(
        (expected // len(ev["lengths"]) // len(ev["tasks"]) - 1) * len(tasks_above_floor(results, length)[1])
        for length in ev["lengths"]
    )
    missing = expected - skipped - len(results.rows)
    lines = [
        f"# {first['variant']}: {first['model']}",
        "",
        f"- {first['num_tasks']} of {first['num_tasks_published']} RULER tasks, variant `{first['variant']}`: "
        "made by this project's own generators, so not comparable with tables made from other files",
        f"- protocol `{first['protocol']}`, question `{first['question_mode']}`, tail `{first['tail']}`",
        f"- {first['num_examples']} examples per task, seed {first['seed']}, greedy decoding, {first['dtype']}",
        f"- config `{first['config_hash']}`, commit {', '.join(f'`{c}`' for c in _commits(results))}, "
        f"device {results.env['runs'][-1]['device']}",
        "- scores 0-100; [low, high] is a 95 % bootstrap interval over examples. With few examples it is rough, and "
        "where all examples score alike it has no width and says nothing",
    ]
    if left_out:
        lines.append(f"- left out, since this model has no trained or calibrated parts for them: {', '.join(left_out)}")
    if missing > 0:
        lines.append(f"- **unfinished**: {missing} of {expected - skipped} cells are missing; run the command again")
    return "\n".join(lines)


def _grid_size(ev: Row, method: str) -> int:
    return 1 if method == FULL else len(ev["budgets"]) + len(ev["ratios"])


def _floor(results: Results, length: int) -> str:
    _, failed = tasks_above_floor(results, length)
    floor = results.config["eval"]["full_floor"]
    return "\n".join(
        f"**{row['task']}: not compared.** The full cache scores {row['score']:.1f} there, "
        f"below the floor of {floor:g}."
        for row in failed
    )


def _scores(results: Results, length: int, grid: Sequence[Summary]) -> str:
    tasks, _ = tasks_above_floor(results, length)
    full = next((row for row in grid if row.method == FULL), None)
    head = ["method", "budget", *tasks, f"mean of {len(tasks)}", "minus full", "of full", "KV MB", "decode tok/s", "n"]
    body = []
    for row in grid:
        share = row.mean.mean / full.mean.mean if full and full.mean and full.mean.mean and row.mean else None
        body.append(
            [
                row.method,
                _budget(row),
                *(_cell(row.rows.get(task)) for task in tasks),
                _interval(row.mean),
                _interval(row.difference, sign="+"),
                "-" if share is None else f"{share:.0%}",
                _number(row.average("kv_bytes_allocated"), ".2f", MB),
                _number(row.average("decode_tokens_per_s"), ".1f"),
                str(min(r["num_examples"] for r in row.rows.values())),
            ]
        )
    return table(head, body)


COST_NOTE = (
    "Kept: entries per head after the context as a share of its tokens, mean and largest head. KV live: rows in use, "
    "mean; KV allocated: what the buffers take. Compile time is not part of the speeds. Null: empty answers. Cut: "
    "answers stopped by the token limit. Fill: smallest share of the length that a prompt uses."
)


def _costs(grid: Sequence[Summary]) -> str:
    head = ["method", "budget", "kept", "kept max", "KV live MB", "KV allocated MB", "peak MB", "prefill tok/s",
            "decode tok/s", "compile s", "null", "cut", "fill"]  # fmt: skip
    body = []
    for row in grid:
        rows = list(row.rows.values())
        body.append(
            [
                row.method,
                _budget(row),
                _number(row.average("kept_fraction_mean"), ".1%"),
                f"{max(r['kept_fraction_max'] for r in rows):.1%}",
                _number(row.average("kv_bytes_live"), ".2f", MB),
                _number(row.average("kv_bytes_allocated"), ".2f", MB),
                _number(row.average("peak_bytes"), ".0f", MB),
                _number(row.average("prefill_tokens_per_s"), ".0f"),
                _number(row.average("decode_tokens_per_s"), ".1f"),
                f"{sum(r['compile_s'] for r in rows):.1f}",
                str(sum(r["nulls"] for r in rows)),
                _number(row.average("truncated_share"), ".0%"),
                f"{min(r['fill_min'] for r in rows):.2f}",
            ]
        )
    return table(head, body)


def _notes(results: Results, length: int, grid: Sequence[Summary]) -> list[str]:
    """What a reader should know before believing the table."""
    notes = []
    for row in grid:
        if row.method == FULL:
            continue
        kept = row.average("kept_fraction_mean")
        if kept is not None and kept >= 0.999:
            notes.append(f"{row.label} evicted nothing before the answer: the budget holds the whole context.")
        elif row.same_answers:
            notes.append(f"{row.label} gives the full cache's answers word for word: check that it evicts.")
        if row.difference and row.difference.low > 0:
            notes.append(f"{row.label} scores above the full cache, beyond its interval: check the full cache.")
    low = [r for r in results.rows if r["length"] == length and r["fill_min"] < 0.95]
    for task in dict.fromkeys(r["task"] for r in low):
        notes.append(f"{task}: prompts fill less than 95 % of the length.")
    return ["\n".join(f"- note: {note}" for note in notes)] if notes else []


def _provenance(results: Results) -> str:
    lines = ["## Where the numbers were made", ""]
    for run in results.env["runs"]:
        wall = "did not finish" if run["wall_s"] is None else f"{run['wall_s']:.0f} s"
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines.append(
            f"- {run['started']}: {wall}; {run['device']}, {run['cpus']} CPU cores, Python {run['python']}; "
            f"commit `{run['git_commit']}`; {versions}"
        )
    first = results.rows[0]
    lines.append(
        f"- tokenizer `{first['tokenizer_hash'][:12]}`; wording of the tasks: "
        + ", ".join(
            f"{task} `{value[:8]}`" for task, value in {r["task"]: r["template_hash"] for r in results.rows}.items()
        )
    )
    return "\n".join(lines)


def _commits(results: Results) -> list[str]:
    return sorted({commit for row in results.rows for commit in row["git_commit"].split("+")})


# --- text -------------------------------------------------------------------------------------------------------------
def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns, so that it reads well unrendered too."""
    widths = [max(3, *(len(row[i]) for row in [head, *body])) for i in range(len(head))]
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join(line(cells) for cells in [head, rule, *body])


def _budget(row: Summary) -> str:
    if row.method == FULL:
        return "all"
    return f"{row.budget}" if row.ratio is None else f"{row.budget} ({row.ratio:g})"


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    low, high = (math.nan if row[name] is None else row[name] for name in ("score_low", "score_high"))
    return _interval(Interval(row["score"], low, high))


def _interval(interval: Interval | None, sign: str = "") -> str:
    if interval is None:
        return "-"
    if math.isnan(interval.low):
        return f"{interval.mean:{sign}.1f}"
    return f"{interval.mean:{sign}.1f} [{interval.low:{sign}.0f}, {interval.high:{sign}.0f}]"


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else format(value / unit, form)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m experiments.report RUN_FOLDER", file=sys.stderr)
        return 2
    try:
        print(write(Path(arguments[0])))
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
