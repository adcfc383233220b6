"""A small world: people walk about, take things along and put them down. Where is everybody, and everything?

After the toy tasks of Weston et al., arXiv 1502.05698 (qa1-qa3), written anew with people, places, things and verbs of
our own. An object that was taken goes wherever its holder goes; one that was put down stays. Nobody takes what somebody
else holds or what lies elsewhere, and nobody walks to where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

PEOPLE = ("Anna", "Peter", "Clara", "Hugo")
PLACES = ("airport", "beach", "castle", "forest", "hospital", "theatre")
OBJECTS = ("lantern", "umbrella", "suitcase")
MOVES = ("went to", "walked to", "hurried to", "made a trip to", "set off for")
TAKES = ("took", "picked up", "grabbed", "got hold of")
DROPS = ("put down", "dropped", "left behind", "let go of")


@dataclasses.dataclass
class Story:
    """What was told, and what is true at its end.

    `at`: person -> place. `holder`: object -> person, for those that somebody holds. `seen`: object -> the places it
    has been at since it was first taken, in order.
    """

    sentences: list[str] = dataclasses.field(default_factory=list)
    at: dict[str, str] = dataclasses.field(default_factory=dict)
    holder: dict[str, str] = dataclasses.field(default_factory=dict)
    seen: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def move(self, person: str, place: str, verb: str) -> None:
        self.at[person] = place
        for thing, holder in self.holder.items():
            if holder == person:
                self.seen[thing].append(place)
        self.sentences.append(f"{person} {verb} the {place}.")

    def take(self, person: str, thing: str, verb: str) -> None:
        self.holder[thing] = person
        self.seen.setdefault(thing, [self.at[person]])
        self.sentences.append(f"{person} {verb} the {thing}.")

    def drop(self, person: str, thing: str, verb: str) -> None:
        del self.holder[thing]
        self.sentences.append(f"{person} {verb} the {thing}.")

    def within_reach(self, person: str) -> list[str]:
        """Objects that this person could take: nobody has them, and they were never seen or last seen here."""
        if person not in self.at:
            return []
        free = [thing for thing in OBJECTS if thing not in self.holder]
        return [thing for thing in free if thing not in self.seen or self.seen[thing][-1] == self.at[person]]

    def held_by(self, person: str) -> list[str]:
        return [thing for thing, holder in self.holder.items() if holder == person]


def tell(rng: np.random.Generator, count: int, with_objects: bool) -> Story:
    """A story of `count` sentences."""
    story = Story()
    for _ in range(count):
        person = one(rng, PEOPLE)
        reach, held = (story.within_reach(person), story.held_by(person)) if with_objects else ([], [])
        draw = rng.random()
        if reach and draw < 0.35:
            story.take(person, one(rng, reach), one(rng, TAKES))
        elif held and draw < 0.55:
            story.drop(person, one(rng, held), one(rng, DROPS))
        else:
            story.move(person, one(rng, [p for p in PLACES if p != story.at.get(person)]), one(rng, MOVES))
    return story


def one(rng: np.random.Generator, items: Sequence[str]) -> str:
    """A uniform item."""
    return items[int(rng.integers(len(items)))]
