"""RULER's question answering: documents, some of which hold the answer, and a question about them.

Hsieh et al., arXiv 2404.06654; structure after NVIDIA/RULER, wording ours. The documents that belong to the question
are always there; others follow until the length is full, and all of them are shuffled. Deviations: every sample has
generators of its own; the last of the other documents is cut after the word with which the length is full (RULER adds
documents by the ten, which leaves short lengths half empty or fits none); which questions are asked depends on the
seed (RULER: the first ones of the file).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from nexus.tasks.fit import Context, Parts, Plan

MAX_NEW_TOKENS, METRIC = 32, "part"
VERSION = "1.0.0"
WORDING = dict(
    instruction="Use the documents to answer the question. Reply with the answer alone, without any other words.",
    announcement="These are the documents.",
    document="Document {number}:\n{text}",
    question="Question: {question}",
    answer_prefix=" Answer:",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A question with its answers (any of them is right), the documents it needs, and an endless row of others."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    others: Callable[[int], str]


def plan(case: Case, where: Context) -> Plan:
    """One sample; a unit is one word of the other documents, the floor are the documents of the question alone."""
    head = f"{WORDING['instruction']}\n\n{WORDING['announcement']}\n\n"
    question = f"{WORDING['instruction']}\n\n{WORDING['question'].format(question=case.question)}"

    def build(n: int) -> Parts:
        taken = [*case.gold, *first_words(case.others, n)]
        order = where.draws.sample("document order").permutation(len(taken))
        shuffled = [WORDING["document"].format(number=i, text=taken[j]) for i, j in enumerate(order, 1)]
        return Parts(
            head=head,
            body="\n\n".join(shuffled),
            tail="\n\n",
            question=question,
            answer_prefix=WORDING["answer_prefix"],
            references=case.answers,
            planted=case.gold,
        )

    unit = f"words of documents beside the {len(case.gold)} of the question"
    return Plan(unit=unit, floor=0, build=build)


def first_words(documents: Callable[[int], str], count: int) -> list[str]:
    """The first documents of an endless row with `count` words together; the last may be cut."""
    taken: list[str] = []
    while count > 0:
        words = documents(len(taken)).split(" ")
        taken.append(" ".join(words[:count]))
        count -= len(words)
    return taken
