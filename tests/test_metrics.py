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


# Predictions and references that have gone wrong in one port or another; the rules must agree on every one of them.
AWKWARD = [
    ("", ["1"]), (" ", ["1"]), ("\n\n", ["a"]), ("\x00", ["a"]), ("12\n34", ["1234"]), ("12\x0034", ["1234"]),
    ("12\t34", ["1234"]), ("12 34", ["1234"]), ("1234", ["1234"]), ("01234", ["1234"]), ("1,234", ["1234"]),
    ("ABC", ["abc"]), ("abc", ["ABC"]), ("ab\nc", ["ab c"]), ("ab\x0bc", ["ab\nc"]), ("a\r\nb", ["a\n\nb"]),
    ("Straße", ["STRASSE"]), ("STRASSE", ["straße"]), ("İstanbul", ["istanbul"]), ("ŽLUTÝ", ["žlutý"]),
    ("\u00a0x\u00a0", ["x"]), ("a\u00a0b", ["a b"]), ("a\x7fb", ["ab"]), ("\u2028x", ["x"]), ("\x1f x \x1e", ["x"]),
    ("x", ["x", "x"]), ("x y", ["x", "y", "z", "q"]), ("xy", ["x", "xy"]), ("no", ["know"]), ("I know", ["no"]),
    ("a.b", ["a.b"]), ("axb", ["a.b"]), ("[1]", ["[1]"]), ("1. one 2. two", ["one", "two"]), ("one,two", ["one two"]),
    ("the answer is\n\n7", ["7"]), ("7" * 300, ["77"]), ("e\u0301", ["\u00e9"]), ("*x*", ["x"]), ('"x"', ["x"]),
]  # fmt: skip


def theirs(prediction, reference_list, metric):
    """RULER's scorer as its repository defines it, for one prediction: written from the definition, in percent."""
    text = prediction.strip()
    for code in range(32):
        text = text.replace(chr(code), "\n")
    text = text.strip()
    hits = [1.0 if reference.lower() in text.lower() else 0.0 for reference in reference_list]
    return 100 * (sum(hits) / len(hits) if metric == "all" else max(hits))


@pytest.mark.parametrize("metric", ["all", "part"])
@pytest.mark.parametrize(("prediction", "references"), AWKWARD)
def test_the_rules_of_ruler_agree_with_its_definition(metric, prediction, references):
    """lm_eval 0.4.9 has another `part`: the share of the references of one sample, not whether any was found."""
    ours = metrics.score(example(metric, *references), prediction)
    assert ours == pytest.approx(theirs(prediction, references, metric))


PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
BABI = [
    ("The kitchen.", "Where is Mary?", "kitchen", 1), ("KITCHEN", "Where is Mary?", "kitchen", 1),
    ("", "Where is Mary?", "kitchen", 0), (".", "Where is Mary?", "kitchen", 0),
    (". kitchen", "Where is Mary?", "kitchen", 0), ("Mary. kitchen", "Where is Mary?", "kitchen", 0),
    ("kitchen or office", "Where is Mary?", "kitchen", 0), ("kitchen. Not the office", "Where is Mary?", "kitchen", 1),
    ("not the kitchen", "Where is Mary?", "kitchen", 1), ("the kitchens", "Where is Mary?", "kitchen", 1),
    ("the kitchen<example>office", "Where is Mary?", "kitchen", 1),
    ("the kitchen\n<context>\noffice", "Where is Mary?", "kitchen", 1),
    ("the kitchen\noffice", "Where is Mary?", "kitchen", 0),  # a new line ends no sentence
    ("the kitchen\nQuestion: and the office?", "Where is Mary?", "kitchen", 0),  # as in the code of the benchmark
    ("Before the office it was in the garden.", "Where was it before the office?", "garden", 1),
    ("It was in the office.", "Where was it before the office?", "garden", 0),
    ("garden, bedroom", "Where was it before the bedroom?", "garden", 1),
    ("bed room", "Where is Mary?", "bedroom", 0), ("the bathroom/bedroom", "Where is Mary?", "bedroom", 0),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "question", "target", "expected"), BABI)
def test_the_strict_rule_of_babilong(prediction, question, target, expected):
    assert metrics.only_label(prediction, question, target, PLACES) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [("apple,milk", 1), ("milk and apple.", 1), ("apple", 0), ("apple, milk, football", 0), ("nothing", 0)],
)
def test_a_target_of_several_parts_asks_for_all_and_no_more(prediction, expected):
    things = ("nothing", "apple", "milk", "football")
    assert metrics.only_label(prediction, "What is Mary carrying?", "apple,milk", things) == expected


def test_the_rule_of_babilong_needs_labels():
    """Without them no answer could ever be right, and the score would be a silent 0."""
    with pytest.raises(ValueError, match="labels are"):
        metrics.score(example("babi", "kitchen"), "kitchen")


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


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("It leaves from the Fish\n  Market at dawn.", 1.0),
        ("at SUNRISE, from somewhere", 0.5),
        ("dawn and sunrise", 0.5),  # paraphrases of one phrase count once
        ("", 0.0),
    ],
)
def test_key_phrases_ignore_case_and_blanks_and_take_any_paraphrase(prediction, expected):
    assert metrics.key_phrases(prediction, ["fish market", "dawn|sunrise"]) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ("The ferry leaves the port.", 1.0),
        ("the FERRY!", 0.4),
        ("the the the ferry-port", 0.8),  # a word counts as often as both have it
        ("ferries leave", 0.0),  # no stemming
        ("", 0.0),
    ],
)
def test_rouge1_recall_is_the_share_of_the_references_words(prediction, expected):
    assert metrics.rouge1_recall(prediction, "The ferry leaves the port.") == expected


def test_groups_of_different_sizes_weigh_alike():
    """Tasks with more samples would decide a mean over tasks, and a mean over tasks without an interval says little."""
    few, many = [0.0, 100.0, 100.0, 0.0], [50.0] * 40
    found = metrics.group_interval([few, many])
    alone = metrics.mean_interval(few)
    assert found.mean == 50.0
    assert found.high - found.low == pytest.approx((alone.high - alone.low) / 2)  # the even group adds no width
    assert np.isnan(metrics.group_interval([few, [1.0]]).low)
    with pytest.raises(ValueError, match="non-empty list"):
        metrics.group_interval([few, []])


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("The red bike!", "a red bike", 1.0),  # case, punctuation and articles do not count
        ("red red", "red", 2 / 3),  # a multiset: words said twice cost
        ("blue", "red", 0.0),
        ("", "red", 0.0),
        ("the", "a", 0.0),  # nothing is left of either
    ],
)
def test_token_f1(prediction, reference, expected):
    assert metrics.token_f1(prediction, reference) == pytest.approx(expected)
    assert metrics.normalised(" An  Apple-pie, the ") == "applepie"
