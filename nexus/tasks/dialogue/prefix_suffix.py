"""scb_prefix_suffix: a list of strings; a turn gives beginning and end of one and wants the whole.

After the task scbench_prefix_suffix of microsoft/MInference (MIT); generator and wording ours. Every string that is
asked for has two rivals in the list, one with its beginning and one with its end, so that neither suffices.
"""

from __future__ import annotations

import string

from nexus.tasks import draws, words
from nexus.tasks.dialogue.fitting import Plan, Where
from nexus.tasks.dialogue.schema import Turn

WORDING = dict(
    head="Every line of this list is one string. You will be asked for some of them.\n\n",
    ask="One string of the list begins with {prefix} and ends with {suffix}. Write it out in full.",
    answer_prefix="The whole string is",
)
MAX_NEW_TOKENS = 150
PART = 4  # letters of each of the three parts


def plan(where: Where) -> Plan:
    """One conversation: targets and rivals first, then strings of no importance; the lines are shuffled."""

    def build(n: int) -> tuple[str, tuple[Turn, ...]]:
        rng, q = where.draws.sample("parts"), where.questions
        parts = draws.distinct(lambda: words.letters(rng, string.ascii_lowercase, PART), 3 * n)
        prefix, middle, suffix = (list(parts[i::3]) for i in range(3))
        prefix[q : 2 * q], suffix[2 * q : 3 * q] = prefix[:q], suffix[:q]
        lines = ["".join(three) for three in zip(prefix, middle, suffix, strict=True)]
        order = where.draws.sample("order").permutation(n)
        turns = [_turn(prefix[i], suffix[i], lines[i]) for i in range(q)]
        return WORDING["head"] + "\n".join(lines[i] for i in order) + "\n\n", tuple(turns)

    return Plan(unit="strings", floor=3 * where.questions, build=build)


def _turn(prefix: str, suffix: str, line: str) -> Turn:
    return Turn(
        user=WORDING["ask"].format(prefix=prefix, suffix=suffix), reply=f" {line}.",
        answer_prefix=WORDING["answer_prefix"], references=(line,),
        metric="contains", max_new_tokens=MAX_NEW_TOKENS, evidence=line,
    )  # fmt: skip
