"""report.md and the figure of a benchmark folder. Reads results.jsonl only: no model code, no device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.boards import table
from experiments.figures import COLOURS, DPI, GREY
from nexus import record

Row = dict[str, Any]
UNITS = {"s": ("s", 1.0), "ms": ("ms", 1.0), "bytes": ("MB", 1e6)}


def write(workdir: Path) -> str:
    """Writes report.md and figures/ratios.png; returns the table of ratios. Works on unfinished runs too."""
    rows = latest(record.read_rows(workdir / "results.jsonl"))
    ratios = _ratios(rows)
    sections = [_header(rows), "## Ratios", RATIOS, ratios, "![ratios](figures/ratios.png)"]
    sections += ["## Measured", _samples(rows), _facts(rows), _provenance(rows)]
    _figure(rows, workdir / "figures" / "ratios.png")
    record.write_text(workdir / "report.md", "\n\n".join(filter(None, sections)) + "\n")
    return f"{ratios}\nreport: {workdir / 'report.md'}"


def latest(rows: Sequence[Row]) -> list[Row]:
    """One row per case, the newest, in the order in which cases were first measured."""
    return list({(row["part"], row["case"]): row for row in rows}.values())


RATIOS = (
    "Time (or bytes) of A over that of B, formed turn by turn: above 1, B is faster (or smaller). Contenders ran in "
    "turn (A B C A B C ...) after a warm-up; compiling is not timed. n: turns; numbers of bytes are exact."
)


def _header(rows: Sequence[Row]) -> str:
    first = rows[0]
    env = first["environment"]
    return "\n".join(
        [
            f"# Benchmark: {first['model']}, {first['dtype']}; torch in {first.get('against_dtype', 'float32')}",
            "",
            f"- machine: {env['machine']}, {env['cpus']} CPU cores; {env['device']}; {env['platform']}",
            f"- commit {', '.join(sorted({'`' + row['environment']['git_commit'] + '`' for row in rows}))}, "
            f"config `{first['config_hash']}`",
        ]
    )


def _ratios(rows: Sequence[Row]) -> str:
    head = ["part", "case", "A / B", "median", "min", "max", "n", "aim"]
    body = []
    for row in rows:
        for ratio in row["ratios"]:
            numbers = [f"{ratio[name]:.2f}" for name in ("median", "min", "max")]
            body.append([row["part"], row["case"], _name(ratio), *numbers, str(ratio["n"]), _aim(ratio)])
        body += [[row["part"], row["case"], name, why, *"----"] for name, why in row["missing"].items()]
    return table(head, body)


def _name(ratio: Row) -> str:
    return f"{ratio['top']} / {ratio['bottom']}"


def _aim(ratio: Row) -> str:
    if ratio["at_most"] is None:
        return "-"
    return f"<= {ratio['at_most']:g}: {'met' if ratio['median'] <= ratio['at_most'] else 'missed'}"


def _samples(rows: Sequence[Row]) -> str:
    head = ["part", "case", "contender", "median", "min", "max", "unit", "n"]
    body = []
    for row in rows:
        unit, size = UNITS[row["unit"]]
        for name, found in row["summary"].items():
            numbers = [f"{found[key] / size:.4g}" for key in ("median", "min", "max")]
            body.append([row["part"], row["case"], name, *numbers, unit, str(found["n"])])
    return table(head, body)


def _facts(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for what, values in row["facts"].items():
            told = ", ".join(f"{name} {value:.1f}" for name, value in values.items())
            lines.append(f"- {row['part']}, {row['case']}: {what}: {told}")
    return "\n".join(lines)


def _provenance(rows: Sequence[Row]) -> str:
    lines = ["## Where the numbers were made", ""]
    for started, env in {row["environment"]["started"]: row["environment"] for row in rows}.items():
        versions = ", ".join(f"{name} {version}" for name, version in env["versions"].items())
        cases = sum(row["environment"]["started"] == started for row in rows)
        lines.append(f"- {started}: {cases} cases; Python {env['python']}, commit `{env['git_commit']}`; {versions}")
    return "\n".join(lines)


def _figure(rows: Sequence[Row], path: Path) -> None:
    """One bar per ratio on a log axis, from 1; the line on it goes from the smallest to the largest turn."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    bars = [(row, ratio) for row in rows for ratio in row["ratios"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(10.5, 0.27 * len(bars) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for i, (row, ratio) in enumerate(bars):
        colour = COLOURS[parts.index(row["part"]) % len(COLOURS)]
        middle, low, high = ratio["median"], ratio["min"], ratio["max"]
        axis.barh(i, middle - 1, left=1, color=colour, height=0.7)
        axis.errorbar(middle, i, xerr=[[middle - low], [high - middle]], color=GREY, linewidth=1, capsize=2)
        end = max(high, 1, ratio["at_most"] or 1)
        axis.annotate(f"{middle:.2f}", (end, i), (4, 0), textcoords="offset points", va="center", fontsize=7)
        if ratio["at_most"] is not None:
            axis.plot([ratio["at_most"]] * 2, [i - 0.45, i + 0.45], color="black", linewidth=1.5)
    labels = [f"{row['part']}, {row['case']}: {_name(ratio)}" for row, ratio in bars]
    axis.set_yticks(range(len(bars)), labels, fontsize=7)
    axis.set_ylim(len(bars) - 0.3, -0.7)  # the first on top
    axis.set_xscale("log")
    axis.margins(x=0.08)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvline(1, color=GREY, linewidth=1)
    axis.set_xlabel("A / B; above 1, B is faster or smaller (black mark: the most we allow)", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=DPI)
