"""What stands in a report, whatever its form: tables by length, with their floor, notes, figures and origin."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments import boards, figures, joined, needle_maps, provenance
from experiments.boards import Board
from experiments.summary import AT_START, FULL, Results, Summary, summaries, tasks_above_floor

OWN_FIGURES = re.compile(r"(score|kept|memory|speed)-\d+\.png")  # what `experiments.figures` writes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure; `path` relative to the report's folder."""

    path: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One length of a table."""

    length: int
    floor: list[tuple[str, str]]  # (task, why it is not compared)
    grid: list[Summary]
    scores: Board | None  # None where no task can be compared
    costs: Board | None
    notes: list[str]
    pictures: list[Picture]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Everything that fits into one set of tables: runs that answered the same samples in the same way."""

    title: str
    results: Results
    facts: list[str]  # of Markdown's inline forms only `code` and **bold**
    maps: list[Picture]  # of needle maps, over lengths
    parts: list[Part]
    pictures: list[Picture]  # that were found in the run folders, made by others
    origin: list[str]


def build(runs: Sequence[Results], out: Path, against: Sequence[str] = ()) -> list[Section]:
    """The sections of a report in folder `out`; writes out/figures. against: see `summary.summaries`."""
    groups = joined.join(runs)
    found = []
    for number, results in enumerate(groups, 1):
        folder = out / "figures" if number == 1 else out / "figures" / f"table-{number}"
        parts = [_part(results, length, folder, out, against) for length in results.lengths]
        maps = [
            Picture(path=(folder / name).relative_to(out).as_posix(), text=text)
            for name, text in needle_maps.write(folder, results)
        ]
        variants = ", ".join(dict.fromkeys(row["variant"] for row in results.rows))
        title = f"{variants}: {results.rows[0]['model']}"
        if len(groups) > 1:
            title = f"Table {number}: {title}, {results.rows[0]['protocol']}, {results.rows[0]['question_mode']}"
        facts = _facts(results, len(runs) > 1)
        if number > 1:
            facts.insert(0, f"apart from table 1, since it differs in {'; '.join(joined.apart(groups[0], results))}")
        pictures = [picture for workdir in results.folders for picture in _others(workdir, out)]
        found.append(
            Section(
                title=title,
                results=results,
                facts=facts,
                maps=maps,
                parts=parts,
                pictures=pictures,
                origin=provenance.lines(results.env["runs"], results.rows),
            )  # fmt: skip
        )
    return found


def _part(results: Results, length: int, folder: Path, out: Path, against: Sequence[str]) -> Part:
    grid = summaries(results, length, against)
    floor = results.config["eval"]["full_floor"]
    return Part(
        length=length,
        floor=[
            (
                row["task"],
                f"The full cache scores {row['score']:.1f} there, below the floor of {floor:g}: nothing to lose, not "
                "compared, not in the mean (with eval.full_floor=0 it would be).",
            )
            for row in tasks_above_floor(results, length)[1]
        ],
        grid=grid,
        scores=boards.scores(results, length, grid) if grid else None,
        costs=boards.costs(length, grid) if grid else None,
        notes=_notes(results, length, grid),
        pictures=[
            Picture(path=(folder / name).relative_to(out).as_posix(), text=text)
            for name, text in (figures.write(folder, results, length, grid) if grid else [])
        ],
    )


def _others(workdir: Path, out: Path) -> list[Picture]:
    """Figures that a run folder holds beside the report's own; copied where the report stands elsewhere."""
    pictures = []
    for file in sorted((workdir / "figures").glob("*.png")):
        if OWN_FIGURES.fullmatch(file.name) or needle_maps.NAMES.fullmatch(file.name):
            continue
        text = file.stem.replace("-", " ").replace("_", " ")
        if out.resolve() == workdir.resolve():
            pictures.append(Picture(path=f"figures/{file.name}", text=text))
        else:
            target = out / "figures" / "found" / f"{workdir.resolve().name}-{file.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            pictures.append(Picture(path=target.relative_to(out).as_posix(), text=f"{text} ({workdir.name})"))
    return pictures


# --- words ------------------------------------------------------------------------------------------------------------
def _facts(results: Results, several: bool) -> list[str]:
    first, rows = results.rows[0], results.rows
    facts = [f"runs joined here: {results.name}"] if several else []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        tasks, size = len({row["task"] for row in own}), own[0]["num_tasks_published"]
        published = f"{tasks} of {size} {'RULER ' if variant.startswith('ruler') else ''}tasks"
        count = published if size else f"{tasks} tasks"
        fact = f"{count}, variant `{variant}`"
        if variant == "ruler-nexus":
            fact += ": made by this project's own generators, so not comparable with tables made from other files"
        facts.append(fact)
    counts = sorted({row["num_examples"] for row in rows})
    hashes, commits = ({part for row in rows for part in row[n].split("+")} for n in ("config_hash", "git_commit"))
    devices = dict.fromkeys(entry["device"] for entry in results.env["runs"][-1:] if not several)
    devices |= dict.fromkeys(entry["device"] for entry in results.env["runs"] if several)
    facts += [
        f"protocol `{first['protocol']}`, question `{first['question_mode']}`, tail `{first['tail']}`",
        f"{' to '.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))} examples per task, "
        f"seed {first['seed']}, greedy decoding, {first['dtype']}",
        f"config {_codes(hashes)}, commit {_codes(commits)}, device {', '.join(devices)}",
        "scores 0-100; [low, high] is a 95 % bootstrap interval over examples. With few examples it is rough, and "
        "where all examples score alike it has no width and says nothing",
    ]
    if AT_START in {row["task"] for row in rows} and len({row["task"] for row in rows}) > 1:
        facts.append(f"`{AT_START}`, the first depth, is in no mean: the very start is where methods protect tokens")
    if results.left_out:
        names = ", ".join(results.left_out)
        facts.append(f"left out, since this model has no trained or calibrated parts for them: {names}")
    if results.missing > 0:
        total = results.missing + len(rows)
        facts.append(f"**unfinished**: {results.missing} of {total} cells are missing; run the command again")
    return facts + results.remarks


def _codes(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _notes(results: Results, length: int, grid: Sequence[Summary]) -> list[str]:
    """What a reader should know before believing the table."""
    notes = []
    for row in grid:
        if row.method == FULL:
            continue
        if any(cell.get("told") for cell in row.rows.values()):
            notes.append(f"{row.label} is a control that is told the answers, and no competitor.")
        kept = row.average("kept_fraction_mean")
        if kept is not None and kept >= 0.999:
            notes.append(f"{row.label} evicted nothing before the answer: the budget holds the whole context.")
        elif row.same_answers:
            notes.append(f"{row.label} gives the full cache's answers word for word: check that it evicts.")
        if row.difference and row.difference.low > 0:
            notes.append(f"{row.label} scores above the full cache, beyond its interval: check the full cache.")
    low = [r for r in results.rows if r["length"] == length and r["fill_min"] < 0.95]
    for task in dict.fromkeys(r["task"] for r in low):
        notes.append(f"{task}: prompts fill less than 95 % of the length.")
    cut = {r["task"]: r["cut_share"] for r in results.rows if r["length"] == length and r.get("cut_share")}
    notes += [f"{task}: {share:.0%} of the prompts lost their middle to fit the length." for task, share in cut.items()]
    return notes
