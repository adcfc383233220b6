"""The figure of a dialogue folder: score against turn and against distance, a row of panels per task and mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.figures import DPI, GREY, looks_of

Row = dict[str, Any]
FULL = "full"
SPREAD = 0.5  # of the room between two groups, over which the methods' points stand side by side
LINES = ("-", "--", ":", "-.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """The rows of one task in one mode, the full cache's first."""

    title: str
    rows: list[Row]


def label(found: Row) -> str:
    """A score with its interval; "-" where there is none."""
    if found["score"] is None:
        return "-"
    if found["score_low"] is None:
        return f"{found['score']:.1f}"
    return f"{found['score']:.1f} [{found['score_low']:.0f}, {found['score_high']:.0f}]"


def buckets(panel: Panel) -> list[str]:
    """The distance buckets of a panel, nearest first."""
    found = {group["group"] for row in panel.rows for group in row["by_distance"]}
    return sorted(found, key=lambda text: int(text.split("-")[0]))


def write(path: Path, config: Row, title: str, panels: Sequence[Panel]) -> None:
    """Writes the figure. Panels without a score or without distances stay empty and say so."""
    look = looks_of(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9.0, 2.6 * len(panels) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for axes, panel in zip(grid, panels, strict=True):
        turns = sorted({group["group"] for row in panel.rows for group in row["by_turn"]})
        _draw(axes[0], panel, "by_turn", turns, look)
        _draw(axes[1], panel, "by_distance", buckets(panel), look)
        axes[0].set_ylabel(panel.rows[0]["measure"] or "no score", fontsize=8)
    grid[-1][0].set_xlabel("turn: place among the questions", fontsize=8)
    grid[-1][1].set_xlabel("distance: tokens since the answer was told", fontsize=8)
    found = {
        text: handle for axis in grid.ravel() for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(f"{title}: score over a conversation", fontsize=11)
    figure.savefig(path, dpi=DPI)


def _draw(axis: Axes, panel: Panel, field: str, groups: Sequence[Any], look: dict[str, tuple[str, str]]) -> None:
    rows = [row for row in panel.rows if any(group["score"] is not None for group in row[field])]
    for i, row in enumerate(rows):
        by_group = {group["group"]: group for group in row[field] if group["score"] is not None}
        places = [n for n, group in enumerate(groups) if group in by_group]
        found = [by_group[groups[n]] for n in places]
        score = np.array([group["score"] for group in found])
        low = np.array([group["score"] if group["score_low"] is None else group["score_low"] for group in found])
        high = np.array([group["score"] if group["score_high"] is None else group["score_high"] for group in found])
        shift = SPREAD * ((i + 0.5) / len(rows) - 0.5)
        colour, marker = look[row["method"]]
        full = row["method"] == FULL
        axis.errorbar(np.array(places) + shift, score, yerr=[np.maximum(score - low, 0), np.maximum(high - score, 0)],
                      color=colour, marker="s" if full else marker, markersize=4.5,
                      linestyle="--" if full else LINES[i % len(LINES)], linewidth=1.2,
                      elinewidth=0.8, capsize=2, label="full cache" if full else f"{row['method']} @ {row['budget']}",
                      markerfacecolor="white" if full else colour)  # fmt: skip
    if not rows:
        axis.text(0.5, 0.5, "no distances" if field == "by_distance" else "no scores", ha="center", va="center",
                  transform=axis.transAxes, fontsize=8, color=GREY)  # fmt: skip
    axis.set_title(panel.title, fontsize=9)
    axis.set_xticks(range(len(groups)), [str(group) for group in groups], fontsize=8)
    axis.set_xlim(-0.6, max(len(groups), 1) - 0.4)
    axis.set_ylim(-4, 104)
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
