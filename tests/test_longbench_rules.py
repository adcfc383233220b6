"""Every expected score below is what the rules of THUDM/LongBench give (with `rouge` 1.0.1 and pure-Python fuzzywuzzy
0.18.0), except where a line says that ours is meant to differ."""

import pytest

from nexus import longbench_rules as rules
from nexus import metrics
from nexus.tasks.example import Example

PLACES = ("City", "Country")
PARTS = ("Disease", "and", "medicine", "Disease and medicine")
WORDS = [f"w{i}" for i in range(450)]


def score(metric, prediction, references, choices=(), first_line=False):
    return metrics.score(
        Example(
            task="t", index=0, context="", question="", answer_prefix="", references=references, max_new_tokens=1,
            metric=metric, length=1, variant="", template_hash="", choices=choices, first_line=first_line,
        ),
        prediction,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("The  Cat.", "a cat", 100),
        ("", "cat", 0),
        ("the a an", "cat", 0),
        ("U.S.A.", "usa", 100),
        ("naïve café", "naive café", 50),
        ("“Paris”", "Paris", 0),  # quotation marks outside ASCII stay
        ("well-known", "well known", 0),  # punctuation leaves no blank behind
        ("it is Paris, the capital of France", "Paris", 100 * 2 / 7),
        ("cat cat dog", "cat dog dog", 100 * 2 / 3),  # multisets
        ("İstanbul", "istanbul", 0),
        ("42.0", "420", 100),
        ("a\tb\nc", "b c", 100),
        ("theatre another", "the atre an other", 0),  # articles are whole words
    ],
)
def test_f1(prediction, reference, expected):
    assert score("f1", prediction, (reference,)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("", "a b c", 0),  # the package raises
        (".", "a b c", 0),
        ("...", "a b c", 0),
        (" ", "a b c", 0),
        ("x", "y", 0),
        ("The cat sat. On the mat.", "the cat sat on the mat", 72.72727223140496),  # case counts
        ("the cat sat on the mat", "the cat sat on the mat", 99.9999995),
        ("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 61.53846106508877),  # union over sentences
        ("Straße größer. über", "straße größer über", 66.66666616666668),
        ("b a", "a b", 49.99999950000001),
        ("a a a a", "a", 99.9999995),  # words count once
        ("line one\nline two", "line one line two", 99.9999995),
        ("v1.5 costs $3.20", "v1 5 costs $3 20", 99.9999995),  # every full stop ends a sentence
        (" ".join(WORDS[:300]), " ".join(WORDS[150:]), 49.99999950000001),
        (" ".join(WORDS * 4), " ".join(WORDS[::-1] * 4), 0),  # too deep for the package's recursion
    ],
)
def test_rouge_l_is_that_of_the_package_rouge(prediction, reference, expected):
    """Packages differ: `rouge-score` would stem, ignore case and give other numbers."""
    assert score("rouge_l", prediction, (reference,)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("prediction", "reference", "classes", "expected", "upstream"),
    [
        ("Country", "Country", PLACES, 100, 100),
        ("city", "City", PLACES, 0, 0),  # case counts
        ("City or Country", "City", PLACES, 50, 50),
        ("", "City", PLACES, 0, 0),
        ("Not a City", "City", PLACES, 100, 100),  # named in an explanation counts
        ("Currency", "Currency name", ("Currency", "Currency name", "name"), 0, 0),
        ("a Currency name", "Currency name", ("Currency", "Currency name", "name"), 100, 100),
        # Neighbours that are both parts of the right class: upstream keeps the second. Ours is meant to differ.
        ("a Currency name", "Currency name", ("Currency", "name", "Currency name"), 100, 50),
        ("Disease and medicine", "Disease and medicine", PARTS, 100, 50),
    ],
)
def test_classification(prediction, reference, classes, expected, upstream):
    assert score("classification", prediction, (reference,), classes) == expected
    assert score("classification_upstream", prediction, (reference,), classes) == upstream


@pytest.mark.parametrize(
    ("metric", "prediction", "reference", "expected"),
    [
        ("count", "7", "7", 100),
        ("count", "07", "7", 0),  # compared as text
        ("count", "There are 7 of 9", "7", 50),
        ("count", "seven", "7", 0),
        ("count", "7,7 and 7", "7", 100),
        ("count", "7.0", "7", 50),
        ("count", "", "7", 0),
        ("retrieval", "Paragraph 3 of 30", "Paragraph 3", 50),
        ("retrieval", "3", "Paragraph 3", 100),
        ("retrieval", "paragraph 13", "Paragraph 3", 0),
        ("retrieval", "Paragraph 3, not Paragraph 4 or 5", "Paragraph 3", 100 / 3),
        ("retrieval", "the third", "Paragraph 3", 0),
        ("retrieval", "٣ and 3", "Paragraph 3", 50),  # digits of other scripts are numbers
    ],
)
def test_numbers_are_a_share_of_all_numbers_written(metric, prediction, reference, expected):
    assert score(metric, prediction, (reference,)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("return x", "return x", 100),
        ("\n\nreturn x\nreturn y", "return x", 100),
        ("```python\nreturn x\n```", "return x", 100),
        ("# comment\n// more\nx = 1", "x = 1", 100),
        ("#only", "x = 1", 0),
        ("", "x = 1", 0),
        ("x = 1  # one", "x = 1", 0),  # a comment at its end loses the line
        (" \nreturn x", "return x", 22),  # a line of blanks is a line
        ("    return x", "return x", 80),
        ("abcd", "abce", 75),
        ("ab", "abcdef", 50),
        ("größe = 'ß'", "groesse = 'ß'", 75),
        ("qabxcd", "abycdf", 67),  # 66.7, whole per cent
        ("kitten", "sitting", 62),  # 61.5; the Levenshtein back end of the same library counts edits instead
        ("abcdefgh", "hgfedcba", 12),  # 12.5: halves go to the even number
        ("a" * 150 + "b" * 60, "b" * 60 + "a" * 150, 0),  # difflib takes frequent letters of long lines for noise
    ],
)
def test_edit_similarity_is_a_whole_percentage(prediction, reference, expected):
    assert score("edit", prediction, (reference,)) == pytest.approx(expected)


def test_the_best_accepted_answer_counts():
    assert score("f1", "Lutetia", ("Paris", "Lutetia")) == 100
    assert score("rouge_l", "a b", ("x", "a b")) > 99
    assert score("edit", "x = 1", ("y", "x = 1")) == 100


def test_few_shot_answers_end_with_their_first_line():
    """A model goes on with the pattern: the next question's type would be a second class."""
    text = "\n\n City\nQuestion: Which?\nType: Country"
    assert score("classification", text, ("City",), PLACES, first_line=True) == 100
    assert score("classification", text, ("City",), PLACES) == 50
    assert score("classification", "\n", ("City",), PLACES, first_line=True) == 0


def test_a_reference_without_paragraph_is_an_error():
    with pytest.raises(ValueError, match="'3' names no paragraph"):
        rules.retrieval("3", "3")
