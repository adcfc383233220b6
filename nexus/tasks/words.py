"""Random words, numbers and identifiers for the synthetic tasks.

The word lists are those of the `wonderwords` package, stripped of blanks at their ends (some entries have them). A few
entries are two words ("ad hoc") or have capitals ("ATM"); they stay.
"""

from __future__ import annotations

import functools
import hashlib
import uuid

import numpy as np
import wonderwords


@functools.cache
def words_of(category: str) -> tuple[str, ...]:
    """The sorted distinct words of one category: "noun", "adjective" or "verb"."""
    found = wonderwords.RandomWord(enhanced_prefixes=False).filter(include_categories=[category])
    return tuple(sorted({word.strip() for word in found} - {""}))


@functools.cache
def all_words() -> tuple[str, ...]:
    """Nouns, adjectives and verbs, sorted, without words that differ only in capitals (answers ignore them)."""
    by_folded = {word.casefold(): word for kind in ("noun", "adjective", "verb") for word in words_of(kind)}
    return tuple(sorted(by_folded.values()))


@functools.cache
def words_hash() -> str:
    """sha256 of the word lists, to tell data made with other lists apart."""
    lists = "\n\n".join("\n".join(words_of(kind)) for kind in ("noun", "adjective", "verb"))
    return hashlib.sha256(lists.encode()).hexdigest()


def word_pair(rng: np.random.Generator) -> str:
    """`adjective-noun`, uniform over all pairs."""
    adjectives, nouns = words_of("adjective"), words_of("noun")
    return f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"


def number(rng: np.random.Generator, digits: int = 7) -> str:
    """A uniform decimal number of exactly `digits` digits."""
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def uuid4(rng: np.random.Generator) -> str:
    """A version-4 UUID from 128 random bits."""
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def letters(rng: np.random.Generator, alphabet: str, size: int) -> str:
    """`size` letters drawn with replacement from `alphabet`."""
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=size))


MAKERS = {"word": word_pair, "number": number, "uuid": uuid4}


def value(kind: str, rng: np.random.Generator) -> str:
    """One key or value of a kind in `MAKERS`."""
    return MAKERS[kind](rng)
