import collections

import numpy as np
import pytest

from nexus.tasks import generated, ruler, ruler_fwe


@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_ranks_follow_the_law_and_the_answer_is_unambiguous(make, length):
    for index in range(3):
        example = make("fwe", length, index)
        text = example.context.removeprefix(ruler_fwe.WORDING["head"]).removesuffix("\n")
        counts = collections.Counter(text.split(" ")).most_common()
        words, numbers = zip(*counts, strict=True)
        assert words[0] == "..."
        assert set(words[1:4]) == set(example.references)
        assert numbers[3] > numbers[4]
        size = round(numbers[1] * 4 * ruler_fwe.ZETA_2)
        assert np.allclose(numbers[:5], size / np.arange(1, 6) ** 2 / ruler_fwe.ZETA_2, atol=1 + size * 0.05)
        assert all(len(word) == 6 and word.islower() and word.isalpha() for word in words[1:])
        assert len(words) <= (length - 50) // 50


def test_counts_are_rounded_down():
    assert ruler_fwe.rank_counts(100, 5).tolist() == [60, 15, 6, 3, 2]


def test_a_tie_of_ranks_four_and_five_is_not_valid():
    """At small lengths the fourth and the fifth word tie, and the three most frequent are ambiguous."""
    assert ruler_fwe.rank_counts(45, 5)[3] == ruler_fwe.rank_counts(45, 5)[4]
    assert not ruler_fwe.valid(45)
    assert ruler_fwe.valid(60)


def test_a_length_without_five_words_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"vocabulary would have 4 words; 5 are needed, from L=300 on"):
        generated.make_example(ruler.TASKS["fwe"], tokenizer, 280, 0, 0)
