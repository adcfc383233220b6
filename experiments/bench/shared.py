"""What all cases of the benchmark share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import config_dict

from nexus import methods
from nexus.generate import Settings
from nexus.methods import Method
from nexus.models.load import Model
from nexus.tasks.example import Example

FULL = "full"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """The settings, both models, and the prompts."""

    cfg: config_dict.FrozenConfigDict  # the config's section bench
    model: Model
    theirs: Any  # LlamaForCausalLM, or None
    why_not: Mapping[str, str]  # package -> why it is not compared with; empty if it is
    examples: list[Example]  # of the cell; the first one gives the text of all other cases

    def method(self, name: str, **options: Any) -> Method:
        return methods.build(name, budget=self.cfg.budget, **options)

    @property
    def global_name(self) -> str:
        """The method whose heads share one budget, in tables."""
        return f"{self.cfg.unequal} global"

    def global_method(self) -> Method:
        return self.method(self.cfg.unequal, allocator="global")

    def settings(self, chunk: int | None = None, **more: Any) -> Settings:
        chunk = chunk or self.cfg.chunks[0]
        return Settings(chunk=chunk, evict_every=min(self.cfg.evict_every, chunk), **more)

    def prompts(self, batch: int, length: int) -> list[list[int]]:
        """Rows of exactly `length` tokens: text of the first example, repeated as needed, begun at different places."""
        example = self.examples[0]
        before, after = self.model.tokenizer.prompt(example.context, example.question, example.answer_prefix)
        ids = np.resize(np.asarray(before + after), length)
        return [np.roll(ids, 97 * row).tolist() for row in range(batch)]

    def missing(self, package: str, contender: str) -> dict[str, str]:
        """{contender: why it cannot run}; {} if it can."""
        return {contender: self.why_not[package]} if self.why_not[package] else {}
