"""facts_told: a session in which the user tells things early, talks of others, and asks for each thing late.

Ours. There is no document: facts are user turns of their own, after each comes a page of an essay with a little talk,
and the questions come at the end, in random order. So the tokens between telling and asking vary from question to
question within one session, and the cache has evicted many times in between. The assistant repeats what it is told, as
assistants do; this also brings the task within reach of small models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from nexus.tasks import draws, haystacks, words
from nexus.tasks.dialogue.fitting import Plan, Where
from nexus.tasks.dialogue.schema import Turn


@dataclasses.dataclass(frozen=True)
class Fact:
    """One thing to tell: how it is told, asked, and how the answer begins; {value} is of a kind in `KINDS`."""

    kind: str
    tell: str
    ask: str
    answer_prefix: str


FACTS = (
    Fact("number", "my locker code is {value}.", "What is my locker code?", "Your locker code is"),
    Fact("number", "my passport number is {value}.", "What is my passport number?", "Your passport number is"),
    Fact("number", "my lottery ticket is {value}.", "What is my lottery ticket?", "Your lottery ticket is"),
    Fact("number", "my customer id is {value}.", "What is my customer id?", "Your customer id is"),
    Fact("name", "my dog is called {value}.", "What is my dog called?", "Your dog is called"),
    Fact("name", "my sister is called {value}.", "What is my sister called?", "Your sister is called"),
    Fact("name", "my dentist is called {value}.", "What is my dentist called?", "Your dentist is called"),
    Fact("name", "my boat is called {value}.", "What is my boat called?", "Your boat is called"),
    Fact("town", "I was born in {value}.", "In which town was I born?", "You were born in"),
    Fact("town", "my parents live in {value}.", "Where do my parents live?", "Your parents live in"),
    Fact("town", "my hotel is in {value}.", "Where is my hotel?", "Your hotel is in"),
    Fact("town", "my school was in {value}.", "Where was my school?", "Your school was in"),
)
NAMES = (
    "Bruno", "Odette", "Milo", "Tilda", "Casper", "Ingrid", "Rufus", "Paloma", "Otis", "Greta", "Hugo", "Wilma",
    "Felix", "Nadia", "Basil", "Freya", "Oscar", "Juno", "Linus", "Petra", "Ziggy", "Clara", "Anton", "Maude",
)  # fmt: skip
TOWNS = (
    "Quito", "Bergen", "Porto", "Ghent", "Nairobi", "Tampere", "Windhoek", "Bologna", "Krakow", "Valencia", "Hanoi",
    "Cordoba", "Tallinn", "Leipzig", "Perth", "Ottawa", "Lagos", "Sapporo", "Malaga", "Utrecht", "Riga", "Havana",
    "Nantes", "Dakar",
)  # fmt: skip
LEADS = ("By the way, ", "So that you know, ", "One more thing: ", "Something about me: ")
TALK = (
    "I had a slow morning and read this page.", "It is windy today, so I stayed in with a book.",
    "My neighbour lent me a book of essays.", "On the train I came across these lines.",
    "While lunch was in the oven I read on.", "A friend sent me another page yesterday evening.",
    "The café was full, and I found this on the table.", "Before going to bed I read a bit more.",
)  # fmt: skip
NOTED = ("Got it. {said} {value}.", "Okay. {said} {value}.", "Good. {said} {value}.")  # said: how the answer begins
HEARD = ("A nice read.", "Interesting page.", "Enjoy the book.")
PAGE = "{talk} It says: {text} ... That is all of it."
WORDING = dict(
    facts=[dataclasses.asdict(fact) for fact in FACTS], names=NAMES, towns=TOWNS, leads=LEADS, noted=NOTED, talk=TALK,
    page=PAGE, heard=HEARD,
)  # fmt: skip
MAX_NEW_TOKENS = 16
DIGITS = 7
KINDS: dict[str, Callable[[np.random.Generator], str]] = {
    "number": lambda rng: words.number(rng, DIGITS),
    "name": lambda rng: _chosen(NAMES, rng),
    "town": lambda rng: _chosen(TOWNS, rng),
}


def plan(where: Where) -> Plan:
    """One conversation: facts, talk and their order are drawn here, once; only the pages depend on n, in words.

    ValueError for more questions than there are things to tell.
    """
    if where.questions > len(FACTS):
        raise ValueError(f"task {where.draws.task} has {len(FACTS)} things to ask for, not {where.questions}")
    rng, q = where.draws.sample("facts"), where.questions
    told = _mixed(rng, q)
    values: list[str] = []
    for fact in told:
        values += draws.distinct(lambda make=KINDS[fact.kind]: make(rng), 1, taken=values)  # type: ignore[misc]
    tellings = [_tell(fact, value, rng) for fact, value in zip(told, values, strict=True)]
    questions = [_ask(told[i], values[i], tellings[i].user) for i in rng.permutation(q)]
    talk = [_chosen(TALK, rng) for _ in range(q)]
    heard = [_chosen(HEARD, rng) for _ in range(q)]
    shares = np.cumsum(rng.uniform(0.5, 1.5, q))
    text = _text(where)

    def build(n: int) -> tuple[str, tuple[Turn, ...]]:
        found = text(n)
        edges = [0, *np.round(shares / shares[-1] * n).astype(int)]
        turns: list[Turn] = []
        for i, telling in enumerate(tellings):
            page = PAGE.format(talk=talk[i], text=" ".join(found[edges[i] : edges[i + 1]]))
            turns += [telling, Turn(user=page, reply=heard[i], asked=False)]
        return "", (*turns, *questions)

    return Plan(unit="words of essays", floor=4 * q, build=build)


def _text(where: Where) -> Callable[[int], list[str]]:
    """n -> n successive words of the essays, from a place drawn once."""
    essays = where.essays or haystacks.package_essays()
    first = int(where.draws.sample("page").integers(len(essays.sentences)))
    ahead = essays.ends[first - 1] if first else 0

    def words_of(n: int) -> list[str]:
        return " ".join(essays.first_words(ahead + n)).split(" ")[ahead:]

    return words_of


def _chosen(texts: Sequence[str], rng: np.random.Generator) -> str:
    return texts[int(rng.integers(len(texts)))]


def _mixed(rng: np.random.Generator, count: int) -> list[Fact]:
    """So many facts in random order, of as many kinds as possible: alike ones are easily taken for each other."""
    shuffled = [FACTS[i] for i in rng.permutation(len(FACTS))]
    earlier = [sum(other.kind == fact.kind for other in shuffled[:i]) for i, fact in enumerate(shuffled)]
    chosen = np.argsort(earlier, kind="stable")[:count]
    return [shuffled[i] for i in rng.permutation(chosen)]


def _tell(fact: Fact, value: str, rng: np.random.Generator) -> Turn:
    user = _chosen(LEADS, rng) + fact.tell.format(value=value)
    reply = _chosen(NOTED, rng).format(said=fact.answer_prefix, value=value)
    return Turn(user=user, reply=reply, asked=False)


def _ask(fact: Fact, value: str, told: str) -> Turn:
    return Turn(
        user=fact.ask, reply=f" {value}.", answer_prefix=fact.answer_prefix, references=(value,), metric="contains",
        max_new_tokens=MAX_NEW_TOKENS, evidence=told,
    )  # fmt: skip
