"""Tasks of `longbench_like` that go on with a pattern, without chat wrapping: topics of sentences, lines of code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from nexus.tasks import draws, haystacks
from nexus.tasks.fit import Context, Parts, Plan

FEW_SHOT = dict(
    head="Say which topic the last sentence has. Sentences with their topics come first.\n\n",
    shot="Sentence: {text}\nTopic: {topic}\n",
    question="Sentence: {text}\n",
    answer_prefix="Topic:",
)
CODE = dict(
    head="Go on with this Python code.\n",
    function='def {name}():\n    return "{value}"\n',
    other="def {verb}_{name}(items):\n    total = 0\n    for item in items:\n        total += item.{call} * {number}\n"
    "    return total\n",
    question="\n\ndef test_{name}():\n",
    answer_prefix="    assert {name}() ==",  # the line is begun: after a cue in words a small model starts another one
    answer=' "{value}"',
)
SETTINGS = 4  # functions that return a word
TOPICS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "music": (
        ("The choir", "A young drummer", "The conductor", "Her string quartet", "An old pianist"),
        ("practised the second movement", "sang a cheerful tune", "missed the final chord", "recorded a new song",
         "tuned up before the concert"),
    ),
    "cooking": (
        ("The chef", "My aunt", "A hungry guest", "The apprentice cook", "His neighbour"),
        ("stirred the onion soup", "baked a loaf of rye bread", "peeled six potatoes", "salted the roast twice",
         "fried mushrooms in butter"),
    ),
    "weather": (
        ("A cold wind", "Heavy snow", "The thunderstorm", "Thick fog", "A warm breeze"),
        ("came in from the north", "is expected by tonight", "lasted for three hours", "covered the whole valley",
         "will ease towards morning"),
    ),
    "sport": (
        ("The goalkeeper", "Our captain", "A tired runner", "The swimmer", "Their best striker"),
        ("won the silver medal", "scored just before half-time", "trained for the marathon", "broke the club record",
         "lost the match on penalties"),
    ),
    "money": (
        ("The bank", "A careful investor", "The treasurer", "An insurance firm", "The tax office"),
        ("raised the interest rate", "sold all of its shares", "paid back the loan", "published the yearly accounts",
         "cut the dividend in half"),
    ),
    "animals": (
        ("A grey owl", "The vet's old cat", "A herd of goats", "Two foxes", "The shepherd's dog"),
        ("slept in the hay", "drank from the pond", "chased a mouse", "had three young", "hid from the hunter"),
    ),
}  # fmt: skip
NOUNS = ("invoice", "ticket", "sensor", "polygon", "playlist", "voucher", "calendar", "avatar", "backup", "matrix",
         "bookmark", "address", "camera", "circle", "comment", "cookie", "cursor", "device", "engine", "folder",
         "header", "image", "journal", "keyboard", "layer", "message", "network", "option", "parcel", "query",
         "region", "salary", "signal", "student", "symbol", "thread", "token", "vector", "video", "widget", "window",
         "zone")  # fmt: skip
VERBS = ("load", "merge", "rotate", "filter", "encode", "shrink", "verify", "publish", "split", "rename", "append",
         "render")  # fmt: skip
CALLS = ("width", "height", "price", "length", "score", "count", "level", "angle")
KINDS = ("mode", "label", "style", "owner", "theme", "status")
VALUES = ("round", "lower", "strict", "lazy", "inner", "sorted", "daily", "compact", "legacy", "remote", "silent",
          "purple", "double", "frozen", "global", "hidden", "loose", "modern", "narrow", "open", "public", "quick",
          "random", "simple", "tall", "urgent", "vivid", "weekly", "yellow", "zigzag")  # fmt: skip


def few_shot(where: Context) -> Plan:
    """Sentences with their topics, each topic about as often; the last sentence is not among them."""
    rng = where.draws.sample("shots")
    topics = tuple(TOPICS)
    topic = topics[rng.integers(len(topics))]
    asked = _sentence(rng, topic)
    order = where.draws.sample("topics")
    shots: list[str] = []

    def first(n: int) -> str:
        while len(shots) < n:
            for name in order.permutation(topics):
                shots.append(FEW_SHOT["shot"].format(text=_sentence(rng, name, other_than=asked), topic=name))
        return "".join(shots[:n])

    return Plan(
        unit="solved sentences",
        floor=len(topics),
        build=lambda n: Parts(
            head=FEW_SHOT["head"],
            body=first(n),
            tail="",
            question=FEW_SHOT["question"].format(text=asked),
            answer_prefix=FEW_SHOT["answer_prefix"],
            references=(topic,),
            choices=topics,
            chat=False,
            first_line=True,
        ),
    )


def code(where: Context) -> Plan:
    """Functions that return a word stand at drawn depths between others; a test of one of them is to be ended."""
    rng = where.draws.sample("functions")
    names = _names(rng)
    settings = [{"name": next(names), "value": draws.one(rng, VALUES)} for _ in range(SETTINGS)]
    written = tuple(CODE["function"].format(**setting) for setting in settings)
    asked, depths = settings[rng.integers(SETTINGS)], np.sort(rng.random(SETTINGS))
    others: list[str] = []

    def first(n: int) -> list[str]:
        while len(others) < n:
            words = {"verb": draws.one(rng, VERBS), "call": draws.one(rng, CALLS), "number": rng.integers(2, 100)}
            others.append(CODE["other"].format(name=next(names), **words))
        return others[:n]

    return Plan(
        unit="functions",
        floor=0,
        build=lambda n: Parts(
            head=CODE["head"],
            body="\n".join(haystacks.insert(first(n), np.round(depths * n).astype(int), written)),
            tail="",
            question=CODE["question"].format(**asked),
            answer_prefix=CODE["answer_prefix"].format(**asked),
            references=(CODE["answer"].format(**asked),),
            planted=written,
            chat=False,
        ),
    )


def _sentence(rng: np.random.Generator, topic: str, other_than: str = "") -> str:
    while (text := f"{' '.join(draws.one(rng, part) for part in TOPICS[topic])}.") == other_than:
        pass
    return text


def _names(rng: np.random.Generator) -> Iterator[str]:
    """Names of functions, none twice: each noun with a drawn kind, and numbered once all nouns are used."""
    for turn in itertools.count(1):
        for i in rng.permutation(len(NOUNS)):
            yield f"{NOUNS[i]}_{draws.one(rng, KINDS)}{'' if turn == 1 else f'_{turn}'}"
