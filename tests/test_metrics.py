import math

import numpy as np
import pytest

from nexus import metrics
from nexus.tasks.example import Example


def example(metric, *references):
    return Example(
        task="t",
        index=0,
        context="",
        question="",
        answer_prefix="",
        references=references,
        max_new_tokens=1,
        metric=metric,
        length=1,
        variant="test",
        template_hash="",
    )


def test_control_characters_become_newlines_and_glue_nothing():
    """Deleting them joined digits across lines, "12" and "34" to "1234" (NVIDIA/kvpress)."""
    assert metrics.clean(" \x0012\x0034\t5\x1f ") == "12\n34\n5"
    assert metrics.string_match_all("12\n34", ["1234"]) == 0
    assert metrics.string_match_all("12\x0034", ["1234"]) == 0


def test_all_is_a_share_and_ignores_case():
    assert metrics.string_match_all("the Values: ABC, def", ["abc", "DEF", "x", "y"]) == 0.5


def test_part_is_satisfied_by_any_reference():
    assert metrics.string_match_part("It is Paris.", ["paris", "Lutetia"]) == 1.0
    assert metrics.string_match_part("It is Rome.", ["paris", "Lutetia"]) == 0.0


def test_scores_are_in_per_cent_by_the_rule_of_the_example():
    """0-1 and 0-100 were confused (ByteDance-Seed/ShadowKV#12)."""
    assert metrics.score(example("all", "1", "2"), "1 3") == 50.0
    assert metrics.score(example("part", "1", "2"), "1 3") == 100.0
    assert metrics.score(example("all", "1"), "") == 0.0


@pytest.mark.parametrize("references", [[], [""], ["a", ""]])
def test_missing_or_empty_references_are_errors(references):
    for rule in (metrics.string_match_all, metrics.string_match_part):
        with pytest.raises(ValueError, match="expected at least one, and none empty"):
            rule("a", references)


def test_nulls_counts_what_is_empty_once_cleaned():
    assert metrics.nulls(["", " \n", "\x00", "0"]) == 3


def test_the_interval_is_reproducible_and_near_the_normal_one():
    values = np.random.default_rng(0).normal(50, 10, size=200)
    interval = metrics.mean_interval(values)
    assert interval == metrics.mean_interval(values)
    assert interval.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / math.sqrt(200)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.3)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.3)
    narrower = metrics.mean_interval(values, confidence=0.5)
    assert interval.low < narrower.low < narrower.high < interval.high


def test_pairs_remove_what_both_methods_share():
    easy_and_hard = np.array([0.0, 100.0] * 20)
    better = easy_and_hard + np.tile([1.0, 3.0, 2.0, 2.0], 10)
    paired = metrics.paired_interval(better, easy_and_hard)
    assert paired.mean == pytest.approx(2.0)
    assert 1.5 < paired.low < paired.high < 2.5
    apart = metrics.mean_interval(better)
    assert apart.high - apart.low > 10 * (paired.high - paired.low)


def test_one_value_has_no_interval():
    interval = metrics.mean_interval([100.0])
    assert interval.mean == 100.0 and math.isnan(interval.low) and math.isnan(interval.high)


def test_wrong_input_is_refused():
    for values in ([], [1.0, float("nan")], [[1.0]]):
        with pytest.raises(ValueError, match="finite numbers"):
            metrics.mean_interval(values)
    with pytest.raises(ValueError, match="confidence is 95"):
        metrics.mean_interval([1.0, 2.0], confidence=95)
    with pytest.raises(ValueError, match="different length: 1 and 2"):
        metrics.paired_interval([1.0], [1.0, 2.0])
