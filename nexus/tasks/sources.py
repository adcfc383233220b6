"""Where files of others come from: the user's folder when one is given, else the Hugging Face hub, else an error.

Files are read as they are: JSON lines, a JSON list, or parquet as the hub keeps it. Nothing is unpacked or converted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
from pyarrow import parquet

from nexus.tasks import reading
from nexus.tasks.reading import Record


def locate(data_dir: str | Path, name: str, layout: str, *, repo: str, hub_file: str) -> Path:
    """The file `name` of the folder `data_dir`, or without a folder ("") `hub_file` of a data set on the hub.

    ValueError when it is not there: it names the file and its `layout`.
    """
    if str(data_dir):
        path = Path(data_dir) / name
        if not path.is_file():
            raise ValueError(f"no file {path}; expected {layout}")
        return path
    try:
        with _quiet():
            return Path(huggingface_hub.hf_hub_download(repo, hub_file, repo_type="dataset"))
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{hub_file} of the data set {repo} could not be had from the hub ({reason}). Without access to it set "
            f"eval.data_dir to a folder that holds {name}: {layout}"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library's lines about every further try off the screen: the error says what matters."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def records(path: Path, layout: str) -> Iterator[tuple[Record, str]]:
    """(record, where it stands) of a file of JSON lines, a JSON list of objects, or a parquet table, by its content.

    ValueError for a file of another kind, which names the file, the line and what was expected.
    """
    if path.suffix == ".parquet":
        for number, row in enumerate(parquet.read_table(path).to_pylist(), 1):
            yield row, f"{path}, row {number}"
        return
    text, _ = reading.content(path, layout)
    if not text.lstrip().startswith("["):
        yield from reading.json_lines(text, path)
        return
    for number, row in enumerate(reading.parsed(text, str(path), list), 1):
        where = f"{path}, record {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where}: expected an object, got {type(row).__name__}; {layout}")
        yield row, where
