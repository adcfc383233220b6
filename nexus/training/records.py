"""Training documents: facts in prose, somewhere in a long text, and questions about them in turns at the end.

    facts      one or several templates, most often ONE repeated with other keys, so that keys must be told apart
    tracking   things are moved from place to place; where are they in the end?
    dialogue   facts told over many turns, asked late
    text       prose without questions

A document is tokens with two masks: those that are judged, values and the end of an answer, not the words around them,
which no cache can foresee; and those before which a stream is cut. Everything is drawn from (seed, index) alone.
Wordings, keys and texts are disjoint from every evaluation, see `wordings` and `texts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nexus.models.tokenizer import Tokenizer
from nexus.training import texts, wordings
from nexus.training.wordings import Template

VERSION = "2.4.0"  # of what the same (kind, seed, index, length) gives


TRIES = 30  # draws of a single fact before a length is called too short
IN_ANSWER = 32  # generated tokens between two evictions


@dataclasses.dataclass(frozen=True)
class Document:
    """tokens [n] int32; answer [n] bool: judged; cut [n] bool: a stream is cut before this token."""

    tokens: np.ndarray
    answer: np.ndarray
    cut: np.ndarray


class Turn(NamedTuple):
    """A question, and its answer in pieces: the text, and whether it is judged."""

    ask: str
    reply: tuple[tuple[str, bool], ...]

    @property
    def answer(self) -> str:
        return "".join(text for text, _ in self.reply)


@dataclasses.dataclass(frozen=True)
class Talk:
    """Sentences to be spread over a text in this order; what is asked about it, with the answers; and the subject."""

    sentences: list[str]
    turns: list[Turn]
    about: str


@dataclasses.dataclass(frozen=True)
class Fact:
    """One key with its values, in the order in which the text gives them."""

    template: Template
    key: str
    values: list[str]


class TooShort(ValueError):
    """Not even one fact fits a length."""


Builder = Callable[[Tokenizer, int, np.random.Generator], Document]


def document(kind: str, tokenizer: Tokenizer, length: int, seed: int, index: int) -> Document:
    """A document of at most `length` tokens, nearly filled. Raises KeyError for an unknown kind, and TooShort."""
    rng = np.random.default_rng([seed, index, sum(map(ord, kind))])
    return KINDS[kind](tokenizer, length, rng)


# --- what is said and asked ---------------------------------------------------------------------------------------


def facts(rng: np.random.Generator, most: int) -> Talk:
    """Up to `most` facts, more often few; several values for one key in a third of the documents.

    No two facts share a key, and no two values of a key are equal: every question has one answer.
    """
    count = 1 + int(most * rng.random() ** 1.5)
    templates = wordings.templates(1 if rng.random() < 0.6 else min(5, count), rng)
    kind = wordings.VALUE_KINDS[rng.choice(3, p=(0.6, 0.2, 0.2))]
    per_key = int(rng.integers(2, 5)) if most > 1 and rng.random() < 0.35 else 1
    ordinary = rng.choice((0.0, 0.5, 1.0), p=(0.4, 0.2, 0.4))  # mostly keys of one kind: they are harder to tell apart
    keys = _distinct(lambda: wordings.name(rng, ordinary), max(1, count // per_key))
    told = [
        Fact(templates[i % len(templates)], key, _distinct(lambda: wordings.value(kind, rng), per_key))
        for i, key in enumerate(keys)
    ]
    sentences = _said_in_some_order(told, rng)
    style = str(rng.choice(wordings.STYLES))
    asked = [told[i] for i in rng.permutation(len(told))[: rng.integers(1, 7)]]
    turns = [_asked(fact, style) for fact in asked]
    if len(asked) > 1 and rng.random() < 0.5:
        together = len(templates) == 1 and rng.random() < 0.7
        turns = [_asked_in_one_sentence(asked, style) if together else _asked_at_once(turns)]
    return Talk(sentences, turns, wordings.together(sorted({fact.template.about for fact in told})))


def _distinct(draw: Callable[[], str], count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def _said_in_some_order(told: list[Fact], rng: np.random.Generator) -> list[str]:
    """One sentence a value; the values of one key stay in their order."""
    places = rng.permutation([i for i, fact in enumerate(told) for _ in fact.values])
    left = [iter(fact.values) for fact in told]
    return [wordings.filled(told[i].template.fact, key=told[i].key, value=next(left[i])) for i in places]


def _asked(fact: Fact, style: str) -> Turn:
    t, several = fact.template, len(fact.values) > 1
    start = wordings.filled(t.answer, key=fact.key, s="s" if several else "", are="are" if several else "is")
    values = wordings.listed(fact.values, style)
    ask = wordings.filled(t.ask_all if several else t.ask, key=fact.key)
    return Turn(ask, ((start, False), (values, True)) if start else ((values.lstrip(" :\n"), True),))


def _asked_at_once(turns: list[Turn]) -> Turn:
    first, *others = turns
    reply = first.reply + tuple(piece for turn in others for piece in (("\n", False), *turn.reply))
    return Turn(" ".join(turn.ask for turn in turns), reply)


def _asked_in_one_sentence(facts: list[Fact], style: str) -> Turn:
    """Of several keys in the same words: one list of all their values."""
    keys = wordings.together([fact.key for fact in facts])
    return _asked(Fact(facts[0].template, keys, [v for fact in facts for v in fact.values]), style)


def tracking(rng: np.random.Generator, most: int) -> Talk:
    """Things move about; the last place counts."""
    things = rng.choice(wordings.ITEMS, int(rng.integers(2, 6)), replace=False)
    owner = wordings.name(rng)
    where: dict[str, str] = {}
    sentences = []
    for _ in range(int(rng.integers(len(things), max(len(things) + 1, most)))):
        thing, place = str(rng.choice(things)), str(rng.choice(wordings.PLACES))
        verb = "carried" if thing in where else "put"
        sentences.append(wordings.filled("{owner} {verb} the {thing} jar to the {place}.", owner=owner, verb=verb,
                                         thing=thing, place=place))  # fmt: skip
        where[thing] = place
    asked = rng.permutation(sorted(where))[:3]
    turns = [
        Turn(f"Where is the {x} jar in the end?", ((f"The {x} jar is in the", False), (f" {where[x]}.", True)))
        for x in map(str, asked)
    ]
    return Talk(sentences, turns, "the places of jars")


# --- documents ----------------------------------------------------------------------------------------------------


def _about(make: Callable[[np.random.Generator, int], Talk]) -> Builder:
    def build(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Document:
        for most in _fewer(max(2, length // (20 if rng.random() < 0.25 else 60))):
            made = _spread(tokenizer, length, rng, make(rng, most))
            if made is not None:
                return made
        raise TooShort(f"{length} tokens are too few for a training document")

    return build


def _fewer(most: int) -> Iterator[int]:
    """Half as many facts at every try; then one fact, drawn anew `TRIES` times: one of them is short enough."""
    while most > 1:
        yield most
        most //= 2
    yield from [1] * TRIES


def _spread(tokenizer: Tokenizer, length: int, rng: np.random.Generator, talk: Talk) -> Document | None:
    """The sentences of a talk in a filler of as many sentences as fit, then the turns. None: they do not fit alone."""
    primed = rng.random() < 0.4
    introduction = str(rng.choice(wordings.PRIMERS if primed else wordings.INTRODUCTIONS)).format(about=talk.about)
    filler, at = _filler(rng), np.sort(rng.random(len(talk.sentences)))
    separator = "\n" if rng.random() < 0.2 else " "
    late = rng.random() < 0.5

    def made(count: int) -> Document:
        text = introduction + separator.join(_mixed(filler[:count], talk.sentences, at))
        return _dialogue(tokenizer, text + "\n", talk.turns, late)

    best, count, step = made(0), 0, 1
    if len(best.tokens) > length:
        return None
    while step and count < len(filler):  # longer steps while it fits, shorter ones when it does not
        trial = made(count + step)
        if len(trial.tokens) <= length:
            best, count, step = trial, count + step, step * 2
        else:
            step //= 4
    return best


def _mixed(filler: Sequence[str], sentences: list[str], at: np.ndarray) -> list[str]:
    """Sentence i of the talk after the share at[i] of the filler."""
    places = np.floor(at * (len(filler) + 1)).astype(int)
    out: list[str] = []
    done = 0
    for place, sentence in zip(places, sentences, strict=True):
        out += [*filler[done:place], sentence]
        done = max(done, int(place))
    return out + list(filler[done:])


def _filler(rng: np.random.Generator) -> list[str]:
    """Prose from a random place of the library, or a few sentences over and over."""
    if rng.random() < 0.15:
        return list(wordings.LOOPS[rng.integers(len(wordings.LOOPS))]) * 2000
    library = texts.library()
    documents = library[rng.integers(len(library))]
    start = int(rng.integers(len(documents)))
    first = documents[start][int(rng.integers(len(documents[start]) // 2)) :]
    return [*first, *(sentence for one in (*documents[start + 1 :], *documents[:start]) for sentence in one)]


def _dialogue(tokenizer: Tokenizer, text: str, turns: list[Turn], late: bool, silent: int = 0) -> Document:
    """A text, then user and assistant in turn. Answers after the first `silent` ones, and their end tokens, are judged.

    A stream is cut behind the text, before an answer and after every `IN_ANSWER` of its tokens. late: the words before
    the first value are read with the question, as where an evaluation gives them, and the cut comes after them.
    """
    tokens: list[int] = []
    answer: list[bool] = []
    cuts: list[int] = []

    def say(ids: list[int], judged: list[bool]) -> None:
        tokens.extend(ids)
        answer.extend(judged)

    def end(ids: list[int], judged: bool) -> list[int]:
        """The token that ends an answer belongs to it; what follows does not."""
        ends = 1 if ids[:1] and ids[0] in tokenizer.eos_ids else 0
        say(ids[:ends], [judged] * ends)
        return ids[ends:]

    before, after = tokenizer.prompt(text, turns[0].ask, "")
    cuts += [len(before)] if text else []
    say([*before, *after], [False] * (len(before) + len(after)))
    for i, turn in enumerate(turns):
        if i:
            ids = end(tokenizer.next_turn(turn.ask), i > silent)
            say(ids, [False] * len(ids))
        ids, judged = _reply(tokenizer, turn)
        if i >= silent:
            cuts += range(len(tokens) + (judged.index(True) if late else 0), len(tokens) + len(ids), IN_ANSWER)
        say(ids, [i >= silent and one for one in judged])
    end(tokenizer.next_turn("-"), True)
    return Document(np.array(tokens, np.int32), np.array(answer, bool), np.isin(np.arange(len(tokens)), cuts))


def _reply(tokenizer: Tokenizer, turn: Turn) -> tuple[list[int], list[bool]]:
    """Ids of an answer, and which are judged: those with a character that is."""
    ids = tokenizer.encode(turn.answer)
    characters = [judged for text, judged in turn.reply for _ in text]
    ends = np.cumsum([len(piece) for piece in tokenizer.pieces(ids)])
    return ids, [any(characters[first:last]) for first, last in zip([0, *ends], ends, strict=False)]


def _told_over_turns(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Document:
    """A conversation: facts and remarks in turn, with prose between them, and the questions at the end."""
    filler, late = _filler(rng), rng.random() < 0.5
    for most in _fewer(max(2, length // 80)):
        talk, told = facts(rng, most), []
        for i, sentence in enumerate(talk.sentences):
            prose = filler[i * 3 : i * 3 + int(rng.integers(0, 4))] if most > 1 else []
            told.append(Turn(" ".join([*prose, sentence]), ((str(rng.choice(wordings.REMARKS)), True),)))
        made = _dialogue(tokenizer, "", [*told, *talk.turns], late, silent=len(told))
        if len(made.tokens) <= length:
            return made
    raise TooShort(f"{length} tokens are too few for a training document")


def _prose(tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> Document:
    text = " ".join(_filler(rng)[:length])
    tokens = tokenizer.with_bos(tokenizer.encode(text))[:length]
    return Document(np.array(tokens, np.int32), np.zeros(len(tokens), bool), np.zeros(len(tokens), bool))


KINDS: dict[str, Builder] = {
    "facts": _about(facts),
    "tracking": _about(tracking),
    "dialogue": _told_over_turns,
    "text": _prose,
}
