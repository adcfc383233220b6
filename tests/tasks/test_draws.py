import itertools

import pytest

from nexus.tasks.draws import Draws, distinct

DRAWS = Draws(seed=1, task="vt", length=23, index=4)


def first(draws, purpose="a"):
    return draws.sample(purpose).integers(2**60)


def test_asking_twice_gives_the_same_stream():
    """One global generator made an extra draw change all later samples (NVIDIA/RULER)."""
    DRAWS.sample("other").integers(100, size=1000)
    assert first(DRAWS) == first(DRAWS)


@pytest.mark.parametrize("change", [{"seed": 2}, {"task": "cwe"}, {"length": 24}, {"index": 5}])
def test_every_part_of_the_name_matters(change):
    other = Draws(**{**vars(DRAWS), **change})
    assert first(DRAWS) != first(other)


def test_neighbouring_numbers_do_not_run_together():
    assert first(Draws(seed=1, task="t", length=23, index=4)) != first(Draws(seed=1, task="t", length=2, index=34))
    assert first(DRAWS, "a") != first(DRAWS, "b")


def test_the_stream_of_the_run_is_shared_by_its_samples():
    other = Draws(seed=1, task="cwe", length=99, index=0)
    assert DRAWS.run("order").integers(2**60) == other.run("order").integers(2**60)


def test_distinct_skips_repeats_and_what_is_taken():
    letters = itertools.cycle("aabbccdd")
    assert distinct(lambda: next(letters), 3, taken={"b"}) == ["a", "c", "d"]
