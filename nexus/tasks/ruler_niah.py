"""RULER's needle tasks: sentences with a key and a value, hidden in noise, in essays, or among other needles.

Hsieh et al., arXiv 2404.06654; structure after NVIDIA/RULER, wording ours. Deviations: every sample has generators of
its own; distractors never repeat a key or a value of the real needles, so each reference stands in the context exactly
once; noise grows by sentences and essays by words (RULER: 25 lines, 500 words), which fills short lengths.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from nexus.tasks import draws, haystacks, words
from nexus.tasks.fit import Context, Parts, Plan
from nexus.tasks.generated import Generated

WORDING = dict(
    needle="One of the special magic {kind}s for {key} is: {value}.",
    head="{some} special magic {kind} {are} hidden within the text below. Memorise {them}: I will ask about the {kind}"
    " afterwards.\n",
    question="What {are_all} the special magic {kind} for {keys} mentioned in the provided text?",
    answer_prefix=" The special magic {kind} for {keys} mentioned in the provided text {are}",
)
DEPTHS = np.linspace(0, 100, 40).round().astype(int)  # per cent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needles:
    """What is hidden where: `keys` distinct keys with `values` values each; `queries` of the keys are asked for."""

    haystack: str  # "noise" | "essay" | "needle"
    key_kind: str  # "word" | "uuid"
    value_kind: str  # "number" | "uuid"
    keys: int = 1
    values: int = 1
    queries: int = 1


def task(name: str, spec: Needles, variant: str, version: str, wording: Mapping[str, str] = WORDING) -> Generated:
    """A row of a task table: needles of a kind, in some wording, with RULER's limit and metric."""
    return Generated(
        name=name,
        variant=variant,
        version=version,
        max_new_tokens=128,
        metric="all",
        wording=wording,
        planner=functools.partial(plan, spec, wording=wording),
        uses_essays=spec.haystack == "essay",
    )


def needle(kind: str, key: str, value: str, wording: Mapping[str, str] = WORDING) -> str:
    """The needle sentence. In RULER the kind is in the plural always."""
    return wording["needle"].format(kind=kind, key=key, value=value)


def frame(kind: str, keys: list[str], num_values: int, wording: Mapping[str, str] = WORDING) -> tuple[str, str, str]:
    """Head, question and answer prefix; in the singular when there is one value to find.

    The sentences are built, not edited: replacing "are" in finished text would change a chat template too.
    """
    one = num_values == 1
    fields = dict(
        kind=kind if one else f"{kind}s",
        keys=join_keys(keys),
        some="A" if one else "Some",
        are="is" if one else "are",
        are_all="is" if one else "are all",
        them="it" if one else "them",
    )
    head, question, answer_prefix = (wording[part].format(**fields) for part in ("head", "question", "answer_prefix"))
    return head, question, answer_prefix


def join_keys(keys: list[str]) -> str:
    """`a`; `a, and b`; `a, b, c, and d`."""
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"


def plan(spec: Needles, where: Context, wording: Mapping[str, str] = WORDING) -> Plan:
    """One sample of a needle task: what is hidden and asked is drawn here, once; only the haystack depends on n.

    Distractors of a needle haystack have RULER's wording always.
    """
    rng = where.draws.sample("needles")
    num_keys = max(spec.keys, spec.queries)
    keys = draws.distinct(functools.partial(words.value, spec.key_kind, rng), num_keys)
    values = draws.distinct(functools.partial(words.value, spec.value_kind, rng), num_keys * spec.values)
    pairs = [(key, values[i * spec.values + j]) for i, key in enumerate(keys) for j in range(spec.values)]
    # The same permutation for every sample of a run, as in RULER.
    pairs = [pairs[i] for i in where.draws.run("needle order").permutation(len(pairs))]
    asked = [keys[i] for i in where.draws.sample("question").choice(num_keys, spec.queries, replace=False)]
    references = tuple(value for key in asked for k, value in pairs if k == key)
    head, question, answer_prefix = frame(spec.value_kind, asked, spec.queries * spec.values, wording)
    planted = tuple(needle(spec.value_kind, key, value, wording) for key, value in pairs)

    floor, unit, body = _haystack(spec, where, planted, keys + values)
    return Plan(
        unit=unit,
        floor=floor,
        build=lambda n: Parts(
            head=head,
            body=body(n),
            question=question,
            answer_prefix=answer_prefix,
            references=references,
            planted=planted,
        ),
    )


def _haystack(
    spec: Needles, where: Context, planted: tuple[str, ...], taken: list[str]
) -> tuple[int, str, Callable[[int], str]]:
    """Floor, name of the unit, and the body with n units."""
    if spec.haystack == "essay":
        text = haystacks.package_essays() if where.essays is None else where.essays
        return 1, "words of essay", lambda n: _in_essay(text.first_words(n), planted, where)
    if spec.haystack == "noise":
        floor = len(haystacks.NOISE) * max(1, len(planted))
        return floor, "noise sentences", lambda n: _in_lines(haystacks.noise_lines(n), planted, where)
    distractor = _distractors(spec, where, taken)
    return max(1, len(planted)), "needle lines", lambda n: _in_lines(distractor(n), planted, where)


def _distractors(spec: Needles, where: Context, taken: list[str]) -> Callable[[int], list[str]]:
    """A function that gives the first n needle sentences of one endless list, without the keys and values in use."""
    rng = where.draws.sample("distractors")
    seen = set(taken)
    lines: list[str] = []

    def unused(kind: str) -> str:
        new = draws.distinct(functools.partial(words.value, kind, rng), 1, seen)[0]
        seen.add(new)
        return new

    def first(n: int) -> list[str]:
        while len(lines) < n:
            lines.append(needle(spec.value_kind, unused(spec.key_kind), unused(spec.value_kind)))
        return lines[:n]

    return first


def _in_lines(lines: list[str], planted: tuple[str, ...], where: Context) -> str:
    """Needle i goes before the line at the i-th of as many distinct positions."""
    rng = where.draws.sample("positions")
    at = np.sort(rng.choice(len(lines) + 1, len(planted), replace=False))
    return "\n".join(haystacks.insert(lines, at, planted))


def _in_essay(sentences: list[str], planted: tuple[str, ...], where: Context) -> str:
    """Needle i goes before the sentence at the i-th smallest of as many distinct depths."""
    depths = np.sort(where.draws.sample("positions").choice(DEPTHS, len(planted), replace=False))
    return " ".join(haystacks.insert(sentences, len(sentences) * depths // 100, planted))
