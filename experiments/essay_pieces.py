"""Successive pieces of the essays, as tokens: what experiments read that need plain text and no question."""

from __future__ import annotations

from experiments.plan import ConfigError
from nexus.models.tokenizer import Tokenizer
from nexus.tasks import haystacks

WORDS = 2  # read per token that is wanted: surely enough


def pieces(tokenizer: Tokenizer, section: str, count: int, length: int) -> list[list[int]]:
    """`count` pieces of `length` tokens. Raises ConfigError, naming <section>.texts, when the essays are too short."""
    ids = tokenizer.encode(" ".join(haystacks.package_essays().first_words(WORDS * count * length)))
    if len(ids) < count * length:
        raise ConfigError(f"{section}.texts={count}: the essays give {len(ids)} of {count * length} tokens")
    return [ids[i * length : (i + 1) * length] for i in range(count)]
