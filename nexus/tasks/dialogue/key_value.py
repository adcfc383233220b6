"""scb_kv: a JSON object of random identifiers; every turn asks for the value of one key, at different depths.

After the task scbench_kv of microsoft/MInference (MIT); generator and wording ours. Keys stand one in each of as many
equal parts of the object as there are questions, and are asked in random order.
"""

from __future__ import annotations

from nexus.tasks import draws, words
from nexus.tasks.dialogue.fitting import Plan, Where
from nexus.tasks.dialogue.schema import Turn

WORDING = dict(
    head="This JSON object maps keys to values. You will be asked to look some of them up.\n\n",
    pair='"{key}": "{value}"',
    ask="Look up the key {key}. Which value does it have?",
    answer_prefix="Its value is",
)
MAX_NEW_TOKENS = 150


def plan(where: Where) -> Plan:
    """One conversation; the pairs are drawn one after the other, so more of them leave the first as they are."""

    def build(n: int) -> tuple[str, tuple[Turn, ...]]:
        rng = where.draws.sample("pairs")
        names = draws.distinct(lambda: words.uuid4(rng), 2 * n)
        pairs = list(zip(names[::2], names[1::2], strict=True))
        lines = [WORDING["pair"].format(key=key, value=value) for key, value in pairs]
        turns = [_turn(*pairs[i], lines[i]) for i in spread(where, n)]
        return WORDING["head"] + "{" + ",\n ".join(lines) + "}\n\n", tuple(turns)

    return Plan(unit="pairs", floor=where.questions, build=build)


def spread(where: Where, n: int) -> list[int]:
    """One of n places in each of `questions` equal parts, in random order."""
    rng, parts = where.draws.sample("places"), where.questions
    edges = [n * i // parts for i in range(parts + 1)]
    places = [int(rng.integers(low, high)) for low, high in zip(edges, edges[1:], strict=False)]
    return [places[i] for i in rng.permutation(parts)]


def _turn(key: str, value: str, line: str) -> Turn:
    return Turn(
        user=WORDING["ask"].format(key=key), reply=f" {value}.", answer_prefix=WORDING["answer_prefix"],
        references=(value,), metric="contains", max_new_tokens=MAX_NEW_TOKENS, evidence=line,
    )  # fmt: skip
