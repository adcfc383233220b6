"""scb_vt: several chains of assignments in noise; every turn asks which variables one value has reached.

After the task scbench_vt of microsoft/MInference (MIT), itself after RULER's variable tracking; generator and wording
ours. The statements of a chain keep their order, those of different chains are mixed. Distance is counted from the
chain's first statement, its oldest.
"""

from __future__ import annotations

import string

import numpy as np

from nexus.tasks import draws, haystacks, ruler_vt, words
from nexus.tasks.dialogue.fitting import Plan, Where
from nexus.tasks.dialogue.schema import Turn

HOPS = 2
WORDING = dict(
    first=ruler_vt.WORDING["first"],
    next=ruler_vt.WORDING["next"],
    head="Variables are set in the lines below, some to numbers and some to other variables.\n\n",
    ask="Which variables end up as {value}?",
    answer_prefix="These {count} variables end up as {value}:",
)
MAX_NEW_TOKENS = 30


def plan(where: Where) -> Plan:
    """One conversation: the chains are drawn here, once; only the noise depends on n."""
    rng = where.draws.sample("chains")
    values = draws.distinct(lambda: words.number(rng, 5), where.questions)
    size = HOPS + 1
    names = draws.distinct(lambda: words.letters(rng, string.ascii_uppercase, 5), where.questions * size)
    groups = [names[i * size : (i + 1) * size] for i in range(where.questions)]
    chains = [ruler_vt.chain(group, value) for group, value in zip(groups, values, strict=True)]
    mixed = _mixed(chains, rng)
    turns = tuple(_turn(group, value, chain[0]) for group, value, chain in zip(groups, values, chains, strict=True))

    def build(n: int) -> tuple[str, tuple[Turn, ...]]:
        body = ruler_vt.hide(haystacks.noise_lines(n), mixed, where.draws.sample("positions"))
        return f"{WORDING['head']}{body}\n\n", turns

    return Plan(unit="noise sentences", floor=len(haystacks.NOISE), build=build)


def _mixed(chains: list[tuple[str, ...]], rng: np.random.Generator) -> tuple[str, ...]:
    """All statements, each chain's in order."""
    owners = rng.permutation([i for i, chain in enumerate(chains) for _ in chain])
    left = [iter(chain) for chain in chains]
    return tuple(next(left[i]) for i in owners)


def _turn(names: list[str], value: str, first: str) -> Turn:
    return Turn(
        user=WORDING["ask"].format(value=value), reply=f" {' '.join(names)}.",
        answer_prefix=WORDING["answer_prefix"].format(count=len(names), value=value), references=tuple(names),
        metric="all", max_new_tokens=MAX_NEW_TOKENS, evidence=first,
    )  # fmt: skip
