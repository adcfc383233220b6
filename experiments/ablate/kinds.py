"""What kind of token is it? From the texts of a context's tokens and of the accepted answers; no tokenizer.

A token has one kind, the first of KINDS that a character of it belongs to:

    first          the first four tokens, whatever they are: where attention sinks are
    chat           wrapping by the chat template, up to and with the header of the turn the context stands in
    instruction    the first line of what the user says, if it has at most 60 words
    answer         tokens of an accepted answer, wherever it stands in the context
    needle         the rest of a sentence (or line) with an answer in it
    digits         any other token with a digit: numbers of distractors, list items
    function       function words of English (the, of, was, ..)
    word           other words and pieces of words
    punctuation    no letter and no digit
    blank          blanks and line breaks alone

In RULER's needle tasks `function`, `word` and `punctuation` are the filler: essays or noise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np

from experiments.page.examples import reference_tokens

KINDS = ("first", "chat", "instruction", "answer", "needle", "digits", "function", "word", "punctuation", "blank")
TITLES = dict(zip(KINDS, (
    "first 4 tokens", "chat template", "instruction", "answer", "rest of needle", "other digits", "function words",
    "other words", "punctuation", "blanks",
), strict=True))  # fmt: skip
FIRST = 4  # tokens
LONGEST_INSTRUCTION = 60  # words; a longer first line is the text itself
FUNCTION_WORDS = frozenset(
    "a about after all also an and any are as at be because been but by can could did do does for from had has have he "
    "her him his how i if in into is it its just may me more most my no not of on one only or other our out over own s "
    "she should so some such t than that the their them then there these they this those through to too under up us "
    "very was we were what when where which while who whom whose why will with would you your".split()
)

_SPECIAL = re.compile(r"<\|[^<>|\s]+\|>|</?s>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>|\[/?INST\]")
_ROLE = re.compile(r"(?:system|user|human)?\s*")
_WORD = re.compile(r"[^\W_]+")
_SIGN = re.compile(r"[^\w\s]|_")
_RANK = {kind: len(KINDS) - i for i, kind in enumerate(KINDS)}  # of a token's characters the highest counts


def of_tokens(tokens: Sequence[str], references: Sequence[str]) -> list[str]:
    """The kind of every token of a context. tokens: their texts, "" for one that ends inside a character."""
    text = "".join(tokens)
    rank = np.full(len(text) + 1, _RANK["blank"])
    for pattern, kind in ((_SIGN, "punctuation"), (_WORD, "word"), (re.compile(r"\d"), "digits")):
        for match in pattern.finditer(text):
            own = "function" if kind == "word" and match[0].lower() in FUNCTION_WORDS else kind
            rank[match.start() : match.end()] = _RANK[own]
    ends = list(itertools.accumulate(map(len, tokens)))
    starts = [end - len(token) for end, token in zip(ends, tokens, strict=True)]
    answers = reference_tokens(tokens, references)
    for start, end in _runs(answers, starts, ends):
        low, high = _sentence(text, start, end)
        rank[low:high] = np.maximum(rank[low:high], _RANK["needle"])
    head, body = _opening(text)
    rank[:head], rank[head:body] = _RANK["chat"], _RANK["instruction"]
    by_rank = {value: kind for kind, value in _RANK.items()}
    found = [by_rank[int(rank[start : max(end, start + 1)].max())] for start, end in zip(starts, ends, strict=True)]
    for i, inside in enumerate(answers):
        if inside and found[i] not in ("chat", "instruction"):
            found[i] = "answer"
    return ["first"] * min(FIRST, len(tokens)) + found[FIRST:]


def _runs(inside: Sequence[bool], starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first character, end) of every run of tokens that are inside."""
    found = []
    for holds, run in itertools.groupby(range(len(inside)), key=lambda i: inside[i]):
        places = list(run)
        if holds:
            found.append((starts[places[0]], ends[places[-1]]))
    return found


def _sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """The sentence, or line, around text[start:end]."""
    before = re.split(r"[.!?]\s|\n", text[:start])[-1]
    after = re.search(r"[.!?](?=\s|$)|\n|$", text[end:])
    assert after is not None  # the end of the text is found at the latest
    return start - len(before), end + after.end()


def _opening(text: str) -> tuple[int, int]:
    """Where the chat template's part ends, and where the instruction after it does."""
    specials = list(_SPECIAL.finditer(text))
    head = 0
    if specials:
        after = _ROLE.match(text, specials[-1].end())
        head = after.end() if after else specials[-1].end()
    line, newline, _ = text[head:].partition("\n")
    short = newline and len(line.split()) <= LONGEST_INSTRUCTION
    return head, head + len(line) + 1 if short else head
