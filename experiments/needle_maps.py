"""Heat maps of runs on `needle_map_<percent>` tasks: score by depth and length, and what is lost to the full cache.

One figure per budget and score, a pair of maps per method; every cell says its number, so that colour is not needed.
A depth is one task, so a cell of a map is a row of metrics.jsonl.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.figures import DPI
from experiments.summary import AT_START, FULL, Results, Row

FIELDS = {"score": ("needles", "key phrases found"), "rouge1_recall": ("needles-rouge", "ROUGE-1 recall of the needle")}
NAMES = re.compile(r"needles(-rouge)?-\d+\.png")  # of the figures written here
COLUMNS = 5  # methods side by side
_TASK = re.compile(r"needle_map_(\d+)")
_START = int(AT_START.rpartition("_")[2])  # the least depth there is: the first line of a map


def write(folder: Path, results: Results) -> list[tuple[str, str]]:
    """Writes the maps of a run; returns (file name, description) of each. Nothing where there are less than two depths.

    Files are numbered by budget in the order of the rows: needles-1.png, needles-rouge-1.png.
    """
    rows = [row for row in results.rows if _TASK.fullmatch(row["task"])]
    if len({row["task"] for row in rows}) < 2:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    budgets = list(dict.fromkeys(_budget(row) for row in rows if row["method"] != FULL)) or ["all entries"]
    for field, (name, title) in FIELDS.items():
        if not all(field in row for row in rows):
            continue
        for number, budget in enumerate(budgets, 1):
            shown = [row for row in rows if row["method"] == FULL or _budget(row) == budget]
            figure = _figure(shown, field)
            text = f"{title} in per cent, budget {budget}"
            figure.suptitle(f"{rows[0]['model']}, {_needles(rows)}\n{text}", fontsize=9)
            figure.savefig(folder / f"{name}-{number}.png", dpi=DPI)
            found.append((f"{name}-{number}.png", text))
    return found


def _budget(row: Row) -> str:
    return f"{row['budget']} entries" if row["ratio"] is None else f"{row['ratio']:.0%} of the length"


def _needles(rows: Sequence[Row]) -> str:
    counts = sorted({row["num_examples"] for row in rows})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} needles per cell"


def grid(rows: Sequence[Row], method: str, field: str, depths: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    """Values [depths, lengths] of a method; NaN for cells that were not run."""
    values = np.full((len(depths), len(lengths)), math.nan)
    for row in rows:
        if row["method"] == method:
            values[depths.index(_depth(row)), lengths.index(row["length"])] = row[field]
    return values


def _depth(row: Row) -> int:
    match = _TASK.fullmatch(row["task"])
    assert match  # rows of other tasks are not asked for
    return int(match[1])


# --- drawing ----------------------------------------------------------------------------------------------------------
def _figure(rows: Sequence[Row], field: str) -> Figure:
    """A line of maps for each COLUMNS methods, and below it the line of their differences to the full cache."""
    depths, lengths = sorted({_depth(row) for row in rows}), sorted({row["length"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    columns, lines = min(COLUMNS, len(methods)), math.ceil(len(methods) / COLUMNS)
    with_full = FULL in methods and len(methods) > 1
    per_line = 2 if with_full else 1
    width, height = max(1.6, 0.55 * len(lengths) + 0.35), max(1.2, 0.32 * len(depths) + 0.75)
    figure = Figure(figsize=(max(columns * width + 1.0, 4.5), per_line * lines * height + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    if _START in depths:
        figure.supxlabel("* the first depth is in no mean", fontsize=7, x=0.01, ha="left")
    axes = figure.subplots(per_line * lines, columns, squeeze=False)
    for axis in axes.ravel():
        axis.set_visible(False)
    full = grid(rows, FULL, field, depths, lengths)
    for i, method in enumerate(methods):
        line, column = divmod(i, columns)
        values = grid(rows, method, field, depths, lengths)
        _map(axes[per_line * line, column], values, method, depths, lengths, column == 0)
        if with_full and method != FULL:
            first = column == 0 or methods[i - 1] == FULL
            below = axes[per_line * line + 1, column]
            _map(below, values - full, f"{method} minus full", depths, lengths, first, signed=True)
    return figure


def _map(
    axis: Axes,
    values: np.ndarray,
    title: str,
    depths: Sequence[int],
    lengths: Sequence[int],
    first: bool,
    signed: bool = False,
) -> None:
    """One map: depth downwards, length to the right. The first depth, which is in no mean, stands apart."""
    axis.set_visible(True)
    low, colours = (-100, "PuOr") if signed else (0, "cividis")
    image = axis.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=100, interpolation="nearest")
    for (y, x), value in np.ndenumerate(values):
        if math.isnan(value):
            axis.text(x, y, "not run", ha="center", va="center", fontsize=6)
            continue
        text = f"{value:+.0f}" if signed and round(value) else f"{abs(value):.0f}"
        red, green, blue, _ = image.cmap(image.norm(value))
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        axis.text(x, y, text, ha="center", va="center", fontsize=8, color="black" if bright else "white")
    axis.set_title(title, fontsize=8)
    axis.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    names = [f"{depth} %{' *' if depth == _START else ''}" for depth in depths]
    axis.set_yticks(range(len(depths)), names if first else [""] * len(depths))
    axis.tick_params(labelsize=7, length=0)
    axis.spines[:].set_visible(False)
    axis.set_xlabel("length (tokens)", fontsize=7)
    if first:
        axis.set_ylabel("depth", fontsize=7)
    if _START in depths:
        axis.axhline(0.5, color="white", linewidth=4)
