"""Turns run folders into report.md, report.html, report.csv and figures/. Reads the folders only: no model, no device.

python -m experiments.report runs/llama_ruler-0123456789ab
python -m experiments.report RUN RUN ... --out FOLDER

Several runs are joined where they answer the same question (`experiments.joined`), and compared example by example
where they hold the same cells (`experiments.paired`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import boards, joined, paired, sections, sheet
from experiments.page import build as page
from experiments.paired import Pair
from experiments.sections import Part, Section
from nexus import cli, record


def write(workdir: Path) -> str:
    """Writes the report of one run into its folder; returns the score tables to print. Works on unfinished runs too."""
    return write_all([workdir], workdir)


def write_all(workdirs: Sequence[Path], out: Path, against: Sequence[str] = ()) -> str:
    """Writes report.md, report.html, report.csv and figures/ into `out`; returns the score and paired tables to print.

    against: methods that get a column of paired differences, as the full cache has.

    Raises ValueError for a folder that cannot be reported, a method that is in no run, and for an `out` that would
    overwrite one run's own report with that of several.
    """
    if len(workdirs) > 1 and (out / "config.json").exists():
        raise ValueError(f"--out={out} is a run folder with a report of its own; give another one")
    runs = joined.load_all(workdirs)
    there = dict.fromkeys(row["method"] for run in runs for row in run.rows)
    for name in against:
        if name not in there:
            raise ValueError(f"--against={name}: no run has it; these have {', '.join(there)}")
    found, pairs = sections.build(runs, out, against), paired.compare(runs)
    record.write_text(out / "report.md", _markdown(found, pairs))
    record.write_text(out / "report.csv", sheet.text(found))
    record.write_text(out / "report.html", page.html(found, pairs, out))
    printed = [line for section in found for line in _printed(section, len(found) > 1)]
    for pair in pairs:
        if pair.lines:
            printed += [f"{pair.second} minus {pair.first}", boards.markdown(boards.paired(pair))]
    return "\n".join([*printed, f"report: {out / 'report.md'}, and report.html and report.csv beside it"])


def _printed(section: Section, several: bool) -> list[str]:
    lines = [section.title] if several else []
    for part in section.parts:
        lines += [f"length {part.length}", _floor(part)]
        lines.append(boards.markdown(part.scores) if part.scores else "")
    return [line for line in lines if line]


# --- Markdown ---------------------------------------------------------------------------------------------------------
def _markdown(found: Sequence[Section], pairs: Sequence[Pair]) -> str:
    blocks = [block for section in found for block in _section(section)]
    blocks += [block for pair in pairs for block in _pair(pair)]
    for section in found:
        heading = "## Where the numbers were made"
        blocks += [heading if len(found) == 1 else f"{heading}: {section.title}", _list(section.origin)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _section(section: Section) -> list[str]:
    blocks = [f"# {section.title}", _list(section.facts)]
    blocks += [f"![{picture.text}]({picture.path})" for picture in section.maps]
    for part in section.parts:
        blocks += [f"## Length {part.length}", _floor(part)]
        if part.scores is None or part.costs is None:
            continue
        blocks += [boards.markdown(part.scores), boards.SCORES_NOTE, _list([f"note: {note}" for note in part.notes])]
        blocks += [f"![{picture.text}]({picture.path})" for picture in part.pictures]
        blocks += [f"### {part.costs.caption}", boards.markdown(part.costs), boards.COSTS_NOTE]
    return blocks + [f"![{picture.text}]({picture.path})" for picture in section.pictures]


def _floor(part: Part) -> str:
    return "\n".join(f"**{task}: {boards.NOT_MEANINGFUL}.** {why}" for task, why in part.floor)


def _pair(pair: Pair) -> list[str]:
    blocks = [f"## {pair.second} minus {pair.first}", paired.NOTE, _list(paired.remarks(pair))]
    return [*blocks, boards.markdown(boards.paired(pair))] if pair.lines else blocks


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


# --- command line -----------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str]) -> int:
    parser = cli.Parser("python -m experiments.report", __doc__, "python -m experiments.report runs/llama_ruler-*")
    parser.add_argument("workdirs", nargs="+", type=Path, metavar="WORKDIR", help="folder that a run wrote")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="by default the run's own, or runs/joined-<hash>")
    parser.add_argument(
        "--against", type=lambda text: text.split(","), default=[], metavar="METHODS",
        help="methods that all others are compared with example by example, besides full: snapkv,random",
    )  # fmt: skip
    try:
        given = parser.parse_args(list(arguments))
    except SystemExit as end:  # a wrong command line: argparse has said what is wrong
        return int(end.code or 0)
    try:
        print(write_all(given.workdirs, given.out or _default_out(given.workdirs), given.against))
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


def _default_out(workdirs: Sequence[Path]) -> Path:
    """The run's own folder; of several runs one that the same runs, in the same order, have in common."""
    if len(workdirs) == 1:
        return workdirs[0]
    text = "\n".join(str(workdir.resolve()) for workdir in workdirs)
    return Path("runs") / f"joined-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


if __name__ == "__main__":
    cli.run(main)
