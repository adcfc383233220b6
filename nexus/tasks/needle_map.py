"""Needle maps: one sentence at a given depth of an essay, over lengths and depths.

After gkamradt/LLMTest_NeedleInAHaystack ("Needle in a haystack - pressure testing LLMs"). A task is one depth,
`needle_map_<percent>`, its samples are different needles: a cell of the map is the mean over several, since one needle
gives 0 or 1 and little else.

    position = after the last sentence that ends within the first percent/100 of the haystack's words

Differences: needles, questions and wording are ours, and answers are scored by key phrases (a rule of `nexus.metrics`)
and ROUGE-1 recall instead of a model as judge. Depth is a share of words, not tokens, and any of `.?!` before a capital
ends a sentence. Only depth 0 stands at the very start: greater depths have at least one sentence before the needle.
A last sentence that the length cuts off gets a full stop, so that the needle at depth 100 follows one too. The
haystack is the same at all depths and begins with the first essay in the order of file names.
"""

from __future__ import annotations

import functools
import re

import numpy as np

from nexus.tasks import haystacks
from nexus.tasks.fit import Context, Parts, Plan
from nexus.tasks.generated import Generated
from nexus.tasks.needles import NEEDLES, Needle

VARIANT, VERSION = "needle-map-nexus", "1.0.0"
DEPTHS = (0, 25, 50, 75, 100)  # per cent; those of the set, any other whole one is a task too
MAX_NEW_TOKENS = 40  # the longest needle takes about 30
OR = "|"  # between the paraphrases of a phrase in `references`
TEXTS = dict(
    head="Below stands a long text. Read it to its end; a question about it comes last.\n\n",
    tail="\n\n",
    question="{question} Answer in one sentence.",
    answer_prefix="According to the text,",
)
WORDING = TEXTS | {
    f"needle_{i}": "\n".join([needle.sentence, needle.question, *map(OR.join, needle.phrases)])
    for i, needle in enumerate(NEEDLES)
}
_NAME = re.compile(r"needle_map_(0|[1-9]\d?|100)")


def depth(name: str) -> int | None:
    """The depth of a task in per cent, None when the name is that of another task."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def row(percent: int) -> Generated:
    """The task of a depth."""
    return Generated(
        name=f"needle_map_{percent}",
        variant=VARIANT,
        version=VERSION,
        max_new_tokens=MAX_NEW_TOKENS,
        metric="key_phrases",
        wording=WORDING,
        planner=functools.partial(plan, percent),
        uses_essays=True,
    )


def plan(percent: int, where: Context) -> Plan:
    """One sample: needle number index + seed of the list, which begins anew at its end."""
    needle = NEEDLES[(where.draws.index + where.draws.seed) % len(NEEDLES)]
    text = haystacks.package_essays() if where.essays is None else where.essays
    return Plan(unit="words of essay", floor=1, build=lambda n: _parts(needle, text.first_words(n), percent))


def _parts(needle: Needle, sentences: list[str], percent: int) -> Parts:
    at = position(sentences, percent)
    return Parts(
        head=TEXTS["head"],
        body=" ".join(haystacks.insert(closed(sentences), np.array([at]), (needle.sentence,))),
        tail=TEXTS["tail"],
        question=TEXTS["question"].format(question=needle.question),
        answer_prefix=TEXTS["answer_prefix"],
        references=(needle.sentence, *map(OR.join, needle.phrases)),
        planted=(needle.sentence,),
    )


def position(sentences: list[str], percent: int) -> int:
    """Before which sentence the needle goes; len(sentences) = at the end."""
    if percent in (0, 100):
        return len(sentences) * (percent // 100)
    ends = np.cumsum([sentence.count(" ") + 1 for sentence in sentences])
    return max(1, int(np.searchsorted(100 * ends, percent * ends[-1], side="right")))


def closed(sentences: list[str]) -> list[str]:
    """The sentences, the last one with a full stop where the length has cut it off."""
    last = sentences[-1]
    ended = last.rstrip("\"')\u201d\u2019").endswith((".", "?", "!"))
    return [*sentences[:-1], last if ended else f"{last.rstrip(',;:-')}."]
