"""report.md, metrics.jsonl, kinds.jsonl and figures/ of an ablation folder. Reads the folder alone; also unfinished."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.ablate import compare, figures, kinds
from experiments.ablate.compare import BASE, Entry
from experiments.boards import table
from experiments.summary import FULL, Results, Summary, in_mean, summaries, tasks_above_floor
from nexus import record
from nexus.metrics import Interval

Row = dict[str, Any]
SCORES_NOTE = (
    "Scores 0-100. In brackets 95 % bootstrap intervals over samples; minus base and minus full are paired, example by "
    "example. They know nothing of chance in the training: where there are variants that differ from base in the seed "
    "alone, their lines show it. Of many such intervals one in twenty misses 0 by chance."
)
TRAINING_NOTE = (
    "Mean over the last ten steps: KL of answers to the full cache and cross-entropy of answers (nats; teacher: of the "
    "full cache), expected entries per head."
)
KINDS_NOTE = (
    "Held: of the slots (layer, kv head) of such tokens, how many still hold them after the context, per cent; in "
    "brackets their part of all entries that are held. `experiments/ablate/kinds.py` says what the kinds are."
)


def write(workdir: Path) -> str:
    """Writes the files; returns the score tables to print. Raises ValueError for evaluations that do not fit."""
    config, lines = record.read_json(workdir / "config.json"), record.read_rows(workdir / "variants.jsonl")
    results = compare.merged(workdir / "evaluations" / FULL, {x["ablation"]: workdir / x["evaluation"] for x in lines})
    differences, found = compare.minus_base(results), list(compare.kinds_rows(results))
    _write_rows(workdir / "metrics.jsonl", compare.metrics_rows(results, differences))
    _write_rows(workdir / "kinds.jsonl", found)
    parts = [f"# Ablation of learned retention: {config['model']['name']}", _facts(workdir, config, results, lines)]
    trained = any(line["training"] for line in lines)
    parts += [_variants(lines), TRAINING_NOTE if trained else "", _remarks(lines)]
    tables = []
    for length in results.lengths:
        scores = _scores(results, length, differences)
        tables += [f"length {length}", scores]
        parts += [f"## Length {length}", _floor(results, length), scores, SCORES_NOTE, _kinds(found, length)]
        made = figures.write(workdir / "figures", results, length, differences, found)
        parts += [f"![{text}](figures/{name})" for name, text in made]
    record.write_text(workdir / "report.md", "\n\n".join(filter(None, parts)) + "\n")
    return "\n".join([*tables, f"report: {workdir / 'report.md'}"])


def _write_rows(path: Path, rows: Iterable[Row]) -> None:
    record.write_text(path, "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows))


# --- what was run -----------------------------------------------------------------------------------------------------
def _facts(workdir: Path, config: Row, results: Results, lines: Sequence[Row]) -> str:
    ev, train, first = config["eval"], config["train"], results.rows[0]
    runs = record.read_json(workdir / "env.json")["runs"]
    missing = [name for name in config["ablation"]["variants"] if name not in {line["ablation"] for line in lines}]
    commits = sorted({commit for row in results.rows for commit in row["git_commit"].split("+")})
    facts = [
        f"{first['num_examples']} examples per task, seed {ev['seed']} of samples; protocol `{first['protocol']}`, "
        f"question `{first['question_mode']}`, tail `{first['tail']}`, {first['dtype']}",
        f"trainings: {train['steps']} steps of {train['batch']} rows of {config['data']['row']} tokens, seed "
        f"{train['seed']}, unless a variant says otherwise",
        f"{BASE}: `{train['method']}`, gate {', '.join(f'{name} {value}' for name, value in config['gate'].items())}; "
        f"{config['loss']['sinks']} sinks",
        f"config `{record.config_hash(config)}`, commit {', '.join(f'`{commit}`' for commit in commits)}, device "
        f"{', '.join(dict.fromkeys(run['device'] for run in runs))}",
    ]
    if missing:
        facts.append(f"**unfinished**: {', '.join(missing)} are missing; run the command again")
    return "\n".join(f"- {fact}" for fact in facts)


def _variants(lines: Sequence[Row]) -> str:
    head = ["variant", "changes", "gates", "steps", "KL", "cross-entropy", "teacher", "entries", "hours"]
    body = []
    for line in lines:
        trained = line["training"] or {}
        numbers = [_number(trained.get(name), ".3f") for name in ("kl", "ntp", "teacher_ntp")]
        hours = _number(trained["seconds"] / 3600 if trained else None, ".2f")
        steps, alive = _number(trained.get("steps"), "d"), _number(trained.get("alive"), ".1f")
        body.append([line["ablation"], ", ".join(line["changes"]) or "-", line["gates"], steps, *numbers, alive, hours])
    return table(head, body)


def _remarks(lines: Sequence[Row]) -> str:
    """What makes the comparison with a variant unfair."""
    found = [
        f"- **{line['ablation']}**: its gates were given, and were trained otherwise than this config would: "
        f"{'; '.join(line['otherwise'])}"
        for line in lines
        if line["otherwise"]
    ]
    return "\n".join(found)


def _floor(results: Results, length: int) -> str:
    return "\n".join(
        f"- {row['task']} is not compared: the full cache scores {row['score']:.1f} there, below the floor of "
        f"{results.config['eval']['full_floor']:g}"
        for row in tasks_above_floor(results, length)[1]
    )


# --- tables -----------------------------------------------------------------------------------------------------------
def _scores(results: Results, length: int, differences: Mapping[tuple[Entry, str], Interval]) -> str:
    """The full cache, then budget by budget the variants in their order."""
    grid, tasks = summaries(results, length), tasks_above_floor(results, length)[0]
    head = ["variant", "budget", *tasks, f"mean of {len(in_mean(tasks))}", "minus base", "minus full", "n"]
    body = [
        [
            summary.method,
            _budget(summary),
            *(_score(summary.rows.get(task)) for task in tasks),
            _text(summary.mean),
            _text(differences.get(((length, summary.method, summary.budget), "")), "+"),
            _text(summary.difference, "+"),
            str(min((row["num_examples"] for row in summary.rows.values()), default=0)),
        ]
        for summary in sorted(grid, key=lambda row: (row.method != FULL, row.budget))  # stable: in their order
    ]
    return table(head, body)


def _kinds(found: Sequence[Row], length: int) -> str:
    rows = [row for row in found if row["length"] == length]
    if not rows:
        return ""
    at = {(row["ablation"], row["budget"], row["kind"]): row for row in rows}
    shown = [kind for kind in kinds.KINDS if any(row["kind"] == kind and row["tokens"] for row in rows)]
    first = rows[0]["ablation"], rows[0]["budget"]
    body = [["tokens per context", "", *(f"{at[*first, kind]['tokens']:.1f}" for kind in shown)]]
    for budget in sorted({row["budget"] for row in rows}):
        for name in compare.variants_of(rows):
            own = [at.get((name, budget, kind)) for kind in shown]
            if any(own):
                body.append([name, str(budget), *("-" if row is None else _held(row) for row in own)])
    head = ["variant", "budget", *(kinds.TITLES[kind] for kind in shown)]
    return "\n\n".join(["### Kinds of tokens", table(head, body), KINDS_NOTE])


def _held(row: Row) -> str:
    return "-" if row["held"] is None else f"{row['held']:.1f} ({row['entries']:.1f})"


def _budget(row: Summary) -> str:
    return "all" if row.method == FULL else f"{row.budget}" + ("" if row.ratio is None else f" ({row.ratio:g})")


def _score(row: Row | None) -> str:
    return "-" if row is None else f"{row['score']:.1f}"


def _text(interval: Interval | None, sign: str = "") -> str:
    if interval is None:
        return "-"
    limits = "" if math.isnan(interval.low) else f" [{interval.low:{sign}.1f}, {interval.high:{sign}.1f}]"
    return f"{interval.mean:{sign}.1f}{limits}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
