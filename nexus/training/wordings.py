"""How training records say things: own sentences, own names, own numbers; nothing an evaluation uses.

A template states one value of one key, asks for it, and begins the answer. Keys are invented names or plain things with
a made-up owner; evaluations use other words. `tests/training/test_records.py` asserts the disjointness.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Template:
    """Fields: {key} and {value}; in the answer {values} is a list."""

    fact: str
    ask: str
    ask_all: str
    answer: str


TEMPLATES = (
    Template("The locker of {key} opens with {value}.", "What opens the locker of {key}?",
             "List everything that opens the locker of {key}.", "The locker of {key} opens with {values}"),
    Template("{key} signed the register under {value}.", "Under which entry did {key} sign the register?",
             "Under which entries did {key} sign the register?", "{key} signed the register under {values}"),
    Template("At the counter, {key} was handed ticket {value}.", "Which ticket was {key} handed?",
             "Which tickets was {key} handed?", "{key} was handed {values}"),
    Template("Engineers labelled the valve near {key} as {value}.", "What label did the valve near {key} get?",
             "Name all labels of the valves near {key}.", "The label near {key} was {values}"),
    Template("For {key} the archive keeps folder {value}.", "Which folder does the archive keep for {key}?",
             "Which folders does the archive keep for {key}?", "For {key} the archive keeps {values}"),
    Template("A courier brought crate {value} to {key} before noon.", "Which crate was brought to {key}?",
             "Which crates were brought to {key}?", "The courier brought to {key} {values}"),
    Template("{key} always tunes the radio to {value}.", "What does {key} tune the radio to?",
             "Everything {key} tunes the radio to, please.", "{key} tunes the radio to {values}"),
    Template("The plate on the door of {key} reads {value}.", "What does the plate on the door of {key} read?",
             "What do the plates on the door of {key} read?", "The plate of {key} reads {values}"),
    Template("According to the ledger, {key} owes {value}.", "How much does {key} owe according to the ledger?",
             "List all sums that {key} owes.", "According to the ledger {key} owes {values}"),
    Template("Once a year {key} repaints hull {value}.", "Which hull does {key} repaint?",
             "Which hulls does {key} repaint?", "{key} repaints {values}"),
    Template("The password that {key} whispered was {value}.", "Which password did {key} whisper?",
             "Which passwords did {key} whisper?", "{key} whispered {values}"),
    Template("In the greenhouse, row {value} belongs to {key}.", "Which row of the greenhouse belongs to {key}?",
             "Which rows of the greenhouse belong to {key}?", "To {key} belongs {values}"),
    Template("{key}: telephone extension {value}.", "What is the extension of {key}?",
             "What are the extensions of {key}?", "{key} has {values}"),
    Template("Witnesses remember {key} asking for {value}.", "What did {key} ask for?",
             "Everything {key} asked for?", "{key} asked for {values}"),
)  # fmt: skip

INTRODUCTIONS = (
    "Here are some notes. I will come back to them later.\n",
    "Please read the following and keep the details in mind.\n",
    "These pages were found in a drawer; somebody will want to know what they say.\n",
    "Background reading. Details matter.\n",
    "",
    "",
)
LOOPS = (
    ("Rain fell on the quay.", "Gulls went quiet.", "A rope creaked.", "Nobody spoke."),
    ("The kettle hummed.", "Dust lay on the shelf.", "Somewhere a clock ticked on.", "It was late."),
    ("Wheels rolled over gravel.", "Fields went by.", "The driver yawned.", "Then another mile."),
)
REMARKS = ("Noted.", "Thank you, I will remember that.", "All right.", "Understood.", "Good to know.")
SYLLABLES = ("bar", "den", "fol", "gri", "hal", "jor", "kem", "lun", "mar", "nev", "os", "pel", "quin", "rud", "sel",
             "tam", "ul", "vek", "wis", "yor", "zan", "bri", "cor", "dal", "eth", "fin", "gor", "hol", "is",
             "kal")  # fmt: skip
THINGS = ("ferry", "bakery", "orchard", "workshop", "mill", "chapel", "garage", "tower", "kiosk", "stable", "cellar",
          "museum", "harbour", "nursery", "brewery", "library", "quarry", "studio", "tavern", "depot")  # fmt: skip
ITEMS = ("amber", "barley", "canvas", "cedar", "copper", "flint", "ginger", "hemp", "indigo", "ivory", "juniper",
         "linen", "marble", "mustard", "nickel", "olive", "paprika", "pewter", "quartz", "saffron", "slate", "tallow",
         "velvet", "walnut", "willow", "zinc", "basil", "coral", "maple", "onyx")  # fmt: skip
PLACES = ("attic", "barn", "boathouse", "cabin", "courtyard", "gallery", "hangar", "kitchen", "larder", "loft",
          "pantry", "pavilion", "porch", "shed", "stairwell", "vault", "veranda", "wardrobe")  # fmt: skip
VALUE_KINDS = ("number", "word", "code")


def name(rng: np.random.Generator) -> str:
    """An invented name of two or three syllables, sometimes with a second one or with a thing it owns."""
    first = _invented(rng)
    return (first, f"{first} {_invented(rng)}", f"the {rng.choice(THINGS)} of {first}")[rng.integers(3)]


def _invented(rng: np.random.Generator) -> str:
    return "".join(rng.choice(SYLLABLES, rng.integers(2, 4))).capitalize()


def value(kind: str, rng: np.random.Generator) -> str:
    """A value: 4 to 8 digits, two things, or a code of letters and digits in groups."""
    if kind == "number":
        return str(rng.integers(1, 10)) + "".join(map(str, rng.integers(0, 10, rng.integers(3, 8))))
    if kind == "word":
        return f"{rng.choice(ITEMS)} and {rng.choice(ITEMS)}"
    letters = np.array(list("abcdefghjkmnpqrstuvwxyz23456789"))
    return "-".join("".join(rng.choice(letters, 4)) for _ in range(rng.integers(2, 5)))


def listed(values: list[str]) -> str:
    """a; a and b; a, b and c."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
