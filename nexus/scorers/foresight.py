"""Foresight: what the tokens that are still to come will ask for. A control, not a method: it is told the answer.

    score = mean over G of the mean over rows r of A[r, i]        r: the last question token and all answer tokens

A is the softmax over everything a row sees. The session is told question and answer (`Session.foresee`); before each
eviction those of them that have not come yet run behind the sequence at their true positions, and are forgotten again.
Judge Q (arXiv 2509.10798) measures its hits against this set; it is what a perfect guess of the queries is worth.

In `oneshot` the rows are those that a full cache answers with. In `streaming` a cut cannot know what the rest of the
context will add, so the rows are run on what is held by then. The last question token is counted because it asks for
the first answer token. Once the given answer is over, it is asked about again as though it came next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nexus import buffer as kv
from nexus.scorers.base import Entries, Scorer
from nexus.shapes import EMPTY, Layout
from nexus.side import Side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foresight(Scorer):
    """score = mean attention of the true question's end and the true answer."""

    longest: int = 256  # tokens of question and answer that can be told

    scale: ClassVar[str] = "mass"
    foresees: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"longest must be at least 1, got {self.longest}")

    def init_state(self, layout: Layout, batch: int) -> Any:
        shape = (1, batch, self.longest)  # one for all layers
        return {
            "token": jnp.zeros(shape, jnp.int32),
            "pos": jnp.full(shape, EMPTY, jnp.int32),
            "weight": jnp.zeros(shape, jnp.float32),
        }

    def told(self, after: Sequence[int], questions: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Any:
        """The state that knows the future of each row.

        Args:
            after: position at which each row's question begins. questions, answers: token ids per row.
        Raises:
            ValueError: an empty answer, or more tokens than `longest`.
        """
        state = jax.tree.map(np.array, self.init_state(None, len(after)))  # type: ignore[arg-type]
        for b, (first, question, answer) in enumerate(zip(after, questions, answers, strict=True)):
            tokens = [*question, *answer]
            if not answer:
                raise ValueError(f"row {b}: the answer that is told is empty")
            if len(tokens) > self.longest:
                raise ValueError(f"{len(tokens)} tokens of question and answer; the option longest is {self.longest}")
            here = slice(0, len(tokens))
            state["token"][0, b, here], state["pos"][0, b, here] = tokens, first + np.arange(len(tokens))
            asking = slice(max(len(question) - 1, 0), len(tokens))
            state["weight"][0, b, asking] = 1.0
        return jax.tree.map(jnp.asarray, state)

    def look(self, side: Side) -> tuple[kv.KVBuffer, Any]:
        buf = side.buffer
        token, pos, weight = (buf.state[name][0] for name in ("token", "pos", "weight"))
        to_come = (pos != EMPTY) & (pos >= buf.seen[:, None])
        over = ~to_come.any(axis=1, keepdims=True)
        again = jnp.where(pos != EMPTY, buf.seen[:, None] + jnp.arange(self.longest), EMPTY)
        pos = jnp.where(over, again, jnp.where(to_come, pos, EMPTY))
        weight = jnp.where(pos != EMPTY, weight, 0.0)
        weight = weight / jnp.maximum(weight.sum(axis=1, keepdims=True), 1.0)
        return buf, side.received(jnp.where(pos != EMPTY, token, 0), pos, weight)

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        got = kv.gather(entries.cand, *entries.looked).mean(axis=-1)  # [B,P,n,G]
        return jnp.where(entries.valid, got, 0.0)
