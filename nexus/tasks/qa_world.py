"""Invented people and the places where they work, as paragraphs with several kinds of facts and questions about them.

Names are put together at random and so is all that is said of them, so a model cannot know an answer; it has to stand
in the text. No name is one of a training record (`nexus.training.wordings`), and sentences are our own.
"""

from __future__ import annotations

import dataclasses

import numpy as np

FIRST = ("Alice", "Arthur", "Beatrice", "Bernard", "Caroline", "Conrad", "Daphne", "Dennis", "Edith", "Edgar", "Emma",
         "Felix", "Flora", "Frank", "Grace", "George", "Helen", "Henry", "Ida", "Isaac", "Jane", "Julian", "Kate",
         "Karl", "Laura", "Leo", "Martha", "Martin", "Nora", "Oscar", "Paula", "Philip", "Rose", "Robert", "Sarah",
         "Simon", "Susan", "Thomas", "Vera", "Victor", "Wendy", "Walter")  # fmt: skip
LAST = ("Archer", "Baker", "Barnes", "Bell", "Bishop", "Brooks", "Butler", "Carter", "Chapman", "Cole", "Cook",
        "Cooper",
        "Cross", "Day", "Dean", "Ellis", "Fisher", "Fletcher", "Foster", "Fox", "Gardner", "Gibson", "Grant", "Gray",
        "Harper", "Hart", "Hayes", "Holmes", "Hunt", "Jordan", "King", "Knight", "Lamb", "Lane", "Marsh", "Mason",
        "Miller", "Moore", "Nash", "Page", "Palmer", "Parker", "Payne", "Porter", "Price", "Reed", "Rice",
        "Sharp", "Shaw", "Spencer", "Stone", "Taylor", "Turner", "Walker", "Ward", "Watts", "Webb", "West",
        "Young")  # fmt: skip
TOWN = (("Apple", "Black", "Bright", "Clay", "Cold", "Fair", "Gold", "Green", "High", "Iron", "Long", "Moon", "North",
         "Oak", "Red", "Rock", "Salt", "Silver", "Snow", "White"),
        ("bridge", "brook", "bury", "dale", "field", "ford", "ham", "haven", "hill", "mouth", "port",
         "ton"))  # fmt: skip
EMBLEM = (("Silver", "Golden", "Scarlet", "Crooked", "Sleeping", "Painted", "Northern", "Broken", "Humble", "Ancient",
           "Winged", "Marbled", "Laughing", "Hollow", "Azure", "Twin"),
          ("Heron", "Falcon", "Badger", "Otter", "Salmon", "Raven", "Stag", "Lynx", "Beetle", "Swallow", "Hare",
           "Tortoise", "Pelican", "Moth", "Crane", "Weasel"))  # fmt: skip
KIND = ("Institute", "Observatory", "Foundation", "Academy", "Hospital", "Theatre", "Laboratory", "College")
TITLE = (("A Letter to", "The Return of", "Waiting for", "The Secret of", "In Praise of", "A History of"),
         ("the Lighthouse Keeper", "the Last Winter", "the Glass Bridge", "the Forgotten Sea", "the Paper Crown",
          "the Iron Staircase", "the Blue Meadow", "the Seventh Candle", "the Wandering Judge", "the Stone Garden",
          "the Midnight Train", "the Quiet Island"))  # fmt: skip
OCCUPATION = ("cartographer", "beekeeper", "glassblower", "surveyor", "botanist", "printer", "astronomer", "weaver",
              "clockmaker", "shipwright", "geologist", "translator", "bookbinder", "chemist", "meteorologist",
              "architect", "engraver", "pharmacist", "lawyer", "photographer")  # fmt: skip
INSTRUMENT = ("cello", "oboe", "harp", "trumpet", "accordion", "flute", "mandolin", "clarinet", "bassoon", "violin")
FAMED_FOR = ("its collection of meteorites", "its frescoes", "a huge brass telescope", "its herb beds",
             "a staircase of white stone", "its maps of the seabed", "a clock with four faces",
             "its early photographs")  # fmt: skip
WORDING = dict(
    person="{name} came into the world in {born}, the youngest of {siblings} children. The birthplace of {name} was the"
    " town of {town}.",
    occupation="The profession of {name} was that of {article} {occupation}.|By profession {name} was {article}"
    " {occupation}.",
    work="{name} was employed at {place}.|It was {place} that employed {name}.",
    instrument="The musical instrument that {name} played was the {instrument}.|{name} played the {instrument}, a"
    " musical instrument.",
    book='The title of the only book by {name} is "{title}".|A book by {name} has the title "{title}".',
    marriage="{name} was married to {spouse}.|The spouse of {name} was {spouse}.",
    place="{Place} is an institution in the town of {town}.|In the town of {town} there is {place}, an institution.",
    founder="{founder} founded {place} in the year {founded}.|{Place} was founded by {founder} in the year {founded}.",
    fame="Visitors admire {fame}.|It owes its name in the wide world to {fame}.",
    staff="A staff of {staff} looks after everything.|It gives work to {staff} people.",
)
ASK = dict(
    town="Which town was the birthplace of {name}?",
    occupation="What was the profession of {name}?",
    place="At which institution was {name} employed?",
    instrument="Which musical instrument did {name} play?",
    title="What is the title of the book by {name}?",
    spouse="Who was {name} married to?",
)
ASK_TWICE = dict(
    town="In which town is the institution that employed {name}?",
    founder="Who founded the institution that employed {name}?",
    founded="In which year was the institution that employed {name} founded?",
)


MOST_TRIES = 100  # until a name is used again


@dataclasses.dataclass(frozen=True)
class Pair:
    """Somebody and the place where this person works: the facts, by name, and a paragraph about each."""

    person: dict[str, str]
    place: dict[str, str]
    about_person: str
    about_place: str


class World:
    """An endless row of pairs, the same for the same generator; no two of a hundred people or places share a name."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pairs: list[Pair] = []
        self._taken: set[str] = set()  # names and emblems

    def pair(self, number: int) -> Pair:
        """Pair number 0, 1, ..."""
        while len(self._pairs) <= number:
            self._pairs.append(self._draw())
        return self._pairs[number]

    def _draw(self) -> Pair:
        place = {
            "place": f"the {self._new(EMBLEM)} {self._one(KIND)}",
            "town": self._joined(TOWN),
            "founder": self._name(),
            "founded": self._number(1720, 1860),
            "fame": self._one(FAMED_FOR),
            "staff": self._number(12, 90),
        }
        name = self._name()
        occupation = self._one(OCCUPATION)
        person = {
            "name": name,
            "town": self._elsewhere(place["town"]),
            "born": self._number(1861, 1930),
            "siblings": self._one(("three", "four", "five", "six", "seven")),
            "occupation": occupation,
            "article": "an" if occupation[0] in "aeiou" else "a",
            "place": place["place"],
            "instrument": self._one(INSTRUMENT),
            "title": " ".join(map(self._one, TITLE)),
            "spouse": self._name(),
        }
        later = [self._rng.permutation(names) for names in (_PERSON, _PLACE)]
        return Pair(
            person=person,
            place=place,
            about_person=self._paragraph(["person", *later[0]], person),
            about_place=self._paragraph(["place", *later[1]], place),
        )

    def _paragraph(self, sentences: list[str], facts: dict[str, str]) -> str:
        """One sentence of each kind, in one of its forms."""
        facts = facts | {"Place": facts["place"].replace("the ", "The ", 1)}
        return " ".join(self._one(WORDING[kind].split("|")).format(**facts) for kind in sentences)

    def _name(self) -> str:
        """First and last name, of nobody so far as long as there are such names."""
        return self._new((FIRST, LAST))

    def _elsewhere(self, town: str) -> str:
        """Another town, so that a birthplace never gives away where somebody works."""
        while (other := self._joined(TOWN)) == town:
            pass
        return other

    def _new(self, parts: tuple[tuple[str, ...], ...]) -> str:
        """A pair of words, new until nearly all have been used."""
        for _ in range(MOST_TRIES):
            found = " ".join(map(self._one, parts))
            if found not in self._taken:
                break
        self._taken.add(found)
        return found

    def _joined(self, parts: tuple[tuple[str, ...], ...]) -> str:
        return "".join(map(self._one, parts))

    def _one(self, items: tuple[str, ...] | list[str]) -> str:
        return items[self._rng.integers(len(items))]

    def _number(self, low: int, high: int) -> str:
        return str(self._rng.integers(low, high))


_PERSON = ("occupation", "work", "instrument", "book", "marriage")
_PLACE = ("founder", "fame", "staff")
