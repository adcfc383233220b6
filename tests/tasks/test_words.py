import re
import uuid

import numpy as np

from nexus.tasks import words


def test_the_lists_are_sorted_distinct_and_without_outer_blanks():
    for kind, least in (("noun", 6000), ("adjective", 900), ("verb", 900)):
        found = words.words_of(kind)
        assert len(found) > least
        assert list(found) == sorted(set(found))
        assert all(word and word == word.strip() for word in found)


def test_no_two_words_of_the_union_differ_only_in_capitals():
    folded = [word.casefold() for word in words.all_words()]
    assert len(folded) == len(set(folded)) > 8000


def test_kinds_have_their_form():
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert re.fullmatch(r"[1-9]\d{6}", words.value("number", rng))
        assert uuid.UUID(words.value("uuid", rng)).version == 4
        adjective_first = words.value("word", rng)
        assert any(adjective_first.startswith(f"{adjective}-") for adjective in words.words_of("adjective"))
    assert len(words.number(rng, 5)) == 5
