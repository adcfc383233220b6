"""The one record every task yields: a context, a question, an answer prefix and the accepted answers.

The parts are built separately and never cut out of finished text, so that a context can be evicted before its
question is known (`question_mode="query_agnostic"`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable

METRICS = (  # the rules of nexus.metrics
    "all", "part", "babi", "key_phrases",
    "f1", "rouge_l", "classification", "classification_upstream", "count", "retrieval", "edit",
)  # fmt: skip
ALL_COUNT = ("all", "key_phrases")  # of these, every reference is asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One sample of a task.

    `length` is the length L asked for, in tokens of the model under test: prompt with chat wrapping and answer prefix,
    plus `max_new_tokens`. `prompt_tokens` is what the prompt really takes (0 where it was not counted, as in files made
    elsewhere). `metric` is a rule of `nexus.metrics`, `choices` the answers among which it decides
    (empty where it needs none).

    `chat=False`: the model's chat template is not put around the prompt. `first_line`: only the first line of the
    answer that is not empty is scored. `cut_tokens`: how many tokens were left out of the middle of a text that is
    longer than L allows.
    """

    task: str
    index: int
    context: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int
    metric: str
    length: int
    variant: str
    template_hash: str
    prompt_tokens: int = 0
    choices: tuple[str, ...] = ()
    chat: bool = True
    first_line: bool = False
    cut_tokens: int = 0

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"{self.task}[{self.index}]: metric {self.metric!r}; allowed: {', '.join(METRICS)}")
        if not self.references or not all(self.references):
            raise ValueError(
                f"{self.task}[{self.index}]: references {self.references!r}; every example needs at least one, "
                "and an empty one would be found in any prediction"
            )

    @property
    def sample_id(self) -> str:
        """Names the sample within its task, length and seed."""
        return f"{self.task}-{self.length}-{self.index}"

    @property
    def golden(self) -> str:
        """The answer as it would follow the answer prefix: every reference where all count, else the first."""
        text = ", ".join(self.references if self.metric in ALL_COUNT else self.references[:1])
        return f" {text}" if self.answer_prefix and not self.answer_prefix[-1].isspace() else text

    @property
    def fill(self) -> float:
        """The share of L that is used: (prompt tokens + generation tokens) / L."""
        return (self.prompt_tokens + self.max_new_tokens) / self.length


def data_hash(examples: Iterable[Example]) -> str:
    """sha256 of all fields of the examples, in order: two runs with the same hash answered the same questions."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps(dataclasses.asdict(example), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
