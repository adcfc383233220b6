"""LongBench's records: `<data_dir>/<task>.jsonl`, or the same file inside the archive of the hub's data set.

One JSON object per line, UTF-8 (THUDM/LongBench). Every record that is read is checked; an error names the file, the
line and the field.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from nexus import longbench_rules
from nexus.tasks import sources
from nexus.tasks.reading import Record, content, field, json_lines

HUB, ARCHIVE = "THUDM/LongBench", "data.zip"
FIELDS: dict[str, type | tuple[type, ...]] = {
    "input": str,
    "context": str,
    "answers": list,
    "length": int,
    "dataset": str,
    "language": str,
    "all_classes": (list, type(None)),
    "_id": str,
}
LAYOUT = f"one JSON object per line with {', '.join(FIELDS)}"


def read(
    file: str, dataset: str, n: int, data_dir: str = "", wanted: Callable[[Record], bool] = lambda record: True
) -> list[tuple[int, Record]]:
    """The first n wanted records of `<file>.jsonl`, or as many as there are, each with its number in the file from 0.

    Read from `data_dir`, or without one from the hub. `dataset` is what the field of that name must say. ValueError
    when the file is missing, a record is not as described, or none is wanted.
    """
    path = sources.locate(data_dir, f"{file}.jsonl", LAYOUT, repo=HUB, hub_file=ARCHIVE)
    text, name = _member(path, file) if path.suffix == ".zip" else (content(path, LAYOUT)[0], path)
    found: list[tuple[int, Record]] = []
    for index, (record, where) in enumerate(json_lines(text, name)):
        check(record, dataset, where)
        if wanted(record):
            found.append((index, record))
        if len(found) == n:
            break
    if not found:
        raise ValueError(f"{name} holds no record for this task; expected {LAYOUT}")
    return found


def _member(archive: Path, file: str) -> tuple[str, Path]:
    """Text and name of a file in the hub's archive, in whatever folder of it."""
    with zipfile.ZipFile(archive) as opened:
        members = [name for name in opened.namelist() if name.rpartition("/")[2] == f"{file}.jsonl"]
        if len(members) != 1:
            raise ValueError(f"{archive} holds {len(members)} files {file}.jsonl; expected one")
        name = archive / members[0]
        try:
            return opened.read(members[0]).decode("utf-8"), name
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8 ({error})") from error


def check(record: Record, dataset: str, where: str) -> None:
    """ValueError, with `where` and the field, for a record that is not as described or that no score can compare."""
    for name, kind in FIELDS.items():
        field(record, name, kind, where, empty=name != "answers")
    for name in ("answers", "all_classes"):
        if not all(isinstance(text, str) and text for text in record[name] or ()):
            raise ValueError(f"{where}: field {name!r} is {record[name]!r:.60}; expected texts, none empty")
    if record["dataset"] not in (dataset, f"{dataset}_e"):
        raise ValueError(f"{where}: field 'dataset' is {record['dataset']!r}; expected {dataset!r}")
    fits, form = _FORMS.get(dataset, _ANY)
    if not all(fits(text, record) for text in record["answers"]):
        raise ValueError(f"{where}: field 'answers' is {record['answers']!r:.60}; expected {form}")


# The form of an answer that the score of a task compares with.
_ANY: tuple[Callable[[str, Record], bool], str] = (lambda text, record: True, "")
_FORMS: dict[str, tuple[Callable[[str, Record], bool], str]] = {
    "passage_count": (lambda text, record: text.isdecimal(), "a number"),
    "passage_retrieval_en": (
        lambda text, record: longbench_rules.PARAGRAPH.search(text) is not None,
        "'Paragraph' and a number",
    ),
    "trec": (lambda text, record: text in (record["all_classes"] or ()), "names of field 'all_classes'"),
}
