"""Rules of dialogue tasks: one answer in, named measures in [0, 100] out; nothing where there is no rule.

    contains    a reference occurs in the answer, case counts            kv, prefix_suffix
    any         a reference occurs, ignoring case                        qa_eng, many_shot
    all         share of the references that occur, ignoring case        vt (RULER)
    choice      the first letter A-D; else what follows "answer is"; else the first A-D that stands alone
    number      the first number equals the reference                    mf
    digits      the first group of digits is the reference               passkey
    proxy       LongMemEval without its judge: normalised substring and token F1, both called proxy_*
    agreement   MT-Bench-101 without its judge: how much the reply is the full cache's

Definitions of microsoft/MInference (folder scbench). Stricter than there: a letter must stand alone ("Apple" is not A),
brackets, quotes and stars around it do not hide it, and 12.9 is not 12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from nexus import metrics
from nexus.tasks.dialogue.schema import Turn

MEASURES: dict[str, tuple[str, ...]] = {
    **{rule: ("score",) for rule in ("contains", "any", "all", "choice", "number", "digits")},
    "proxy": ("proxy_substring", "proxy_token_f1"),
    "agreement": ("agree_token_f1", "agree_first_32"),
    "none": (),
}
"""Measures a rule gives; the first is the one that tables and figures show."""
FIRST = 32  # tokens of a reply that `agree_first_32` compares

_LETTER = r"([A-D])(?![A-Za-z0-9])"
_FIRST_LETTER = re.compile(rf"[\s\"'(\[*]*{_LETTER}")
_ANSWER_IS = re.compile(rf"(?:answer is|answer|option is)\s*:?[\s\"'(\[*]*{_LETTER}")
_ANY_LETTER = re.compile(rf"(?<![A-Za-z0-9]){_LETTER}")
_NUMBER = re.compile(r"(?<!\w)-?\d+(?:\.\d+)?|\d+(?:\.\d+)?")
_DIGITS = re.compile(r"\d+")


def scores(turn: Turn, prediction: str) -> dict[str, float]:
    """Measures of one answer by name, in [0, 100]; {} for turns without a rule of their own (none, agreement)."""
    if turn.metric == "proxy":
        return {
            "proxy_substring": 100.0 * _normalised_substring(prediction, turn.references),
            "proxy_token_f1": 100.0 * max(metrics.token_f1(prediction, ref) for ref in turn.references),
        }
    if turn.metric in _RULES:
        return {"score": 100.0 * float(_RULES[turn.metric](prediction, turn.references))}
    return {}


def agreement(prediction: str, tokens: Sequence[int], full: str, full_tokens: Sequence[int]) -> dict[str, float]:
    """How much a reply is the full cache's: token F1 of the texts, share of equal tokens among the first 32."""
    a, b = list(tokens[:FIRST]), list(full_tokens[:FIRST])
    longest = max(len(a), len(b))
    same = sum(x == y for x, y in zip(a, b, strict=False)) / longest if longest else 1.0
    f1 = metrics.token_f1(prediction, full) if prediction.strip() or full.strip() else 1.0
    return {"agree_token_f1": 100.0 * f1, "agree_first_32": 100.0 * same}


def chosen_letter(prediction: str) -> str:
    """The option A-D that an answer chooses; "" when it names none."""
    text = prediction.strip()
    for found in (_FIRST_LETTER.match(text), _ANSWER_IS.search(text), _ANY_LETTER.search(text)):
        if found:
            return found[1]
    return ""


def _contains(prediction: str, references: Sequence[str]) -> bool:
    return any(reference in prediction for reference in references)


def _number(prediction: str, references: Sequence[str]) -> bool:
    found = _NUMBER.search(prediction)
    return found is not None and any(float(found[0]) == float(reference) for reference in references)


def _digits(prediction: str, references: Sequence[str]) -> bool:
    found = _DIGITS.search(prediction)
    return found is not None and found[0] in references


def _normalised_substring(prediction: str, references: Sequence[str]) -> bool:
    text = f" {metrics.normalised(prediction)} "  # whole words: 5 is not found in 15
    wanted = filter(None, map(metrics.normalised, references))
    return any(f" {reference} " in text for reference in wanted)


_RULES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "contains": _contains,
    "any": metrics.string_match_part,
    "all": metrics.string_match_all,
    "choice": lambda prediction, references: chosen_letter(prediction) in references,
    "number": _number,
    "digits": _digits,
}
