"""The figures of a dilution folder. Methods have the colours and markers they have in every report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.dilute import fits
from experiments.figures import COLOURS, DPI, GREY, looks
from experiments.summary import Results

Row = dict[str, Any]
STYLES = (("o", "-"), ("s", "--"), ("D", ":"), ("^", "-."), ("v", "-"), ("P", "--"))
LIGHT = "#b5b5b5"


@dataclasses.dataclass(frozen=True)
class Curves:
    """The rows of decay.jsonl, mean over texts. All [...,bins]."""

    bins: list[tuple[int, int]]
    heads: np.ndarray  # [L*N,bins]
    mean: np.ndarray  # [bins]
    error: np.ndarray  # [bins] standard error of the mean over texts
    predicted: np.ndarray | None  # [bins], of the gates
    quarters: np.ndarray  # [Q,bins]
    quarters_predicted: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Curves:
        received = np.array([row["received"] for row in rows])  # [texts,L,N,bins]
        by_text, n = received.mean(axis=(1, 2)), len(rows)
        error = by_text.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(by_text.shape[1])
        gated = "predicted" in rows[0]
        over = lambda name: np.mean([row[name] for row in rows], axis=0) if gated else np.zeros(0)  # noqa: E731
        return cls(
            bins=[(low, high) for low, high in rows[0]["bins"]],
            heads=received.mean(axis=0).reshape(-1, received.shape[-1]),
            mean=by_text.mean(axis=0), error=error,
            predicted=over("predicted").mean(axis=(0, 1)) if gated else None,
            quarters=over("quarter_received"), quarters_predicted=over("quarter_predicted"),
        )  # fmt: skip


def write(folder: Path, config: Row, found: dict[str, list[Row]]) -> list[tuple[str, str]]:
    """Writes the figures there are rows for; returns (file name, description) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[tuple[str, str, Figure]] = []
    if found["theory"]:
        made.append(("theory.png", "useful mass against the number of distractors", _theory(found["theory"])))
    if found["metrics"]:
        made.append(("mass.png", "attention on the needle and score against length", _mass(found["metrics"], config)))
    if found["predictions"]:
        made.append(("heads.png", "attention on the needle by layer and query head", _heads(found["predictions"])))
    if found["decay"]:
        made.append(("decay.png", "attention by age", _decay(Curves.of(found["decay"]))))
    for name, text, figure in made:
        figure.suptitle(text, fontsize=11)
        figure.savefig(folder / name, dpi=DPI)
    return [(name, text) for name, text, _ in made]


def middle(rows: Sequence[Row]) -> tuple[float, float]:
    """The margin and noise that stand for all where one setting is shown."""
    margins, noises = sorted({row["margin"] for row in rows}), sorted({row["noise"] for row in rows})
    return margins[len(margins) // 2], noises[len(noises) // 2]


def _grid(panels: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns + 0.3, height * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes[:panels]


def _plain(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.grid(color="#e5e5e5", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=GREY, labelsize=8)


def _legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    handles = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, fontsize=8,
                  frameon=False)  # fmt: skip


# --- synthetic logits -------------------------------------------------------------------------------------------------
def _theory(rows: Sequence[Row]) -> Figure:
    noises = sorted({row["noise"] for row in rows})
    figure, axes = _grid(len(noises) + 1, 2, 4.4, 3.2)
    for axis, noise in zip(axes, noises, strict=False):
        _measured(axis, [row for row in rows if row["noise"] == noise and row["cache"] == "full"])
        _plain(axis, f"full cache, noise {noise:g}", "distractors", "mass on useful entries")
    margin, noise = middle(rows)
    own = [row for row in rows if (row["margin"], row["noise"]) == (margin, noise)]
    _chosen(axes[-1], own)
    title = f"best {max(row['kept'] for row in own if row['cache'] == 'selective')} by a noisy score"
    _plain(axes[-1], f"{title}, margin {margin:g}, noise {noise:g}", "distractors", "mass on useful entries")
    least = min(row["mass"] for row in rows if row["cache"] == "full")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({row["distractors"] for row in rows}))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_yscale("log")
        axis.set_ylim(least / 2, 1.3)  # the same everywhere: panels can be compared
        axis.legend(fontsize=7, frameon=False, loc="lower left")
    return figure


def _measured(axis: Axes, rows: Sequence[Row]) -> None:
    for i, margin in enumerate(sorted({row["margin"] for row in rows})):
        own = sorted((row for row in rows if row["margin"] == margin), key=lambda row: row["distractors"])
        x, y, error, limit = ([row[name] for row in own] for name in ("distractors", "mass", "error", "bound"))
        colour, marker = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)][0]
        axis.errorbar(x, y, yerr=1.96 * np.array(error), color=colour, marker=marker, markersize=4, linewidth=1.3,
                      elinewidth=0.8, label=f"margin {margin:g}, measured")  # fmt: skip
        axis.plot(x, limit, color=colour, linestyle="--", linewidth=1.1, label=f"margin {margin:g}, bound")


def _chosen(axis: Axes, rows: Sequence[Row]) -> None:
    full = sorted((row for row in rows if row["cache"] == "full"), key=lambda row: row["distractors"])
    x, y = ([row[name] for row in full] for name in ("distractors", "mass"))
    axis.plot(x, y, color=GREY, linewidth=2.0, label="full cache")
    for i, separation in enumerate(sorted({row["separation"] for row in rows if row["cache"] == "selective"})):
        own = sorted((row for row in rows if row["separation"] == separation), key=lambda row: row["distractors"])
        x, y, error = ([row[name] for row in own] for name in ("distractors", "mass", "error"))
        marker, style = STYLES[i % len(STYLES)]
        axis.errorbar(x, y, yerr=1.96 * np.array(error), color=COLOURS[(i + 3) % len(COLOURS)], marker=marker,
                      markersize=4, linestyle=style, linewidth=1.3, elinewidth=0.8,
                      label=f"separation {separation:g}")  # fmt: skip


# --- the model --------------------------------------------------------------------------------------------------------
def _mass(rows: Sequence[Row], config: Row) -> Figure:
    """Above the mass in the retrieval heads, below the score; a column per task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    look_of = looks(_bare(config))
    figure, axes = _grid(2 * len(tasks), len(tasks), 4.2, 2.7)
    for i, axis in enumerate(axes):
        task, name, unit = tasks[i % len(tasks)], *(("mass_useful", 100) if i < len(tasks) else ("score", 1))
        own = [row for row in rows if row["task"] == task]
        series = list(dict.fromkeys((row["method"], row["budget"] if row["method"] != "full" else 0) for row in own))
        for j, (method, budget) in enumerate(series):
            line = [row for row in own if row["method"] == method and budget in (0, row["budget"])]
            label = f"{method} @ {budget}" if budget else "full cache"
            _line(axis, line, name, unit, look_of[method], (j - (len(series) - 1) / 2) * 0.035, label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({row["length"] for row in rows}))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_ylim(bottom=-3 if name == "score" else 0, top=105 if name == "score" else None)
        _plain(axis, task, "length (tokens)", "score (0-100)" if unit == 1 else "attention on the needle (%)")
    _legend(figure, axes, 4)
    return figure


def _bare(config: Row) -> Results:
    """What `looks` reads of a run: its config."""
    return Results(name="", folders=(), config=config, env={}, rows=[], predictions=[], kept=[], tokens=[], missing=0,
                   left_out=[])  # fmt: skip


def _line(
    axis: Axes, rows: Sequence[Row], name: str, unit: float, look: tuple[str, str], shift: float, label: str
) -> None:
    """One method; shifted a little, so that error bars stand side by side."""
    rows = sorted(rows, key=lambda row: row["length"])
    x = np.array([row["length"] for row in rows]) * 2**shift
    y = unit * np.array([row[name] for row in rows])
    low, high = (unit * np.array([row[name] if row[f"{name}_{end}"] is None else row[f"{name}_{end}"] for row in rows])
                 for end in ("low", "high"))  # fmt: skip
    full = label == "full cache"
    axis.errorbar(x, y, yerr=[np.maximum(y - low, 0), np.maximum(high - y, 0)], color=look[0],
                  marker=look[1], markersize=9 if full else 4, linewidth=2.0 if full else 1.3,
                  linestyle="--" if full else "-", elinewidth=0.8, capsize=2, label=label)  # fmt: skip


def _heads(rows: Sequence[Row]) -> Figure:
    """Maps of all query heads: the full cache at the shortest and the longest length, then every method there."""
    lengths = sorted({row["length"] for row in rows})
    cells = list(dict.fromkeys((row["method"], row["budget"]) for row in rows if row["method"] != "full"))
    shown = [("full cache", "full", None, length) for length in dict.fromkeys((lengths[0], lengths[-1]))]
    shown += [(f"{method} @ {budget}", method, budget, lengths[-1]) for method, budget in cells]
    maps = {}
    for label, method, budget, length in shown:
        own = [row["answer"]["useful"] for row in rows
               if row["method"] == method and budget in (None, row["budget"]) and row["length"] == length]  # fmt: skip
        if own:
            maps[f"{label}\n{length} tokens"] = 100 * np.mean(own, axis=0)
    figure, axes = _grid(len(maps), len(maps), max(1.55, 5.0 / len(maps)), 3.9)
    top = max(float(values.max()) for values in maps.values())
    for i, (axis, (label, values)) in enumerate(zip(axes, maps.items(), strict=True)):
        image = axis.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
        axis.set_title(label, fontsize=8)
        axis.set_xlabel("query head", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axis.tick_params(labelsize=7)
        if i == 0:
            axis.set_ylabel("layer", fontsize=8)
        else:
            axis.set_yticklabels([])
    bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02)
    bar.set_label("attention on the needle (%), mean over tasks", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


# --- attention by age -------------------------------------------------------------------------------------------------
def _decay(curves: Curves) -> Figure:
    gated = curves.predicted is not None
    figure, axes = _grid(3 if gated else 2, 3 if gated else 2, 4.0, 3.6)
    age = fits.middles(curves.bins)
    whole = [fits.fit(curves.mean, family) for family in (fits.geometric(curves.bins), fits.power_law(curves.bins))]
    axes[0].errorbar(age, curves.mean, yerr=1.96 * curves.error, color=GREY, marker="o", markersize=4, linewidth=0,
                     elinewidth=0.8, label="measured")  # fmt: skip
    axes[0].plot(age, whole[0].curve, color=COLOURS[1], linestyle="--", linewidth=1.5, label="geometric")
    axes[0].plot(age, whole[1].curve, color=COLOURS[0], linestyle="-", linewidth=1.5, label="power law")
    if curves.predicted is not None:
        said = fits.fit(curves.mean, fits.given("gates", curves.predicted))
        axes[0].plot(age, said.curve, color=COLOURS[2], linestyle=":", linewidth=1.8, label="gates, scaled")
    _plain(axes[0], "mean over heads", "age (tokens)", "attention received")
    axes[1].plot(age, np.maximum(curves.heads, fits.LEAST).T, color=LIGHT, linewidth=0.5, alpha=0.6)
    for i, part in enumerate((10, 50, 90)):
        axes[1].plot(age, np.percentile(curves.heads, part, axis=0), color=COLOURS[3 + i], marker=STYLES[i][0],
                     markersize=3, linestyle=STYLES[i][1], linewidth=1.4, label=f"{part} % of heads below")  # fmt: skip
    _plain(axes[1], "every query head", "age (tokens)", "attention received")
    for axis in axes[:2]:
        axis.set_yscale("log")
    axes[1].set_ylim(bottom=1e-7)
    axes[0].set_ylim(bottom=curves.mean.min() / 3)
    if gated:
        _quarters(axes[2], age, curves)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.legend(fontsize=7, frameon=False)
    return figure


def _quarters(axis: Axes, age: np.ndarray, curves: Curves) -> None:
    """Each quarter of the tokens, relative to its youngest age."""
    for q, (got, said) in enumerate(zip(curves.quarters, curves.quarters_predicted, strict=True)):
        axis.plot(age, got / got[0], color=COLOURS[q], marker=STYLES[q][0], markersize=3.5, linewidth=1.3,
                  label=f"quarter {q + 1}, measured")  # fmt: skip
        axis.plot(age, said / said[0], color=COLOURS[q], linestyle=":", linewidth=1.5, label=f"quarter {q + 1}, gates")
    axis.set_yscale("log")
    axis.set_ylim(bottom=1e-4)
    _plain(axis, "by log beta of the gates", "age (tokens)", "relative to age 1")
