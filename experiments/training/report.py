"""The report of a training: loss curves, and what the small evaluations said. Reads the run folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nexus import record

PANELS = (
    (("ntp", "teacher_ntp"), "cross-entropy of answers (nats)"),
    (("kl", "context_kl"), "KL to the full cache (nats)"),
    (("cap",), "capacity hinge"),
    (("alive",), "expected entries per head"),
)
STYLES = (("#0072b2", "-"), ("#d55e00", "--"))
SMOOTH = 10  # steps
Row = dict[str, Any]


def write(workdir: Path) -> str:
    """Writes report.md and figures/loss.png; returns the report's path."""
    rows, config = record.read_rows(workdir / "train.jsonl"), record.read_json(workdir / "config.json")
    dev = record.read_rows(workdir / "dev.jsonl") if (workdir / "dev.jsonl").exists() else []
    (workdir / "figures").mkdir(exist_ok=True)
    _figure(rows, config).savefig(workdir / "figures" / "loss.png", dpi=150)
    record.write_text(workdir / "report.md", _text(workdir, rows, dev, config))
    return f"report: {workdir / 'report.md'}"


def _figure(rows: list[Row], config: Row) -> Figure:
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    title = f"{config['train']['method']} gates of {config['model']['name']}: mean over {SMOOTH} steps"
    figure.suptitle(title, fontsize=11)
    rows = [row for row in rows if "kl" in row]  # without those of the first stage
    steps = np.array([row["step"] for row in rows])
    for axes, (names, label) in zip(np.ravel(figure.subplots(2, 2)), PANELS, strict=True):
        for name, (colour, line) in zip(names, STYLES, strict=False):
            values = np.array([row[name] for row in rows])
            axes.plot(steps, values, color=colour, alpha=0.2, linewidth=0.8)
            axes.plot(steps, _smooth(values), line, color=colour, label=name)
        axes.set(xlabel="step", title=label)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(frameon=False)
    return figure


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean of the last SMOOTH values at every place."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - SMOOTH, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _text(workdir: Path, rows: list[Row], dev: list[Row], config: Row) -> str:
    run = record.read_json(workdir / "env.json")["runs"][-1]
    train, data, seconds = config["train"], config["data"], sum(row["seconds"] for row in rows)
    tokens = data["row"] * train["batch"] * len(rows)
    lines = [
        f"# {train['method']} gates of {config['model']['name']}", "",
        f"- {len(rows)} steps of {train['batch']} rows of {data['row']} tokens, seed {train['seed']}",
        f"- gate: {config['gate']}", f"- loss: {config['loss']}", f"- data: {data}",
        f"- {seconds / 3600:.2f} hours in steps, {tokens / max(seconds, 1e-9):.0f} tokens/s, device "
        f"{run['device']}, {run['cpus']} CPU cores, commit `{run['git_commit']}`, "
        f"config `{record.config_hash(config)}`",
        "",
        "![loss curves](figures/loss.png)", "",
    ]  # fmt: skip
    first = [row["loss"] for row in rows if "kl" not in row]
    if first:
        ends = f"loss {first[0]:.3f} at the start, {first[-1]:.3f} at the end"
        lines.insert(3, f"- the first {len(first)} steps regress log future attention: {ends}")
    if dev:
        tasks = [name for name in dev[0] if name.startswith(("niah", "vt", "cwe", "fwe"))]
        lines += [f"Small evaluations, length {dev[0]['length']}, n = {dev[0]['n']}, "
                  f"samples of seed {dev[0]['seed']}, which no reported table uses:", ""]  # fmt: skip
        lines += ["| step | budget | " + " | ".join(tasks) + " |", "|---:" * (len(tasks) + 2) + "|"]
        for row in dev:
            scores = " | ".join(f"{row[task]:.1f}" for task in tasks)
            lines.append(f"| {row['step']} | {row['budget']} | {scores} |")
    return "\n".join(lines) + "\n"
