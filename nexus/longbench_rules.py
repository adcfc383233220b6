"""Scores of LongBench beside word F1 (`nexus.metrics.token_f1`): a prediction against one accepted answer, in [0, 1].

Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding", arXiv 2308.14508; rules after
THUDM/LongBench. What decides their last digits:
- ROUGE-L is that of the PyPI package `rouge` (case kept, no stemming, words split on blanks, sentences on full stops,
  union of longest common subsequences). Other packages give other numbers. It walks along two sentences by recursion
  and raises after about a thousand words; whatever it raises scores 0, as there.
- Edit similarity is an integer percentage: `int(round(100 * ratio))` (halves to the even number) of the standard
  library's `difflib.SequenceMatcher`. That is what `fuzzywuzzy.fuzz.ratio`, which LongBench calls, computes where no
  compiled Levenshtein module is installed. `thefuzz` and `rapidfuzz` count edits in another way, `rapidfuzz` without
  rounding.
- Classification follows the rule that was meant: every class found that is a part of the right one is dropped.
  LongBench removes from the list it walks through, so the second of two neighbours may stay; `strict_upstream` does so
  too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from rouge import Rouge

PARAGRAPH = re.compile(r"Paragraph (\d+)")  # how an answer of passage_retrieval names its paragraph
_NUMBER = re.compile(r"\d+")
_NO_CODE = ("`", "#", "//")


def first_line(prediction: str) -> str:
    """The first line that is not empty; what LongBench scores in its few-shot tasks."""
    return prediction.lstrip("\n").split("\n")[0]


def rouge_l(prediction: str, reference: str) -> float:
    """F of ROUGE-L; 0 where the package raises, as for empty texts."""
    try:
        return float(Rouge(metrics=["rouge-l"]).get_scores(prediction, reference)[0]["rouge-l"]["f"])
    except Exception:
        return 0.0


def classification(prediction: str, reference: str, classes: Sequence[str], strict_upstream: bool = False) -> float:
    """1 / (classes named in the prediction) when the right one is among them, else 0. Case counts.

    Classes that are parts of the right one do not count as named; see the module docstring for `strict_upstream`.
    """
    named = [name for name in classes if name in prediction]
    if strict_upstream:
        for name in named:
            if name in reference and name != reference:
                named.remove(name)  # noqa: B909 (the quirk itself: the next name is skipped)
    else:
        named = [name for name in named if name == reference or name not in reference]
    return 1 / len(named) if reference in named else 0.0


def count(prediction: str, reference: str) -> float:
    """The share of the numbers in the prediction that equal the reference, as text; 0 where there is none."""
    numbers = _NUMBER.findall(prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """As `count`, for the number after "Paragraph" in the reference. ValueError when the reference names none."""
    named = PARAGRAPH.search(reference)
    if named is None:
        raise ValueError(f"reference {reference!r} names no paragraph; expected text such as 'Paragraph 3'")
    return count(prediction, named[1])


def edit_similarity(prediction: str, reference: str) -> float:
    """Similarity of the first line of code in the prediction to the reference, in whole per cent / 100.

    Lines with a backtick, `#` or `//` are taken for talk or comment and skipped; "" when no line is left.
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in _NO_CODE)), "")
    return int(round(100 * difflib.SequenceMatcher(None, line, reference).ratio())) / 100
