"""The example view: a context with its kept and evicted tokens, and what every method answered; from tokens.jsonl.

A token's colour is the share of (layer, kv head) slots that still hold it after the context, in six levels; each level
has an underline and a weight of its own, so that it reads without colours. Neighbours of one level are one element.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup, escape

from experiments.boards import in_order
from experiments.summary import FULL, Results, Row, summaries, tasks_above_floor

LEVELS = ("evicted everywhere", "in up to 10 %", "10 to 25 %", "25 to 50 %", "50 to 100 %", "kept everywhere")
LIMITS = (0.0, 0.10, 0.25, 0.50)  # upper ends of the first levels; the last level is exactly 1
LEAST = 3  # characters: a shorter reference is not looked for in the context
NOT_RECORDED = (
    "Which tokens were kept was not recorded in this run (tokens.jsonl is missing): it was made with "
    "eval.show_examples=0, or before there was such a record. Below are the answers alone."
)
CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t\r"} | {0x7F: 0x2421}  # visible signs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What one method at one budget said, and what it had kept."""

    label: str
    text: str
    mark: str  # right, partly right, wrong
    score: float
    kept: float | None  # mean share over the context's tokens; None where it was not recorded
    kept_references: float | None  # ... over the tokens of the references' text in the context
    context: Markup | None  # the coloured context; None for the full cache, which holds everything


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a task, all methods side by side."""

    task: str
    length: int
    index: int
    references: list[str]
    question: str  # text after the cut; "" where it was not recorded
    num_tokens: int  # of the context
    meaningful: bool
    answers: list[Answer]


def of(results: Results) -> list[Example]:
    """The shown examples of a table; where none was recorded, the first of every task without its context."""
    found = []
    for length in results.lengths:
        failed = {row["task"] for row in tasks_above_floor(results, length)[1]}
        entries = [(row.method, row.budget) for row in in_order(summaries(results, length))]
        entries += [(row["method"], row["budget"]) for row in results.rows if row["length"] == length]  # all failed
        for task in results.config["eval"]["tasks"]:
            answers = _by_entry(row for row in results.predictions if (row["task"], row["length"]) == (task, length))
            tokens = _by_entry(row for row in results.tokens if (row["task"], row["length"]) == (task, length))
            indices = sorted({index for _, index in tokens}) or sorted({index for _, index in answers})[:1]
            for index in indices:
                shown = [
                    (answers[entry, index], tokens.get((entry, index)))
                    for entry in dict.fromkeys(entries)
                    if (entry, index) in answers
                ]
                if shown:
                    found.append(_example(shown, meaningful=task not in failed))
    return found


def level(share: float) -> int:
    """Index into LEVELS of a share between 0 and 1."""
    return len(LEVELS) - 1 if share >= 1 else bisect.bisect_left(LIMITS, share)


def coloured(tokens: Sequence[str], shares: Sequence[float], inside: Sequence[bool]) -> Markup:
    """The text with an element per run of equal level; `inside`: tokens of a reference, which are boxed."""
    parts = []
    places = zip(tokens, map(level, shares), inside, strict=True)
    for (step, boxed), run in itertools.groupby(places, key=lambda place: place[1:]):
        text, tag = escape(visible("".join(token for token, *_ in run))), "mark" if boxed else "i"
        parts.append(Markup(f'<{tag} class="k{step}">{text}</{tag}>') if text else Markup(""))
    return Markup("").join(parts)


def reference_tokens(tokens: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Which tokens hold a part of a reference, found as a whole word whatever its case; [tokens]."""
    ends = np.cumsum([len(token) for token in tokens])
    text, inside = "".join(tokens), [False] * len(tokens)
    for reference in {reference.strip() for reference in references}:
        if len(reference) < LEAST:
            continue
        for match in re.finditer(rf"(?<!\w){re.escape(reference)}(?!\w)", text, re.IGNORECASE):
            first = int(np.searchsorted(ends, match.start(), side="right"))
            last = int(np.searchsorted(ends, match.end(), side="left"))
            inside[first : last + 1] = [True] * (last + 1 - first)
    return inside


def visible(text: str) -> str:
    """Control characters as signs: HTML cannot hold them."""
    return text.translate(CONTROL)


# --- one example ------------------------------------------------------------------------------------------------------
def _example(shown: Sequence[tuple[Row, Row | None]], meaningful: bool) -> Example:
    first = shown[0][0]
    recorded = next((tokens for _, tokens in shown if tokens), None)
    return Example(
        task=first["task"],
        length=first["length"],
        index=first["index"],
        references=[visible(reference) for reference in first["references"]],
        question=visible(recorded.get("question", "")) if recorded else "",
        num_tokens=len(recorded["tokens"]) if recorded else first["context_tokens"],
        meaningful=meaningful,
        answers=[_answer(row, tokens) for row, tokens in shown],
    )


def _answer(row: Row, tokens: Row | None) -> Answer:
    kept = kept_references = context = None
    if tokens is not None:
        inside = reference_tokens(tokens["tokens"], row["references"])
        shares = np.asarray(tokens["shares"], float)
        kept = float(shares.mean()) if shares.size else None
        kept_references = float(shares[inside].mean()) if any(inside) else None
        context = None if row["method"] == FULL else coloured(tokens["tokens"], tokens["shares"], inside)
    return Answer(
        label=row["method"] if row["method"] == FULL else f"{row['method']}, budget {row['budget']}",
        text=visible(row["prediction"].strip()),
        mark=_mark(row),
        score=row["score"],
        kept=kept,
        kept_references=kept_references,
        context=context,
    )


def _mark(row: Row) -> str:
    mark = "right" if row["score"] >= 100 else "wrong" if row["score"] <= 0 else "partly right"
    return mark + (", empty" if row["is_null"] else ", cut off" if row["truncated"] else "")


def _by_entry(rows: Iterable[Row]) -> dict[tuple[tuple[str, int], int], Row]:
    return {((row["method"], row["budget"]), row["index"]): row for row in rows}
