"""The needles of the needle maps: a sentence, the question that only it answers, and the key phrases of an answer.

All invented here; no name occurs in the essays. Key phrases are what an answer must contain, in lower case; a phrase is
a tuple of accepted paraphrases. Paraphrases are chosen so that they are not parts of ordinary words ("race of", since
"race" is found in "grace"), and none of them stands in its question.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Needle:
    """One sentence to hide."""

    sentence: str
    question: str
    phrases: tuple[tuple[str, ...], ...]


NEEDLES = (
    Needle(
        "The best way to warm up in Tarnholm is to drink plum tea beside the clock tower at dawn.",
        "What is the best way to warm up in Tarnholm?",
        (("plum tea", "plum-tea"), ("clock tower", "clocktower"), ("dawn", "sunrise", "daybreak", "early morning")),
    ),
    Needle(
        "The old lighthouse in Port Vellan is painted dark green every seventh summer.",
        "How often, and in which colour, is the old lighthouse in Port Vellan painted?",
        (("dark green", "dark-green"),
         ("every seventh summer", "every seventh year", "every seven", "every 7", "once in seven")),
    ),
    Needle(
        "Captain Wren always carries a silver compass and a jar of blackcurrant jam.",
        "What does Captain Wren always carry?",
        (("silver compass", "compass of silver"), ("blackcurrant jam", "black currant jam", "jam of blackcurrant")),
    ),
    Needle(
        "The one rule of the Quillet Street bakery is that walnut bread is sold only on rainy Thursdays.",
        "What is the one rule of the Quillet Street bakery?",
        (("walnut bread",), ("rainy", "it rains", "in the rain"), ("thursday",)),
    ),
    Needle(
        "Professor Ines Halloran solved the riddle of the Marrow stones with a borrowed bicycle lamp.",
        "What did Professor Ines Halloran use to solve the riddle of the Marrow stones?",
        (("borrowed",), ("bicycle lamp", "bicycle light", "bike lamp", "bike light")),
    ),
    Needle(
        "To pass the Kestrel gate, visitors must hum a low note and knock four times.",
        "What must visitors do to pass the Kestrel gate?",
        (("low note",), ("knock four times", "knock 4 times", "knocking four times", "four knocks")),
    ),
    Needle(
        "The secret ingredient of the Ostrin pie is ground cinnamon mixed with black pepper.",
        "What is the secret ingredient of the Ostrin pie?",
        (("cinnamon",), ("black pepper",)),
    ),
    Needle(
        "Mayor Odile Brandt keeps a tame heron called Biscuit in the garden of the town hall.",
        "What does Mayor Odile Brandt keep in the garden of the town hall?",
        (("heron",), ("biscuit",)),
    ),
    Needle(
        "The winter festival of Dunmore ends with a race of wooden boats through the flooded square.",
        "How does the winter festival of Dunmore end?",
        (("race of", "boat race", "racing", "a race"), ("wooden boat", "boats of wood", "boats made of wood"),
         ("flooded square",)),
    ),
    Needle(
        "The favourite hiding place of the cat Mirabel is the blue cupboard under the attic stairs.",
        "What is the favourite hiding place of the cat Mirabel?",
        (("blue cupboard",), ("attic stair", "stairs of the attic", "stairs to the attic")),
    ),
    Needle(
        "The violinist Tomas Rhee wrote his last waltz on the back of a laundry list.",
        "On what did the violinist Tomas Rhee write his last waltz?",
        (("back of", "backside of", "reverse of"), ("laundry list", "list of laundry", "list for the laundry")),
    ),
    Needle(
        "The strangest prize of the Glen Avar fair is a white goat with a ribbon of orange silk.",
        "What is the strangest prize of the Glen Avar fair?",
        (("goat",), ("orange silk", "orange ribbon", "orange-silk")),
    ),
)  # fmt: skip
