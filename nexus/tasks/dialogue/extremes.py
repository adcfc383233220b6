"""scb_mf: a long list of different integers; the turns ask for the largest, the smallest, the second largest, ...

After the task scbench_mf of microsoft/MInference (MIT); generator and wording ours. The answer needs the whole list, so
no distance is told.
"""

from __future__ import annotations

import numpy as np

from nexus.tasks.dialogue.fitting import Plan, Where
from nexus.tasks.dialogue.schema import Turn

ORDINALS = ("", "second ", "third ", "fourth ", "fifth ")
ENDS = ("largest", "smallest")
HEAD = "Here is a list of numbers. You will be asked which stand out.\n\n"
ASK = "Which number of the list is the {rank}{end}?"
ANSWER_PREFIX = "The {rank}{end} number of the list is"
WORDING = dict(head=HEAD, ask=ASK, answer_prefix=ANSWER_PREFIX, ranks=ORDINALS, ends=ENDS)
MAX_NEW_TOKENS = 5
NUMBERS = range(1000, 10000)


def plan(where: Where) -> Plan:
    """One conversation. ValueError for more questions than there are ranks."""
    asked = [(rank, end) for rank in range(len(ORDINALS)) for end in range(len(ENDS))]
    if where.questions > len(asked):
        raise ValueError(f"task {where.draws.task} has {len(asked)} different questions, not {where.questions}")

    def build(n: int) -> tuple[str, tuple[Turn, ...]]:
        shuffled = where.draws.sample("numbers").permutation(np.asarray(NUMBERS))[:n]
        ranked = sorted(map(int, shuffled))
        turns = [_turn(rank, end, ranked[rank] if end else ranked[-1 - rank]) for rank, end in asked[: where.questions]]
        return HEAD + "[" + ", ".join(map(str, shuffled)) + "]\n\n", tuple(turns)

    return Plan(unit="numbers", floor=where.questions, ceiling=len(NUMBERS), build=build)


def _turn(rank: int, end: int, number: int) -> Turn:
    fields = dict(rank=ORDINALS[rank], end=ENDS[end])
    return Turn(
        user=ASK.format(**fields), reply=f" {number}.",
        answer_prefix=ANSWER_PREFIX.format(**fields), references=(str(number),), metric="number",
        max_new_tokens=MAX_NEW_TOKENS,
    )  # fmt: skip
