import collections
import re

import pytest

from nexus.tasks import ruler_cwe, words


def lists(example):
    """Counts of the words of the worked example and of the task."""
    found = []
    for line in example.context.split("\n"):
        if line.startswith("1. "):
            items = re.split(r"(?:^| )(\d+)\. ", line)[1:]
            assert list(map(int, items[::2])) == list(range(1, len(items) // 2 + 1))
            found.append(collections.Counter(items[1::2]))
    return found


@pytest.mark.parametrize(
    ("length", "common", "uncommon", "worked"), [(1024, 6, 1, (20, 3, 1)), (4096, 30, 3, (40, 10, 3))]
)
def test_ten_words_are_common_and_all_others_are_not(make, length, common, uncommon, worked):
    for index in range(2):
        example = make("cwe", length, index)
        solved, task = lists(example)
        assert len(example.references) == 10
        assert {task[word] for word in example.references} == {common}
        assert {count for word, count in task.items() if word not in example.references} == {uncommon}
        num_words, often, seldom = worked
        assert sorted(solved.values()) == [seldom] * (num_words - 10) + [often] * 10
        assert not set(solved) & set(task)


def test_the_worked_example_ends_with_its_ten_words(make):
    example = make("cwe", 1024)
    worked = example.context.rpartition(ruler_cwe.WORDING["head"])[0]
    answer = worked.rpartition(ruler_cwe.WORDING["answer_prefix"])[2]
    assert answer.endswith("\n\n")
    common = [word for word, count in lists(example)[0].items() if count == 3]
    assert sorted(re.findall(r"\d+\. (.+?)(?= \d+\.|$)", answer.strip())) == sorted(common)


def test_the_shortest_length_is_refused_with_the_numbers(make):
    with pytest.raises(ValueError, match=r"task cwe does not fit into L=512 .* floor of 11 words"):
        make("cwe", 512)


def test_a_list_that_is_too_short_says_how_many_words_are_missing(make, monkeypatch):
    few = words.all_words()[:80]
    monkeypatch.setattr(words, "all_words", lambda: few)
    with pytest.raises(ValueError, match=r"task cwe cannot fill L=8192: all 40 words .* about \d+ more"):
        make("cwe", 8192)
