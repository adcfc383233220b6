"""How training records say things: own sentences, own names, own numbers; nothing an evaluation uses.

A template states one value of one key, asks for it, and begins the answer. Some are written out, most are put together
from parts, so that gates cannot learn them by heart. Keys are invented names, things with a made-up owner, or ordinary
words, so that what a key is follows from its place and not from rare letters; evaluations use other words.
`tests/training/test_records.py` asserts the disjointness.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Template:
    """Fields: {key} and {value}; in the answer, which the values follow, {s} and {are}. `about`: what values are."""

    fact: str
    ask: str
    ask_all: str
    answer: str
    about: str


WRITTEN = (
    Template("The locker of {key} opens with {value}.", "What opens the locker of {key}?",
             "List everything that opens the locker of {key}.", "The locker of {key} opens with", "locker keys"),
    Template("{key} signed the register under {value}.", "Under which entry did {key} sign the register?",
             "Under which entries did {key} sign the register?", "{key} signed the register under", "register entries"),
    Template("At the counter, {key} was handed ticket {value}.", "Which ticket was {key} handed?",
             "Which tickets was {key} handed?", "{key} was handed", "tickets"),
    Template("Engineers labelled the valve near {key} as {value}.", "What label did the valve near {key} get?",
             "Name all labels of the valves near {key}.", "The label near {key} was", "valves"),
    Template("For {key} the archive keeps folder {value}.", "Which folder does the archive keep for {key}?",
             "Which folders does the archive keep for {key}?", "For {key} the archive keeps", "archived folders"),
    Template("A courier brought crate {value} to {key} before noon.", "Which crate was brought to {key}?",
             "Which crates were brought to {key}?", "The courier brought to {key}", "crates"),
    Template("{key} always tunes the radio to {value}.", "What does {key} tune the radio to?",
             "Everything {key} tunes the radio to, please.", "{key} tunes the radio to", "radio stations"),
    Template("The plate on the door of {key} reads {value}.", "What does the plate on the door of {key} read?",
             "What do the plates on the door of {key} read?", "The plate of {key} reads", "door plates"),
    Template("According to the ledger, {key} owes {value}.", "How much does {key} owe according to the ledger?",
             "List all sums that {key} owes.", "According to the ledger {key} owes", "debts"),
    Template("Once a year {key} repaints hull {value}.", "Which hull does {key} repaint?",
             "Which hulls does {key} repaint?", "{key} repaints", "hulls"),
    Template("The password that {key} whispered was {value}.", "Which password did {key} whisper?",
             "Which passwords did {key} whisper?", "{key} whispered", "passwords"),
    Template("In the greenhouse, row {value} belongs to {key}.", "Which row of the greenhouse belongs to {key}?",
             "Which rows of the greenhouse belong to {key}?", "To {key} belongs", "greenhouse rows"),
    Template("{key}: telephone extension {value}.", "What is the extension of {key}?",
             "What are the extensions of {key}?", "{key} has", "telephone extensions"),
    Template("Witnesses remember {key} asking for {value}.", "What did {key} ask for?",
             "Everything {key} asked for?", "{key} asked for", "wishes"),
)  # fmt: skip

# Parts of the others. {what}: an object and how it is marked; {whats}: the plural.
OBJECTS = ("cupboard", "mailbox", "bicycle", "safe", "cabin", "parcel", "account", "tent", "boat", "suitcase", "seat",
           "meter", "engine", "barrel", "kennel", "desk", "contract", "field", "room", "van", "piano", "telescope",
           "wagon", "garden", "bottle", "ladder", "lantern", "sample", "order", "shelf")  # fmt: skip
MARKS = ("number", "code", "label", "tag", "mark", "password", "reference", "stamp", "designation", "symbol", "permit",
         "inscription", "token", "identifier", "nickname", "seal")  # fmt: skip
FACTS = (
    "The {what} of {key} is {value}.",
    "{key} has the {what} {value}.",
    "{key} was given {what} {value}.",
    "We wrote down {value} as a {what} of {key}.",
    "{value} is the {what} that belongs to {key}.",
    "As for {key}, the {what} reads {value}.",
    "The clerk read aloud a {what} for {key}: {value}.",
    "On Friday the {what} {value} was assigned to {key}.",
    "Whoever asks for {key} should know the {what}, {value}.",
    "{key} ({what} {value}) arrived late.",
    "{key} / {what} / {value}.",
    "Among other things, {key} mentioned the {what} {value}.",
    "Do not forget that {key} uses {value} for the {what}.",
    "It took an hour to find out that {key} had {what} {value}.",
    "Somebody had scratched {value} next to {key}, evidently a {what}.",
    "{what}, {key}: {value}.",
    "Here is a {what} for {key}: {value}.",
    '"{value}", said {key} when asked about the {what}.',
)
ASKS = (
    ("What is the {what} of {key}?", "What are the {whats} of {key}?"),
    ("Tell me the {what} of {key}.", "Tell me every {what} of {key}."),
    ("Which {what} does {key} have?", "Which {whats} does {key} have?"),
    ("{key}: which {what}?", "{key}: which {whats}? Give all of them."),
    ("I need the {what} for {key}.", "I need all the {whats} for {key}."),
    ("Which {what} goes with {key}, according to these pages?", "List all {whats} that go with {key}."),
    ("Do you recall the {what} of {key}?", "Do you recall all {whats} of {key}?"),
    ("Repeat the {what} that stands next to {key} above.", "Repeat the {whats} that stand next to {key} above."),
)
ANSWERS = (
    "The {what}{s} of {key} {are}",
    "The {what}{s} for {key} {are}",
    "{key} has the {what}{s}",
    "According to these pages, the {what}{s} of {key} {are}",
    "What stands next to {key} as {what}{s} {are}",
    "The {what}{s} asked for, {key}, {are}",
    "For {key} the text gives",
    "",
)

INTRODUCTIONS = (
    "Here are some notes. I will come back to them later.\n",
    "Please read the following and keep the details in mind.\n",
    "These pages were found in a drawer; somebody will want to know what they say.\n",
    "Background reading. Details matter.\n",
    "",
    "",
)
PRIMERS = (  # introductions that say what will be asked
    "Further down, {about} come up. Learn them, a question follows.\n",
    "While reading, watch for {about}: they come back at the end.\n",
    "Somewhere in these pages {about} are given. Please keep them in mind.\n",
    "This text mentions {about}; be ready to repeat them.\n",
    "I am only interested in {about}. The rest may be skimmed.\n",
    "Question to come: {about}. First the material.\n",
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
LEADS = ("painted", "seventh", "older", "smaller", "folded", "borrowed", "polished", "whistling", "brighter",
         "forgotten", "stitched", "frosted", "colder", "lowered", "carved", "tallest", "quieter", "drifting", "woven",
         "washed", "thirteenth", "heavier", "leaning", "rusted", "varnished", "newest", "softer", "climbing",
         "twentieth", "braided", "tilted", "earliest", "glowing", "smoked", "trimmed", "warmer", "sunken", "loosened",
         "spotted", "thinner", "gilded", "sliding", "mended", "laced")  # fmt: skip
PLURALS = ("bridges", "candles", "rivers", "windows", "gloves", "kites", "lamps", "horses", "ropes", "spoons", "boots",
           "drums", "mirrors", "coins", "towels", "islands", "letters", "feathers", "ovens", "buttons", "tunnels",
           "baskets", "clouds", "hammers", "pillows", "wheels", "blankets", "gardens", "engines", "stones", "chimneys",
           "ponds", "ladders", "benches", "flutes", "hinges", "shutters", "kettles", "saddles", "rafts", "cushions",
           "bells", "fences", "pebbles", "jars", "bricks", "arrows", "anchors", "gates")  # fmt: skip
VALUE_KINDS = ("number", "word", "code")
STYLES = ("prose", "*", "-", "1.")  # of a list of values


def templates(count: int, rng: np.random.Generator) -> list[Template]:
    """That many, a quarter of them from those written out."""
    return [WRITTEN[rng.integers(len(WRITTEN))] if rng.random() < 0.25 else _composed(rng) for _ in range(count)]


def _composed(rng: np.random.Generator) -> Template:
    pick = lambda parts: parts[rng.integers(len(parts))]  # noqa: E731
    return _joined(pick(OBJECTS), pick(MARKS), pick(FACTS), pick(ASKS), pick(ANSWERS))


def _joined(thing: str, mark: str, fact: str, asks: tuple[str, str], answer: str) -> Template:
    what = f"{thing} {mark}"
    fill = lambda part: part.replace("{whats}", f"{what}s").replace("{what}", what)  # noqa: E731
    return Template(fill(fact), fill(asks[0]), fill(asks[1]), fill(answer), about=f"{what}s")


def filled(pattern: str, **fields: str) -> str:
    """A sentence: its first letter is a capital one, unless it begins with a value, which stays as it is."""
    text = pattern.format(**fields)
    return text if pattern.startswith("{value}") else text[:1].upper() + text[1:]


def everything_said() -> Iterator[str]:
    """Every sentence that a record may hold besides prose, its fields left open."""
    for t in WRITTEN:
        yield from (t.fact, t.ask, t.ask_all, t.answer, *(primer.format(about=t.about) for primer in PRIMERS))
    for thing, mark in itertools.product(OBJECTS, MARKS):
        for fact, asks, answer in itertools.zip_longest(FACTS, ASKS, ANSWERS):
            t = _joined(thing, mark, fact or "", asks or ("", ""), answer or "")
            yield from (t.fact, t.ask, t.ask_all, t.answer)
        yield from (primer.format(about=f"{thing} {mark}s") for primer in PRIMERS)
    yield from (*INTRODUCTIONS, *REMARKS, *itertools.chain(*LOOPS))


def name(rng: np.random.Generator, ordinary: float = 0.5) -> str:
    """A key: an invented name of two or three syllables, alone, with a second one or with a thing it owns; or, with the
    probability `ordinary`, ordinary words, or one with a number of up to three digits."""
    if rng.random() < ordinary:
        lead, plural = str(rng.choice(LEADS)), str(rng.choice(PLURALS))
        ways = (f"{lead} {plural}", f"the {lead} {plural}", f"{lead}_{plural}", f"{plural} {rng.integers(10, 1000)}")
        return ways[rng.integers(len(ways))]
    first = _invented(rng)
    return (first, f"{first} {_invented(rng)}", f"the {rng.choice(THINGS)} of {first}")[rng.integers(3)]


def _invented(rng: np.random.Generator) -> str:
    return "".join(rng.choice(SYLLABLES, rng.integers(2, 4))).capitalize()


def value(kind: str, rng: np.random.Generator) -> str:
    """A value: 4 to 8 digits, two things, or a code of letters and digits in groups."""
    if kind == "number":
        return str(rng.integers(1, 10)) + "".join(map(str, rng.integers(0, 10, rng.integers(3, 8))))
    if kind == "word":
        return " with ".join(rng.choice(ITEMS, 2, replace=False))  # "and" joins values
    letters = np.array(list("abcdefghjkmnpqrstuvwxyz23456789" if rng.random() < 0.5 else "0123456789abcdef"))
    return "-".join("".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(rng.integers(2, 6)))


def listed(values: list[str], style: str) -> str:
    """What follows the beginning of an answer: " a, b and c." in prose, or lines after a colon; one value: ": a."."""
    if style != "prose":
        marks = [f"{i + 1}." for i in range(len(values))] if style == "1." else [style] * len(values)
        lines = "".join(f"\n{mark} {value}" for mark, value in zip(marks, values, strict=True))
        return f":\n{lines}" if len(values) > 1 else f": {values[0]}."
    return f" {together(values)}."


def together(parts: list[str]) -> str:
    """a; a and b; a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
