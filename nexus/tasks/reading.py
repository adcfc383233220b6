"""Files of records that others made: every complaint names the file, the line or record, and the field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def content(path: Path, layout: str) -> tuple[str, str]:
    """(text, sha256) of a file. ValueError when it is missing (layout: what it should hold) or no UTF-8."""
    if not path.is_file():
        raise ValueError(f"no file {path}; expected {layout}")
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), hashlib.sha256(data).hexdigest()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error})") from error


def json_lines(text: str, path: Path) -> Iterator[tuple[Record, str]]:
    """(record, where it stands) of every line that is not empty. ValueError for a line that is no JSON object."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield parsed(line, where, dict), where


def parsed(text: str, where: str, kind: type) -> Any:
    """JSON of one kind. ValueError for anything else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {_name(kind)}, got {type(value).__name__}")
    return value


def field(record: Any, name: str, kind: type | tuple[type, ...], where: str, *, empty: bool = False) -> Any:
    """A field of a record. ValueError when it is missing, of another kind, or empty where it must not be."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected object, got {type(record).__name__}")
    if name not in record:
        raise ValueError(f"{where}: field {name!r} is missing")
    value = record[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{where}: field {name!r} is {value!r:.60}; expected {' or '.join(map(_name, kinds))}")
    if not empty and isinstance(value, str | list) and not value:
        raise ValueError(f"{where}: field {name!r} is empty")
    return value


def _name(kind: type) -> str:
    return {dict: "object", list: "list", str: "text", int: "integer", float: "number"}.get(kind, kind.__name__)
