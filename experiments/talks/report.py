"""report.md and figures/ of a dialogue folder. Reads config.json, env.json and metrics.jsonl only: no model code.

A task whose full cache stays below the floor is marked as not meaningful, and no other row of it is printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import provenance
from experiments.boards import table
from experiments.talks import figures
from experiments.talks.figures import Panel, label
from nexus import record

Row = dict[str, Any]
FULL = "full"
NOTE = (
    "Scores 0-100; [low, high] is a 95 % bootstrap interval over conversations. Turn: place among the questions. "
    "Distance: tokens between the end of the oldest place that the answer needs and the turn that asks. Kept: entries "
    "per head when an answer began, as a share of the tokens seen, mean. Held: most entries per head (mean over heads) "
    "at the end of a turn or an answer; while a piece is read a chunk comes on top."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A dialogue folder as it lies on the disk."""

    config: Row
    env: Row
    rows: list[Row]  # metrics.jsonl


def load(workdir: Path) -> Run:
    """Raises ValueError for a folder without a finished cell."""
    rows = record.read_rows(workdir / "metrics.jsonl")
    if not rows:
        raise ValueError(f"{workdir} holds no finished cell yet: metrics.jsonl is missing or empty")
    return Run(config=record.read_json(workdir / "config.json"), env=record.read_json(workdir / "env.json"), rows=rows)


def write(workdir: Path) -> str:
    """Writes report.md and figures/*.png; returns the tables to print. Works on unfinished runs too."""
    found = load(workdir)
    sections, printed = [_header(found), NOTE], []
    for length in found.config["eval"]["lengths"]:
        panels = _panels(found, length)
        if not panels:
            continue
        sections.append(f"## Length {length}")
        printed.append(f"length {length}")
        shown = []
        for panel in panels:
            sections.append(f"### {panel.title}")
            printed.append(panel.title)
            text = _floor(found, panel)
            if text:
                panel = dataclasses.replace(panel, rows=[row for row in panel.rows if row["method"] == FULL])
            else:
                shown.append(panel)
            tables = [text, _by_turn(panel), _missing(panel), _by_distance(panel), _measures(panel)]
            sections += tables
            printed += [text, _by_turn(panel), _by_distance(panel)]
        if shown:
            name = f"dialogue-{length}.png"
            figures.write(workdir / "figures" / name, found.config, f"{found.rows[0]['model']}, length {length}", shown)
            sections.append(f"![score against turn and distance, length {length}](figures/{name})")
    origin = [f"- {line}" for line in provenance.lines(found.env["runs"], found.rows)]
    sections += ["## Where the numbers were made", "\n".join(origin)]
    record.write_text(workdir / "report.md", "\n\n".join(filter(None, sections)) + "\n")
    return "\n".join([*filter(None, printed), f"report: {workdir / 'report.md'}"])


def _panels(found: Run, length: int) -> list[Panel]:
    """Rows of one task in one mode, in the order of the config; the full cache's first."""
    panels = []
    for task in found.config["eval"]["tasks"]:
        for mode in found.config["dialogue"]["modes"]:
            rows = [r for r in found.rows if (r["length"], r["task"], r["mode"]) == (length, task, mode)]
            if rows:
                panels.append(Panel(title=f"{task}, {mode}", rows=sorted(rows, key=lambda r: r["method"] != FULL)))
    return panels


# --- sections ---------------------------------------------------------------------------------------------------------
def _header(found: Run) -> str:
    first, d = found.rows[0], found.config["dialogue"]
    left_out = found.env["runs"][-1].get("left_out", [])
    variants = sorted({row["variant"] for row in found.rows})
    commits = sorted({commit for row in found.rows for commit in row["git_commit"].split("+")})
    lines = [
        f"# Dialogue: {first['model']}",
        "",
        f"- variants {_code(variants)}: wording and generators are this project's own; scb_* tasks look like tasks of "
        "SCBench and are not SCBench",
        f"- modes {_code(d['modes'])}; history `{d['history']}` (golden: given answers; own: the model's own. Numbers "
        "of the two do not compare)",
        f"- protocol `{first['protocol']}`, question `{first['question_mode']}`, tail `{first['tail']}`",
        f"- up to {max(row['num_examples'] for row in found.rows)} conversations per task, seed {first['seed']}, "
        f"greedy decoding, {first['dtype']}",
        f"- config `{first['config_hash']}`, commit {_code(commits)}, device {found.env['runs'][-1]['device']}",
    ]
    if left_out:
        lines.append(f"- left out, since this model has no trained or calibrated parts for them: {', '.join(left_out)}")
    return "\n".join(lines)


def _floor(found: Run, panel: Panel) -> str:
    floor, full = found.config["eval"]["full_floor"], panel.rows[0]
    if full["method"] != FULL or full["score"] is None or full["score"] >= floor:
        return ""
    return f"**Not meaningful**: the full cache scores {full['score']:.1f} here, below the floor of {floor:g}."


def _by_turn(panel: Panel) -> str:
    turns = sorted({group["group"] for row in panel.rows for group in row["by_turn"]})
    measure = panel.rows[0]["measure"] or "no score"
    head = ["method", "budget", measure, *(f"turn {turn}" for turn in turns), "kept", "held", "null", "cut", "n"]
    body = [
        [
            row["method"],
            "all" if row["method"] == FULL else str(row["budget"]),
            label(row),
            *_cells(row["by_turn"], turns),
            f"{row['kept_fraction_mean']:.1%}",
            f"{row['held_max']:.0f}",
            str(row["nulls"]),
            f"{row['truncated_share']:.0%}",
            str(row["num_examples"]),
        ]
        for row in panel.rows
    ]
    return table(head, body)


def _by_distance(panel: Panel) -> str:
    buckets = figures.buckets(panel)
    if not buckets:
        return ""
    counts = {group["group"]: group["num_answers"] for group in panel.rows[0]["by_distance"]}
    head = ["method", "budget", *(f"{bucket} tok (n={counts.get(bucket, 0)})" for bucket in buckets)]
    body = [
        [
            row["method"],
            "all" if row["method"] == FULL else str(row["budget"]),
            *_cells(row["by_distance"], buckets),
        ]
        for row in panel.rows
    ]
    return table(head, body)


def _cells(groups: Sequence[Row], wanted: Sequence[Any]) -> list[str]:
    by_group = {group["group"]: group for group in groups}
    return [label(by_group[group]) if group in by_group else "-" for group in wanted]


def _measures(panel: Panel) -> str:
    """Further measures, where a rule gives more than one."""
    names = list(panel.rows[0]["measures"])
    if len(names) < 2:
        return ""
    number = lambda value, form: "-" if value is None else format(value, form)  # noqa: E731
    body = [
        [
            row["method"],
            *(number(row["measures"].get(name), ".1f") for name in names),
            number(row["reference_log_prob"], ".3f"),
        ]
        for row in panel.rows
    ]
    return table(["method", *names, "log p of reference (nats per token)"], body)


def _missing(panel: Panel) -> str:
    full = panel.rows[0]
    missing = full["num_answers"] - full["num_scored"]
    cut = full["cut_share_max"]
    notes = [f"{missing} of {full['num_answers']} answers have no rule here: missing, not 0."] if missing else []
    notes += [f"Contexts were cut in the middle to fit: up to {cut:.0%} of one is gone."] if cut else []
    return "\n".join(f"- note: {note}" for note in notes)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
