"""The figures of a report. A method has the same colour and marker in every figure and in every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from experiments.summary import FULL, Results, Summary

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c564b", "#a5aa99", "#b7950b",
    "#e6194b",
)  # fmt: skip
MARKERS = "osD^vPX"  # 7 markers and 11 colours: 77 methods before a pair comes again
GREY, DPI = "#333333", 150
LEAST_WIDTH = 6.6  # inches; a title fits
# Often side by side: fewer than there are colours, so each has its own.
COMPARED = (
    "random", "oracle", "streaming_llm", "knorm", "keydiff", "tova", "snapkv", "h2o", "trimkv", "global_retention",
)  # fmt: skip
EVEN = 0.01  # of the budget: heads whose numbers of entries differ by no more hold the same
MANY = 8  # methods at one budget that are still told apart side by side; more are ranked


def write(folder: Path, results: Results, length: int, grid: Sequence[Summary]) -> list[tuple[str, str]]:
    """Writes the figures of a length; returns (file name, description) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    look_of = looks(results)
    budgets = {row.budget for row in grid if row.method != FULL}
    if len(budgets) == 1 and len(grid) > MANY:
        made = [(f"score-{length}.png", f"score by method, budget {budgets.pop()}", _ranked(results, grid, look_of))]
    else:
        made = [(f"score-{length}.png", "score against budget", _scores(results, grid, look_of))]
    maps = kept(results, length, grid)
    if maps is not None:
        made.append((f"kept-{length}.png", "entries kept by layer and head", maps))
    made.append((f"memory-{length}.png", "memory of the cache", _memory(grid, look_of)))
    if any(row.average("decode_tokens_per_s") is not None for row in grid):
        made.append((f"speed-{length}.png", "speed of prefill and decoding", _speed(grid, look_of)))
    for name, text, figure in made:
        figure.suptitle(f"{results.rows[0]['model']}, length {length}: {text}", fontsize=11)
        figure.savefig(folder / name, dpi=DPI)
    return [(name, f"{text}, length {length}") for name, text, _ in made]


def looks(results: Results) -> dict[str, tuple[str, str]]:
    """method -> (colour, marker) in the figures of a run."""
    return looks_of(results.config)


def looks_of(config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """method -> (colour, marker), by its place in one order of methods, whatever runs beside it.

    A method with other options, `snapkv (window=16)` in joined runs, has its method's colour and another marker.
    """
    methods = config["eval"]["methods"]
    bare = {name: name.partition(" (")[0] for name in methods}
    names = [*COMPARED, *sorted({*config["method"], *bare.values()} - {*COMPARED})]
    place = {name: i for i, name in enumerate(name for name in names if name != FULL)}
    found = {name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for name, i in place.items()}
    for name in (name for name in methods if name != bare[name]):
        of_method = [other for other in methods if bare[other] == bare[name]]
        colour, own = found[bare[name]]
        found[name] = colour, MARKERS[(MARKERS.index(own) + of_method.index(name)) % len(MARKERS)]
    return found | {FULL: (GREY, "_")}


def _figure(columns: int, rows: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False)))


# --- score against budget ---------------------------------------------------------------------------------------------
def _scores(results: Results, grid: Sequence[Summary], looks: dict[str, tuple[str, str]]) -> Figure:
    panels = _panels(results, grid)
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(3.6 * columns + 0.4, LEAST_WIDTH)
    figure, axes = _figure(columns, rows, width, 2.7 * rows + 1.1)
    for axis, panel in zip(axes, panels, strict=False):
        _score_panel(axis, panel, grid, looks)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for i, axis in enumerate(axes[: len(panels)]):
        if i % columns == 0:
            axis.set_ylabel("score (0-100)")
        if i + columns >= len(panels):
            axis.set_xlabel("budget (entries per layer and kv head)")
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, min(5, len(handles), int(width / (0.075 * max(map(len, handles), default=1) + 0.6)))),
        fontsize=8,
        frameon=False,
    )
    return figure


def _panels(results: Results, grid: Sequence[Summary]) -> list[str]:
    """Tasks that any row holds, and "mean" where there are several."""
    tasks = [task for task in results.config["eval"]["tasks"] if any(task in row.rows for row in grid)]
    return [*tasks, "mean"] if len(tasks) > 1 else tasks


def _ranked(results: Results, grid: Sequence[Summary], looks: dict[str, tuple[str, str]]) -> Figure:
    """Many methods at one budget: one line each, the best on top, with the full cache as a band behind them.

    The mean and the first three tasks; the tables hold all.
    """
    *tasks, last = _panels(results, grid)
    panels = [last, *tasks[:3]]
    rows = sorted((row for row in grid if row.method != FULL), key=lambda row: (_point(row, panels[0]) or (-1.0,))[0])
    figure, axes = _figure(len(panels), 1, 2.6 * len(panels) + 1.6, 0.21 * len(rows) + 1.2)
    for axis, panel in zip(axes, panels, strict=True):
        for full in (row for row in grid if row.method == FULL):
            if point := _point(full, panel):
                axis.axvline(point[0], color=GREY, linestyle="--", linewidth=1.2)
                axis.axvspan(point[1], point[2], color=GREY, alpha=0.10, linewidth=0)
        for y, row in enumerate(rows):
            if point := _point(row, panel):
                score, low, high = point
                axis.errorbar(score, y, xerr=[[score - low], [high - score]], color=looks[row.method][0], marker="o",
                              markersize=4, elinewidth=0.9, capsize=2)  # fmt: skip
        axis.set_title(panel if panel != "mean" else "mean over tasks", fontsize=9,
                       fontweight="bold" if panel == "mean" else "normal")  # fmt: skip
        axis.set_xlim(-4, 104)
        axis.set_xlabel("score (0-100); dashed: full cache")
        axis.set_yticks(range(len(rows)), [row.method for row in rows] if axis is axes[0] else [""] * len(rows))
        axis.tick_params(axis="y", labelsize=8, length=0)
        axis.grid(color="#e5e5e5", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _score_panel(axis: Axes, panel: str, grid: Sequence[Summary], looks: dict[str, tuple[str, str]]) -> None:
    methods = list(dict.fromkeys(row.method for row in grid if row.method != FULL))
    budgets = sorted({row.budget for row in grid if row.method != FULL})
    for row in grid:
        if row.method == FULL and (point := _point(row, panel)):
            axis.axhline(point[0], color=GREY, linestyle="--", linewidth=1.2, label="full cache")
            axis.axhspan(point[1], point[2], color=GREY, alpha=0.10, linewidth=0)
    for i, method in enumerate(methods):
        points = [(row.budget, *p) for row in grid if row.method == method and (p := _point(row, panel))]
        if not points:
            continue
        x, y, low, high = np.array(sorted(points), float).T
        spread = 0.1 * (math.log2(budgets[-1] / budgets[0]) + 0.65)  # side by side: error bars stay apart
        x = x * 2 ** (spread * ((i + 0.5) / len(methods) - 0.5))
        colour, marker = looks[method]
        axis.errorbar(x, y, yerr=[y - low, high - y], color=colour, marker=marker, markersize=5, linewidth=1.4,
                      elinewidth=0.9, capsize=2, label=method)  # fmt: skip
    axis.set_title(panel if panel != "mean" else "mean over tasks", fontsize=9,
                   fontweight="bold" if panel == "mean" else "normal")  # fmt: skip
    axis.set_ylim(-4, 104)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if budgets:
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlim(budgets[0] / 1.25, budgets[-1] * 1.25)
    else:
        axis.set_xticks([])


def _point(row: Summary, panel: str) -> tuple[float, float, float] | None:
    """(score, low, high) of a panel; a limit that is unknown is the score itself."""
    if panel != "mean":
        if panel not in row.rows:
            return None
        found = row.rows[panel]
        score, low, high = found["score"], found["score_low"], found["score_high"]
    elif row.mean is None:
        return None
    else:
        score, low, high = (None if math.isnan(v) else v for v in (row.mean.mean, row.mean.low, row.mean.high))
    # Rows are rounded: never let a limit cross the score.
    return score, min(score, score if low is None else low), max(score, score if high is None else high)


# --- entries kept by layer and head -----------------------------------------------------------------------------------
def kept(results: Results, length: int, grid: Sequence[Summary]) -> Figure | None:
    """One map per method and budget, a row of maps per budget; shares of the budget, so that all read on one scale.

    Methods whose heads all hold the same number are left out, and None is returned where no other is there.
    """
    shown: list[tuple[Summary, np.ndarray]] = []
    for row in sorted((row for row in grid if row.method != FULL), key=lambda row: row.budget):
        own = (length, row.method, row.budget)
        found = [k["kept"] for k in results.kept if (k["length"], k["method"], k["budget"]) == own]
        held = np.mean(found, axis=0) / row.budget  # [L, K]
        shown.append((row, held))
    uneven = {row.method for row, held in shown if np.ptp(held) > EVEN}
    maps = {row.label: held for row, held in shown if row.method in uneven}
    if not maps:
        return None
    columns = min(8, len(uneven) if len(uneven) > 1 else len(maps))  # one method: its budgets side by side
    rows = math.ceil(len(maps) / columns)
    figure, axes = _figure(columns, rows, max(1.45 * columns + 1.0, LEAST_WIDTH), 2.9 * rows + 0.7)
    top = max(1.5, *(float(values.max()) for values in maps.values()))
    for i, (axis, (label, values)) in enumerate(zip(axes, maps.items(), strict=False)):
        image = axis.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
        axis.set_title(label.replace(" @ ", "\n@ "), fontsize=8)
        axis.set_xticks(range(values.shape[1]) if values.shape[1] <= 8 else [0, values.shape[1] - 1])
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.tick_params(labelsize=7)
        if i % columns == 0:
            axis.set_ylabel("layer", fontsize=8)
        else:
            axis.set_yticklabels([])
        if i + columns >= len(maps):
            axis.set_xlabel("kv head", fontsize=8)
    for axis in axes[len(maps) :]:
        axis.set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 1.5 / rows), aspect=25, pad=0.02)
    bar.set_label("entries kept after the context / budget\n(methods with equal heads are not shown)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


# --- memory and speed -------------------------------------------------------------------------------------------------
def _memory(grid: Sequence[Summary], looks: dict[str, tuple[str, str]]) -> Figure:
    figure, (axis,) = _figure(1, 1, 7.2, 0.3 * len(grid) + 1.4)
    allocated = [(row.average("kv_bytes_allocated") or 0.0) / 1e6 for row in grid]
    live = [(row.average("kv_bytes_live") or 0.0) / 1e6 for row in grid]
    colours = [looks[row.method][0] for row in grid]
    axis.barh(range(len(grid)), allocated, color=colours, alpha=0.35, height=0.75, label="allocated")
    axis.barh(range(len(grid)), live, color=colours, height=0.4, label="in use, mean")
    _bars(axis, grid, allocated, "keys and values (MB); wide bar: allocated, narrow bar: in use", ".1f")
    return figure


def _speed(grid: Sequence[Summary], looks: dict[str, tuple[str, str]]) -> Figure:
    figure, axes = _figure(2, 1, 9.5, 0.3 * len(grid) + 1.4)
    for axis, phase in zip(axes, ("prefill", "decode"), strict=True):
        values = [row.average(f"{phase}_tokens_per_s") or 0.0 for row in grid]
        axis.barh(range(len(grid)), values, color=[looks[row.method][0] for row in grid], height=0.7)
        _bars(axis, grid, values, f"{phase} (tokens per second, without compiling)", ".0f")
    axes[1].set_yticklabels([])
    return figure


def _bars(axis: Axes, grid: Sequence[Summary], values: Sequence[float], label: str, form: str) -> None:
    for i, value in enumerate(values):
        axis.annotate(format(value, form), (value, i), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set_yticks(range(len(grid)), [row.label for row in grid], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(label, fontsize=8)
    axis.set_xlim(0, max([*values, 1e-9]) * 1.12)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
