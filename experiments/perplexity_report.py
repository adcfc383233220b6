"""report.md and the figure of a perplexity folder. Reads documents.jsonl, config.json and env.json only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.boards import table
from experiments.figures import COLOURS, DPI, GREY, MARKERS
from experiments.plan import FULL
from nexus import metrics, record

Row = dict[str, Any]
Cell = tuple[str, int]  # method, budget
NOTE = (
    "Perplexity: exp of the mean negative log-likelihood (nats per token) of the last third, over documents weighed "
    "alike. Against full: difference of that likelihood on the same documents, as a share of perplexity, with its 95 % "
    "bootstrap interval over documents. Lower is better."
)


def write(workdir: Path) -> str:
    """Writes report.md and figures/perplexity.png; returns the table. Works on unfinished runs too."""
    rows = record.read_rows(workdir / "documents.jsonl")
    config, env = (record.read_json(workdir / name) for name in ("config.json", "env.json"))
    cells: dict[Cell, dict[str, float]] = {}
    for row in rows:
        cells.setdefault((row["method"], row["budget"]), {})[row["document"]] = row["nll"]
    full = next((found for (method, _), found in cells.items() if method == FULL), {})
    against = {cell: _against(found, full) for cell, found in cells.items() if cell[0] != FULL}
    found = _table(cells, against)
    sections = [f"# Perplexity under a budget: {config['model']['name']}", _facts(rows, env), found, NOTE]
    if against:
        _figure(against, rows[0]["length"], workdir / "figures" / "perplexity.png")
        sections.append("![perplexity against budget](figures/perplexity.png)")
    record.write_text(workdir / "report.md", "\n\n".join(sections) + "\n")
    return f"{found}\nreport: {workdir / 'report.md'}"


def _facts(rows: Sequence[Row], env: Row) -> str:
    first, last = rows[0], env["runs"][-1]
    commits = ", ".join(f"`{commit}`" for commit in sorted({row["git_commit"] for row in rows}))
    return "\n".join(
        [
            f"- documents of {first['length']} tokens, the last {first['judged_tokens']} judged; streaming; seed "
            f"{first['seed']}, {first['dtype']}",
            f"- config `{first['config_hash']}`, commit {commits}, device {last['device']}, {last['cpus']} CPU cores",
        ]
    )


def _against(found: Mapping[str, float], full: Mapping[str, float]) -> metrics.Interval:
    """Mean of nll - nll of the full cache over the documents both have read."""
    names = sorted(found.keys() & full.keys())
    return metrics.paired_interval([found[name] for name in names], [full[name] for name in names])


def _table(cells: Mapping[Cell, Mapping[str, float]], against: Mapping[Cell, metrics.Interval]) -> str:
    body = []
    for (method, budget), found in cells.items():
        other = against.get((method, budget))
        change = [np.expm1(value) for value in (other.mean, other.low, other.high)] if other else []
        body.append(
            [
                method,
                "all" if method == FULL else str(budget),
                f"{np.exp(np.mean(list(found.values()))):.2f}",
                f"{change[0]:+.1%} [{change[1]:+.1%}, {change[2]:+.1%}]" if other else "-",
                str(len(found)),
            ]
        )
    return table(["method", "budget", "perplexity", "against full", "n"], body)


def _figure(against: Mapping[Cell, metrics.Interval], length: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    names = list(dict.fromkeys(method for method, _ in against))
    for i, name in enumerate(names):
        points = sorted((budget, value) for (method, budget), value in against.items() if method == name)
        x = [budget / length * 1.03 ** (i - (len(names) - 1) / 2) for budget, _ in points]  # error bars stay apart
        y, low, high = (100 * np.expm1([getattr(v, part) for _, v in points]) for part in ("mean", "low", "high"))
        axis.errorbar(x, y, yerr=[y - low, high - y], color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
                      markersize=5, linewidth=1.4, elinewidth=0.9, capsize=2, label=name)  # fmt: skip
    axis.axhline(0, color=GREY, linestyle="--", linewidth=1.2, label="full cache")
    axis.set_xscale("log")
    shares = sorted({budget / length for _, budget in against})
    axis.set_xticks(shares, [f"{share:.0%}" for share in shares])
    axis.minorticks_off()
    axis.set_xlabel("budget as a share of the document")
    axis.set_ylabel("perplexity above the full cache (%)")
    axis.set_title(f"last third of documents of {length} tokens", fontsize=9)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=DPI)
