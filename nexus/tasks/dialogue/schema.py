"""The one record every dialogue task yields: a context and turns, some only told, some asked.

A turn that is told brings text into the cache and has a given reply; a turn that is asked is answered and, where there
is a rule for it, scored. `reply` is the golden answer: what stands in the history of later turns instead of the
model's own words (microsoft/MInference calls it golden context).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping

METRICS = ("contains", "any", "all", "choice", "number", "digits", "proxy", "agreement", "none")  # rules of scoring.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What the user says, and what is known about the answer.

    `reply` goes on where `answer_prefix` (which follows the assistant's header) ends. `evidence` stands verbatim in the
    context or in an earlier user's text: the oldest place the answer needs; "" where it needs many or none is known.
    """

    user: str
    reply: str
    asked: bool = True
    answer_prefix: str = ""
    references: tuple[str, ...] = ()
    metric: str = "none"
    max_new_tokens: int = 0
    evidence: str = ""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r}; allowed: {', '.join(METRICS)}")
        if self.asked and self.max_new_tokens < 1:
            raise ValueError(f"an asked turn needs max_new_tokens of at least 1, got {self.max_new_tokens}")
        scored = self.asked and self.metric not in ("none", "agreement")
        if scored and (not self.references or not all(self.references)):
            raise ValueError(f"references {self.references!r}: a scored turn needs at least one, and none empty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversation:
    """One sample. `length` is the L asked for, in tokens: the whole conversation, wrapping and answers included.

    `source_id` and `kind` name the sample and its sort in files made elsewhere; `cut_share` is the share of the
    context's tokens that had to be cut out of its middle to fit.
    """

    task: str
    index: int
    context: str
    turns: tuple[Turn, ...]
    length: int
    variant: str
    template_hash: str
    source_id: str = ""
    kind: str = ""
    cut_share: float = 0.0

    def __post_init__(self) -> None:
        if not any(turn.asked for turn in self.turns):
            raise ValueError(f"{self.task}[{self.index}]: no turn is asked")

    @property
    def sample_id(self) -> str:
        """Names the sample within its task, length and seed."""
        return self.source_id or f"{self.task}-{self.length}-{self.index}"

    @property
    def asked(self) -> tuple[int, ...]:
        """Places of the asked turns among all turns."""
        return tuple(i for i, turn in enumerate(self.turns) if turn.asked)

    @property
    def told_first(self) -> bool:
        """Nothing is told after the first question: all questions can be asked of one cached state."""
        return all(turn.asked for turn in self.turns[self.asked[0] :])


def wording_hash(wording: Mapping[str, object]) -> str:
    """sha256 of all fixed text of a task, as it stands in every result row."""
    return hashlib.sha256(json.dumps(dict(wording), sort_keys=True).encode()).hexdigest()
