"""report.md and the figure of a survival folder. Reads survival.jsonl and config.json only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from experiments.boards import table
from experiments.figures import COLOURS, DPI, GREY
from nexus import record

Row = dict[str, Any]
STYLES = (("o", "-"), ("s", "--"), ("D", ":"), ("^", "-."), ("v", "-"))  # marker and line: told apart without colour
NOTE = (
    "Share of entries that are still cached after that many evictions since they arrived, the first one included; "
    "mean over units (simulation: independent caches; model: texts), and 1.96 standard errors of it."
)
TITLES = {
    ("simulation", "light"): "simulation: lightest third", ("simulation", "middle"): "simulation: middle third",
    ("simulation", "heavy"): "simulation: heaviest third", ("model", "one layer"): "model: entries of a layer",
    ("model", "any layer"): "model: positions held by any layer",
}  # fmt: skip


def write(workdir: Path) -> str:
    """Writes report.md and figures/survival.png; returns the table. Works on unfinished runs too."""
    rows = record.read_rows(workdir / "survival.jsonl")
    config = record.read_json(workdir / "config.json")
    found = _table(rows)
    head = f"# Survival over evictions: top against reservoir, {config['model']['name']}"
    sections = [head, _settings(config["survival"]), found, NOTE, "![survival](figures/survival.png)"]
    _figure(rows, workdir / "figures" / "survival.png")
    record.write_text(workdir / "report.md", "\n\n".join(sections) + "\n")
    return f"{found}\nreport: {workdir / 'report.md'}"


def _settings(s: Row) -> str:
    simulated = ", ".join(f"{name} {s[name]}" for name in ("kept", "arrivals", "repeats", "spread", "noise"))
    read = ", ".join(f"{name} {s[name]}" for name in ("length", "budget", "chunk", "texts", "rows"))
    return f"- seed {s['seed']}, draws {s['draws']}\n- simulation: {simulated}\n- model: {read}"


def label(row: Row) -> str:
    """What a sampler is called."""
    if row["sampler"] == "top":
        return "top"
    name = "reservoir" if row["power"] == 1 else f"reservoir, power {row['power']:g}"
    return name if row["draws"] == 1 else f"{name}, n = {row['draws']}"


def _table(rows: Sequence[Row]) -> str:
    ages = max((len(row["survival"]) for row in rows), default=0)
    shown = [2**i for i in range(ages.bit_length()) if 2**i <= ages]
    body = []
    for row in sorted(rows, key=lambda row: list(TITLES).index((row["part"], row["group"]))):
        cells = [f"{row['survival'][a - 1]:.3f} ± {1.96 * row['error'][a - 1]:.3f}" for a in shown]
        body.append([TITLES[row["part"], row["group"]], label(row), *cells, str(row["units"])])
    return table(["entries", "sampler", *map(str, shown), "units"], body)


def _figure(rows: Sequence[Row], path: Path) -> None:
    panels = [key for key in TITLES if any((row["part"], row["group"]) == key for row in rows)]
    names = list(dict.fromkeys(map(label, rows)))
    columns = min(3, max(len(panels), 1))
    height = -(-len(panels) // columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(3.5 * columns + 0.4, 2.9 * height + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(height, columns, squeeze=False).ravel()
    for axis, key in zip(axes, panels, strict=False):
        _panel(axis, TITLES[key], [row for row in rows if (row["part"], row["group"]) == key], names)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for i, axis in enumerate(axes[: len(panels)]):
        if i % columns == 0:
            axis.set_ylabel("share still cached")
        if i + columns >= len(panels):
            axis.set_xlabel("evictions since arrival")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize=8, frameon=False)
    figure.savefig(path, dpi=DPI)


def _panel(axis: Axes, title: str, rows: Sequence[Row], names: Sequence[str]) -> None:
    for row in rows:
        i = names.index(label(row))
        marker, line = STYLES[i % len(STYLES)]
        ages = range(1, len(row["survival"]) + 1)
        axis.errorbar(ages, row["survival"], yerr=[1.96 * x for x in row["error"]], color=COLOURS[i % len(COLOURS)],
                      marker=marker, markersize=4, linestyle=line, linewidth=1.3, elinewidth=0.8, capsize=1.5,
                      label=label(row))  # fmt: skip
    axis.set_title(title, fontsize=9)
    axis.set_ylim(-0.03, 1.03)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=GREY)
