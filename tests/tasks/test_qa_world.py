"""Invented people and places: names are new, paragraphs say what the facts are."""

import numpy as np

from nexus.tasks import qa_world
from nexus.tasks.qa_world import World


def test_paragraphs_state_the_facts_and_nothing_else_decides():
    world = World(np.random.default_rng(0))
    for pair in map(world.pair, range(20)):
        for asked in qa_world.ASK:
            assert pair.person[asked] in pair.about_person
        for asked in qa_world.ASK_TWICE:
            assert pair.place[asked] in pair.about_place
        assert pair.place["place"] in pair.about_person and pair.place["town"] not in pair.about_person
        assert "{" not in pair.about_person + pair.about_place


def test_no_two_people_or_places_share_a_name():
    world = World(np.random.default_rng(1))
    pairs = [world.pair(i) for i in range(100)]
    people = [name for pair in pairs for name in (pair.person["name"], pair.person["spouse"], pair.place["founder"])]
    assert len(set(people)) == len(people)
    assert len({pair.place["place"] for pair in pairs}) == len(pairs)


def test_pairs_do_not_depend_on_how_many_were_asked_for_first():
    one, other = World(np.random.default_rng(2)), World(np.random.default_rng(2))
    far = one.pair(9)
    assert [other.pair(i) for i in range(10)] == [one.pair(i) for i in range(10)] and other.pair(9) == far


def test_every_form_of_a_sentence_can_be_filled():
    world = World(np.random.default_rng(3))
    pair = world.pair(0)
    facts = pair.place | pair.person | {"Place": "The x"}
    for text in qa_world.WORDING.values():
        assert all("{" not in form.format(**facts) for form in text.split("|"))


def test_there_are_more_places_than_emblems():
    """Beyond 256 places emblems repeat; the row must not end."""
    world = World(np.random.default_rng(4))
    assert world.pair(300).place["place"].startswith("the ")
    assert len({world.pair(i).place["place"].rsplit(" ", 1)[0] for i in range(301)}) > 200
