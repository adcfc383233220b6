"""The small world, replayed sentence by sentence without its code."""

import re

import numpy as np
import pytest

from nexus.tasks import babi_world
from nexus.tasks.babi_world import PLACES, Story, tell

FACT = re.compile(r"(\w+) (.*) the (\w+)\.")


def replay(sentences):
    """person -> place, object -> places in order; raises where a sentence cannot be true."""
    at, holder, seen = {}, {}, {}
    for sentence in sentences:
        person, verb, what = FACT.fullmatch(sentence).groups()
        if verb in babi_world.MOVES:
            assert at.get(person) != what
            at[person] = what
            for thing, who in holder.items():
                if who == person:
                    seen[thing].append(what)
        elif verb in babi_world.TAKES:
            assert what not in holder and person in at
            assert seen.setdefault(what, [at[person]])[-1] == at[person], "it lies elsewhere"
            holder[what] = person
        else:
            assert verb in babi_world.DROPS and holder.pop(what) == person
    return at, seen


@pytest.mark.parametrize("seed", range(30))
def test_a_story_is_possible_and_its_end_is_true(seed):
    story = tell(np.random.default_rng(seed), 25, with_objects=True)
    assert len(story.sentences) == 25
    assert (story.at, story.seen) == replay(story.sentences)


def test_without_objects_people_walk_only():
    story = tell(np.random.default_rng(0), 20, with_objects=False)
    assert not story.seen and all(FACT.fullmatch(text)[3] in PLACES for text in story.sentences)


def test_everything_is_said_sooner_or_later():
    text = " ".join(" ".join(tell(np.random.default_rng(s), 25, with_objects=True).sentences) for s in range(40))
    verbs = babi_world.MOVES + babi_world.TAKES + babi_world.DROPS
    for word in babi_world.PEOPLE + PLACES + babi_world.OBJECTS + verbs:
        assert word in text, word


def test_what_was_put_down_stays_and_what_is_held_goes_along():
    story = Story()
    story.move("Anna", "beach", "went to")
    story.take("Anna", "lantern", "took")
    story.move("Anna", "castle", "went to")
    story.drop("Anna", "lantern", "dropped")
    story.move("Anna", "forest", "went to")
    assert story.seen == {"lantern": ["beach", "castle"]} and story.within_reach("Anna") == ["umbrella", "suitcase"]
    story.move("Peter", "castle", "went to")
    assert "lantern" in story.within_reach("Peter") and story.held_by("Anna") == []


def test_whoever_has_not_been_anywhere_reaches_nothing():
    assert Story().within_reach("Hugo") == []
