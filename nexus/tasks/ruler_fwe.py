"""RULER's frequent words: a text of made-up words whose counts fall as rank^-2; name the three most frequent.

Hsieh et al., arXiv 2404.06654; structure after NVIDIA/RULER, wording ours. Deviations: every sample has generators of
its own; the text grows by single words (RULER: M // 32); a text in which ranks 4 and 5 stand equally often is shrunk
until they do not, because the ranks would be ambiguous.
"""

from __future__ import annotations

import string

import numpy as np

from nexus.tasks import draws, words
from nexus.tasks.fit import Context, Parts, Plan

WORDING = dict(
    head="Read the following coded text and track how often each coded word appears. Find the three most frequent"
    " coded words. ",
    question="Question: Give no explanation and ignore the dots '...'. What are the three most frequently appearing"
    " words in the above coded text?",
    answer_prefix=" Answer: According to the coded text above, the three most frequently appearing words are:",
)
NOISE = "..."  # stands at rank 1
WORD_LENGTH = 6
TOKENS_PER_WORD = 50  # one vocabulary word per so many tokens of M
MIN_VOCABULARY = 5
ZETA_2 = np.pi**2 / 6


def rank_counts(num_words: int, vocabulary: int) -> np.ndarray:
    """How often each rank 1, 2, ... stands in a text of nominally `num_words` words: floor(N r^-2 / zeta(2))."""
    ranks = np.arange(1, vocabulary + 1, dtype=np.float64)
    return np.floor(num_words / (ranks**2 * ZETA_2)).astype(np.int64)


def valid(num_words: int) -> bool:
    """Whether rank 4 stands more often than rank 5."""
    count = rank_counts(num_words, MIN_VOCABULARY)
    return bool(count[3] > count[4])


def plan(where: Context) -> Plan:
    """One sample; a unit is one word of the nominal text size N. ValueError when L allows no five words."""
    size = (where.length - where.max_new_tokens) // TOKENS_PER_WORD
    if size < MIN_VOCABULARY:
        raise ValueError(
            f"task {where.draws.task} does not fit into L={where.length}: its vocabulary would have {size} words; "
            f"{MIN_VOCABULARY} are needed, from L={MIN_VOCABULARY * TOKENS_PER_WORD + where.max_new_tokens} on"
        )
    rng = where.draws.sample("words")
    coded = draws.distinct(lambda: words.letters(rng, string.ascii_lowercase, WORD_LENGTH), size - 1)
    vocabulary = np.array([NOISE, *coded])

    def body(n: int) -> str:
        text = np.repeat(vocabulary, rank_counts(n, size))
        return " ".join(where.draws.sample("order").permutation(text))

    return Plan(
        unit="words",
        floor=next(n for n in range(1, 10**6) if valid(n)),
        valid=valid,
        build=lambda n: Parts(
            head=WORDING["head"],
            body=body(n),
            question=WORDING["question"],
            answer_prefix=WORDING["answer_prefix"],
            references=tuple(coded[:3]),
        ),
    )
