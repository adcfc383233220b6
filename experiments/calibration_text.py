"""Needle texts for the calibration of retrieval heads: own sentences, disjoint from every evaluation.

A text is filler sentences with one needle between two of them; the needle says where somebody keeps something, and the
question asks for it. Filler is generated from small word lists, or read from a folder of .txt files. Everything follows
from (seed, number of the needle); a fingerprint tells which texts a calibration has seen, and texts of an evaluation
are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from nexus.tasks import haystacks

QUESTION = "\nBased on the content of the book, Question: Where does {name} keep the {thing}?"
ANSWER = " Answer: {name} keeps the {thing}"  # what follows is copied from the needle, not retold
EVALUATED = {  # fingerprints of texts that results are reported on
    "f84c34dbb21fdf4da7e88e8a962346ded793a3c76b93ff1aa05d7aa64850caa3": "the essays of the needle tasks",
    hashlib.sha256(" ".join(haystacks.NOISE).encode()).hexdigest(): "the noise sentences of the needle tasks",
}
_NAMES = ("Marta", "Oskar", "Ilse", "Tobias", "Renata", "Viktor", "Paula", "Anton")
_THINGS = ("copper kettle", "violin bow", "ship's bell", "garden shears", "wool blanket", "chess clock", "tin lantern")
_PLACES = (
    "under the third step of the old boathouse", "behind the blue door in the cellar of the mill",
    "inside a hollow oak beside the railway bridge", "on the top shelf of the small bakery",
    "in a wooden crate next to the harbour crane", "beneath the loose board of the attic floor",
)  # fmt: skip
_SUBJECTS = (
    "the ferryman", "a young teacher", "the baker's sister", "an old sailor", "the postman", "a travelling doctor",
    "the keeper of the bridge", "a quiet carpenter", "the town clerk", "a girl from the valley",
)  # fmt: skip
_DEEDS = (
    "walked along the river", "counted the barrels in the yard", "waited for the evening train", "mended a torn sail",
    "wrote a long letter to a cousin", "carried two baskets of apples", "looked for a lost glove",
    "closed the shutters", "spoke about the harvest", "drew a map of the marshes", "fed the horses",
    "listened to the rain",
)  # fmt: skip
_TIMES = (
    "early in the morning", "after the market had closed", "late in autumn", "on a windy Tuesday",
    "before the snow came", "during the long holidays", "when the bells had rung", "towards the end of the week",
)  # fmt: skip
_ENDS = (
    "and nobody asked why", "while the dogs slept", "as every year", "without saying a word", "and then went home",
    "because the road was flooded", "although it was cold", "and the neighbours were pleased",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Needle:
    """One fact, and the question it answers."""

    sentence: str
    question: str
    answer_prefix: str
    place: str


@dataclasses.dataclass(frozen=True)
class Filler:
    """Sentences in order, and where they come from."""

    sentences: tuple[str, ...]
    source: str
    sha256: str


def needle(seed: int, number: int) -> Needle:
    """The needle of a number; neighbours differ in name, thing and place."""
    rng = np.random.default_rng([seed, 1])
    name, thing, place = (
        list_[rng.permutation(len(list_))[number % len(list_)]] for list_ in (_NAMES, _THINGS, _PLACES)
    )
    question, prefix = (text.format(name=name, thing=thing) for text in (QUESTION, ANSWER))
    return Needle(f"{name} keeps the {thing} {place}.", question, prefix, place)


def filler(seed: int, count: int, folder: str = "") -> Filler:
    """`count` sentences: generated, or the first ones of a folder's .txt files.

    Raises ValueError for a folder without text, or with a text that an evaluation uses.
    """
    if folder:
        essays = haystacks.folder_essays(folder)
        sentences = tuple(" ".join(words) for words in essays.sentences)
        refuse_evaluated(essays.sha256, sentences, folder)
        return Filler((sentences * (count // len(sentences) + 1))[:count], folder, essays.sha256)
    rng = np.random.default_rng([seed, 2])
    pick = lambda items: items[rng.integers(len(items))]  # noqa: E731
    drawn = [f"{pick(_TIMES)}, {pick(_SUBJECTS)} {pick(_DEEDS)} {pick(_ENDS)}." for _ in range(count)]
    made = tuple(sentence[0].upper() + sentence[1:] for sentence in drawn)
    return Filler(made, "generated", hashlib.sha256(" ".join(made).encode()).hexdigest())


def refuse_evaluated(sha256: str, sentences: tuple[str, ...], name: str) -> None:
    """Raises ValueError if a text, or a sentence of it, belongs to an evaluation: no choice is made on test data."""
    if sha256 in EVALUATED:
        raise ValueError(f"{name} holds {EVALUATED[sha256]}: calibrate on data outside every evaluation")
    shared = sorted(set(haystacks.NOISE) & set(sentences))
    if shared or any("special magic" in sentence for sentence in sentences):
        raise ValueError(f"{name} holds sentences of the needle tasks ({shared or 'special magic ...'})")


def fingerprint(texts: list[str]) -> str:
    """sha256 over all texts of a calibration, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(texts)).encode()).hexdigest()
