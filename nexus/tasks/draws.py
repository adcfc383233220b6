"""Random generators that depend on nothing but (seed, task, length, index) and what they are used for.

RULER draws from one global generator, so that one extra draw changes all later samples (NVIDIA/RULER). Here each
purpose within a sample has its own Philox stream: a sample is the same alone or in a set, in any order of tasks, and
however often its text was rebuilt while it was fitted to its length.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """The source of all randomness of one sample."""

    seed: int
    task: str
    length: int
    index: int

    def sample(self, purpose: str) -> np.random.Generator:
        """A fresh generator of this sample for one purpose: asking twice gives the same numbers twice."""
        return _generator(self.seed, self.task, self.length, self.index, purpose)

    def run(self, purpose: str) -> np.random.Generator:
        """A fresh generator shared by all samples of a run."""
        return _generator(self.seed, purpose)


def distinct(make: Callable[[], str], count: int, taken: Collection[str] = ()) -> list[str]:
    """`count` results of `make`, all different from each other and from `taken`, in the order drawn."""
    seen = set(taken)
    out: list[str] = []
    while len(out) < count:
        new = make()
        if new not in seen:
            seen.add(new)
            out.append(new)
    return out


def one(rng: np.random.Generator, items: Sequence[str]) -> str:
    """One of the items, each as likely."""
    return items[int(rng.integers(len(items)))]


def _generator(*names: object) -> np.random.Generator:
    # Hashing the names keeps (1, 23) and (12, 3) apart and admits any seed, negative ones too.
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(digest, "little"))))
