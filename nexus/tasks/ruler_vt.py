"""RULER's variable tracking: a chain of assignments hidden in noise; name all variables with one value.

Hsieh et al., arXiv 2404.06654; structure after NVIDIA/RULER, wording ours. Deviations: every sample has generators of
its own; noise grows by sentences (RULER: 5 or 10 lines); the worked example takes at most min(500, L / 4) tokens
(RULER: 500) or its floor of one noise line, which lets the task start at lower lengths.
"""

from __future__ import annotations

import string

import numpy as np

from nexus.tasks import draws, haystacks, words
from nexus.tasks.fit import Context, Parts, Plan, search

WORDING = dict(
    first="VAR {name} = {value}",
    next="VAR {name} = VAR {value}",
    head="Memorise and track the chain(s) of variable assignment hidden in the text below.\n\n",
    question="Question: Find all variables that have the value {value} in the text above.",
    answer_prefix=" Answer: According to the chain(s) of variable assignment in the text above, {count} variables have"
    " the value {value}, they are: ",
)
HOPS = 4
EXAMPLE_TOKENS = 500
FLOOR = 5 * len(haystacks.NOISE)  # sentences: five lines


def chain(names: list[str], value: str) -> tuple[str, ...]:
    """The assignments, in order: the number to the first name, then each name to the next."""
    first = WORDING["first"].format(name=names[0], value=value)
    return (first, *(WORDING["next"].format(name=n, value=p) for p, n in zip(names, names[1:], strict=False)))


def hide(lines: list[str], statements: tuple[str, ...], rng: np.random.Generator) -> str:
    """Statement i, in order, before the line at the i-th smallest of distinct positions (as far as there are lines)."""
    places = max(len(lines) + 1, len(statements))
    at = np.sort(rng.choice(places, len(statements), replace=False)).clip(max=len(lines))
    return "\n".join(haystacks.insert(lines, at, statements))


def plan(where: Context) -> Plan:
    """One sample: chain and worked example are drawn here, once; only the noise depends on n."""
    rng = where.draws.sample("chain")
    value, example_value = draws.distinct(lambda: words.number(rng, 5), 2)
    names = draws.distinct(lambda: words.letters(rng, string.ascii_uppercase, 5), HOPS + 1)
    statements = chain(names, value)
    head = _example(where, example_value) + WORDING["head"]
    return Plan(
        unit="noise sentences",
        floor=FLOOR,
        build=lambda n: Parts(
            head=head,
            body=hide(haystacks.noise_lines(n), statements, where.draws.sample("positions")),
            question=WORDING["question"].format(value=value),
            answer_prefix=WORDING["answer_prefix"].format(count=len(names), value=value),
            references=tuple(names),
            planted=statements,
        ),
    )


def _example(where: Context, value: str) -> str:
    """A solved small task with names of three letters, and the blank line after it."""
    rng = where.draws.sample("example")
    names = draws.distinct(lambda: words.letters(rng, string.ascii_uppercase, 3), HOPS + 1)

    def text(num_sentences: int) -> str:
        noise = haystacks.noise_lines(num_sentences)
        body = hide(noise, chain(names, value), where.draws.sample("example positions"))
        question = WORDING["question"].format(value=value)
        answer = WORDING["answer_prefix"].format(count=len(names), value=value) + " ".join(names)
        return f"{WORDING['head']}{body}\n{question}{answer}\n\n"

    def tokens_at(num_sentences: int) -> int:
        return len(where.tokenizer.encode(text(num_sentences)))

    limit, floor = min(EXAMPLE_TOKENS, where.length // 4), len(haystacks.NOISE)
    if tokens_at(floor) > limit:
        return text(floor)
    return text(search(tokens_at, limit, floor, None, slack=0))
