"""The figures of an ablation: differences to base, entries by layer and head, and which kinds of tokens are held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import figures
from experiments.ablate import kinds
from experiments.ablate.compare import BASE, Entry, variants_of
from experiments.figures import COLOURS, DPI, GREY, MARKERS
from experiments.summary import Results, Row, summaries
from nexus.metrics import Interval

INCHES = 0.26  # of a line


def write(
    folder: Path,
    results: Results,
    length: int,
    differences: Mapping[tuple[Entry, str], Interval],
    found: Sequence[Row],
) -> list[tuple[str, str]]:
    """Writes the figures of a length; returns (file name, description) of each. found: rows of kinds.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    means = {entry: value for (entry, task), value in differences.items() if entry[0] == length and not task}
    held = [row for row in found if row["length"] == length]
    made = [
        (f"minus-base-{length}.png", "mean score minus base, same samples", _differences(means) if means else None),
        (f"kept-{length}.png", "entries by layer and head", figures.kept(results, length, summaries(results, length))),
        (
            f"kinds-{length}.png",
            "kinds of tokens held after the context",
            _kinds(held) if held else None,
        ),
    ]
    written = []
    for name, text, figure in made:
        if figure is not None:
            figure.suptitle(f"{results.rows[0]['model']}, length {length}: {text}", fontsize=10)
            figure.savefig(folder / name, dpi=DPI)
            written.append((name, f"{text}, length {length}"))
    return written


def _differences(means: Mapping[Entry, Interval]) -> Figure:
    """One line per variant, one point with its interval per budget."""
    names = list(dict.fromkeys(variant for _, variant, _ in means))
    budgets = sorted({budget for _, _, budget in means})
    figure = Figure(figsize=(7.0, INCHES * len(names) * max(1, 0.6 * len(budgets)) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axvline(0, color=GREY, linewidth=1)
    for i, budget in enumerate(budgets):
        own = {variant: value for (_, variant, b), value in means.items() if b == budget}
        places = [names.index(name) + 0.6 * ((i + 0.5) / len(budgets) - 0.5) for name in own]
        mean = np.array([value.mean for value in own.values()])
        low, high = (np.array([getattr(v, side) for v in own.values()]) for side in ("low", "high"))
        spread = np.nan_to_num([np.maximum(mean - low, 0), np.maximum(high - mean, 0)])
        axis.errorbar(mean, places, xerr=spread, fmt=MARKERS[i % len(MARKERS)], color=COLOURS[i % len(COLOURS)],
                      markersize=5, elinewidth=1.1, capsize=2.5, label=f"budget {budget}")  # fmt: skip
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)
    left, right = axis.get_xlim()
    axis.set_xlim(min(left, -5), max(right, 5))
    axis.set_xlabel(f"points against {BASE}, with 95 % interval over samples (right: better)", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", color="#e5e5e5", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if len(budgets) > 1:
        figure.legend(loc="outside lower center", ncols=len(budgets), fontsize=8, frameon=False)
    return figure


# --- kinds of tokens --------------------------------------------------------------------------------------------------
def _kinds(rows: Sequence[Row]) -> Figure:
    """A panel per budget, a line per variant, a column per kind; every cell says its number."""
    names, budgets = variants_of(rows), sorted({row["budget"] for row in rows})
    columns = [kind for kind in kinds.KINDS if any(row["kind"] == kind and row["held"] is not None for row in rows)]
    height = len(budgets) * (INCHES * len(names) + 0.9) + 0.8
    figure = Figure(figsize=(0.68 * len(columns) + 2.6, height), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, budget in zip(np.ravel(figure.subplots(len(budgets), 1, squeeze=False)), budgets, strict=True):
        values = np.full((len(names), len(columns)), np.nan)
        for row in rows:
            if row["budget"] == budget and row["kind"] in columns and row["held"] is not None:
                values[names.index(row["ablation"]), columns.index(row["kind"])] = row["held"]
        image = _map(axis, values, names, columns)
        axis.set_title(f"budget {budget}", fontsize=9)
    bar = figure.colorbar(image, ax=figure.axes, aspect=30, pad=0.02)
    bar.set_label("slots that hold it, per cent", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _map(axis: Axes, values: np.ndarray, names: Sequence[str], columns: Sequence[str]):
    image = axis.imshow(values, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest")
    for (y, x), value in np.ndenumerate(values):
        text = "-" if np.isnan(value) else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
        axis.text(x, y, text, ha="center", va="center", fontsize=7.5, color="black" if value > 55 else "white")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    titles = [kinds.TITLES[kind].replace(" ", "\n", 1) for kind in columns]
    axis.set_xticks(range(len(columns)), titles, fontsize=7)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image
