"""Prompts that are too long lose their middle: the first half and the last half of the room stay.

THUDM/LongBench cuts so, since instructions stand at both ends. The prompt is cut as one text (context, question, answer
prefix), before the chat template is put around it; text that goes is whole tokens, text that stays is verbatim.
Deviations: special tokens written in the text stay (there, decoding drops them); the room counts the wrapping and the
answer as well, since L does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nexus.tasks.fit import Tokenizer

_BACK = 8  # tokens to step back for an end inside a character


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """What is left of a prompt. `tokens` of the whole, wrapping included; `cut` tokens went."""

    context: str
    question: str
    tokens: int
    cut: int


def keep_ends(
    tokenizer: Tokenizer, context: str, question: str, answer_prefix: str, room: int, *, chat: bool = True
) -> Kept:
    """The prompt with so much of its middle left out that it takes at most `room` tokens.

    A prompt that fits stays as it is. The answer prefix is never cut, the question only where it is longer than half
    the room. ValueError when the room does not hold prefix and wrapping, or the tokenizer does not give back its text.
    """

    def tokens(context: str, question: str) -> int:
        return sum(map(len, tokenizer.prompt(context, question, answer_prefix, chat=chat)))

    whole = tokens(context, question)
    if whole <= room:
        return Kept(context=context, question=question, tokens=whole, cut=0)
    context_ids, question_ids = tokenizer.encode(context), tokenizer.encode(question)
    prefix = len(tokenizer.encode(answer_prefix))
    wrapping = max(0, whole - len(context_ids) - len(question_ids) - prefix)
    half = (room - wrapping) // 2
    while half > prefix:
        last = half - prefix  # tokens of context and question that stay before the prefix
        shorter = _ends(tokenizer, context, context_ids, half, max(0, last - len(question_ids)))
        asked = _ends(tokenizer, question, question_ids, max(0, half - len(context_ids)), last)
        if (found := tokens(shorter, asked)) <= room:
            return Kept(context=shorter, question=asked, tokens=found, cut=whole - found)
        half -= 1  # the seam takes more tokens than the two ends apart
    raise ValueError(
        f"{room} tokens of prompt are too few: chat wrapping and answer prefix take {wrapping + prefix}, and each half "
        "of the text needs at least one more than the prefix"
    )


def _ends(tokenizer: Tokenizer, text: str, ids: Sequence[int], first: int, last: int) -> str:
    """The text of the first and of the last so many tokens, as it stands in `text`."""
    if first + last >= len(ids):
        return text
    return _first(tokenizer, text, ids, first) + _last(tokenizer, text, ids, last)


def _first(tokenizer: Tokenizer, text: str, ids: Sequence[int], count: int) -> str:
    for end in range(count, max(0, count - _BACK), -1):
        found = tokenizer.decode(list(ids[:end]), skip_special=False)
        if text.startswith(found):
            return found
    return _nothing(count, ids)


def _last(tokenizer: Tokenizer, text: str, ids: Sequence[int], count: int) -> str:
    for start in range(len(ids) - count, min(len(ids), len(ids) - count + _BACK)):
        found = tokenizer.decode(list(ids[start:]), skip_special=False)
        if text.endswith(found):
            return found
    return _nothing(count, ids)


def _nothing(count: int, ids: Sequence[int]) -> str:
    """ "" where nothing was asked for, or less than a character."""
    if count >= _BACK:
        raise ValueError(f"the tokenizer does not give back its text ({len(ids)} tokens)")
    return ""
