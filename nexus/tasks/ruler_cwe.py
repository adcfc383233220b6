"""RULER's common words: a numbered list in which ten words stand more often than all others.

Hsieh et al., arXiv 2404.06654; structure after NVIDIA/RULER, wording ours. Deviations: every sample has generators of
its own and permutes the whole word list; the worked example shares no word with the task; the example stands inside
the user turn (RULER makes a finished earlier turn of it, with a second BOS text); the list grows by single words.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nexus.tasks import words
from nexus.tasks.fit import Context, Parts, Plan

WORDING = dict(
    head="Below is a numbered list of words. Some of them appear more often than others. Memorise the ones that appear"
    " most often.\n",
    question="Question: What are the 10 most common words in the above list?",
    answer_prefix=" Answer: The top 10 words that appear most often in the list are:",
)
NUM_COMMON = 10
SHORT = 4096  # below this L the counts are the small ones


def counts(length: int) -> tuple[int, int]:
    """How often a common and an uncommon word stand in the list."""
    return (6, 1) if length < SHORT else (30, 3)


def numbered(items: Iterable[str]) -> str:
    """`1. a 2. b ...`"""
    return " ".join(f"{i}. {item}" for i, item in enumerate(items, start=1))


def word_list(chosen: list[str], repeats: tuple[int, int], rng: np.random.Generator) -> str:
    """The shuffled numbered list: the first ten words `repeats[0]` times each, the others `repeats[1]` times."""
    common, uncommon = repeats
    items = chosen[:NUM_COMMON] * common + chosen[NUM_COMMON:] * uncommon
    return numbered(items[i] for i in rng.permutation(len(items)))


def plan(where: Context) -> Plan:
    """One sample; a unit is one distinct word."""
    vocabulary = words.all_words()
    shuffled = [vocabulary[i] for i in where.draws.sample("words").permutation(len(vocabulary))]
    num_example, example_repeats = (20, (3, 1)) if where.length < SHORT else (40, (10, 3))
    example, task = shuffled[:num_example], shuffled[num_example:]
    head = _example(example, example_repeats, where.draws.sample("example order")) + WORDING["head"]
    return Plan(
        unit="words",
        floor=NUM_COMMON + 1,
        ceiling=len(task),
        build=lambda n: Parts(
            head=head,
            body=word_list(task[:n], counts(where.length), where.draws.sample("order")),
            question=WORDING["question"],
            answer_prefix=WORDING["answer_prefix"],
            references=tuple(task[:NUM_COMMON]),
        ),
    )


def _example(chosen: list[str], repeats: tuple[int, int], rng: np.random.Generator) -> str:
    """A solved small task, and the blank line after it."""
    text = word_list(chosen, repeats, rng)
    answer = f"{WORDING['answer_prefix']} {numbered(chosen[:NUM_COMMON])}"
    return f"{WORDING['head']}{text}\n{WORDING['question']}{answer}\n\n"
