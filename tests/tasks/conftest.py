"""A tokenizer that needs no model file, and an essay text of our own."""

from __future__ import annotations

import functools
import re

import pytest

from nexus.tasks import generated, ruler
from nexus.tasks.haystacks import EssayText


class PieceTokenizer:
    """Pieces of at most five letters, single digits and signs, special tokens whole. Ids are given on first sight."""

    fingerprint = "pieces"
    _piece = re.compile(r"<\|\w+\|>| ?[A-Za-z]{1,5}|\d|\s|[^\sA-Za-z\d]")

    def __init__(self):
        self._ids, self._texts = {}, []

    def encode(self, text):
        out = []
        for piece in self._piece.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._texts)
                self._texts.append(piece)
            out.append(self._ids[piece])
        return out

    def decode(self, ids, skip_special=True):
        texts = (self._texts[i] for i in ids)
        return "".join(text for text in texts if not (skip_special and text.startswith("<|")))

    def prompt(self, context, question, answer_prefix, system=None, *, chat=True):
        if not chat:
            return self.encode(context), self.encode(question + answer_prefix)
        return (
            self.encode(f"<|user|>\n{context}"),
            self.encode(f"{question}<|end|>\n<|assistant|>\n{answer_prefix}"),
        )


@pytest.fixture
def tokenizer():
    return PieceTokenizer()


@pytest.fixture(scope="session")
def essays():
    """Sixty different sentences of 4 to 13 words."""
    nouns = "river stone window garden letter winter market engine harbour candle".split()
    sentences = []
    for i in range(60):
        middle = " ".join(nouns[(i * 7 + j * (i + 3)) % 10] for j in range(i % 10 + 1))
        sentences.append(f"The {nouns[i % 10]} keeps {middle}{'.?!'[i % 3]}")
    return EssayText.from_texts(sentences)


@pytest.fixture
def make(tokenizer, essays):
    """make(task, length, index=0, seed=42) -> Example, with the tokenizer and the essays of the tests."""

    def make_one(task, length, index=0, seed=42):
        return generated.make_example(ruler.TASKS[task], tokenizer, length, index, seed, essays)

    return functools.cache(make_one)
