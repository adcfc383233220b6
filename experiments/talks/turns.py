"""A batch of conversations on one buffer that lives over all their turns.

    multi_turn     piece after piece goes into the session; an asked turn is answered by a fork of it, which is dropped
                   when the golden reply follows, or by the session itself when its own answers make the history
    multi_request  the context (and what is told) goes in once; every question is asked of a fork of that same state

The buffer holds at most the budget after every piece, and at most `chunk` tokens more while one is read; while an
answer is written at most `evict_every` tokens more (nexus/generate.py). A fork copies the buffer: nothing a question
leaves behind is seen by the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from nexus.generate import Session, Settings
from nexus.methods import Method
from nexus.models.load import Model
from nexus.tasks.dialogue.schema import Turn
from nexus.tasks.dialogue.script import MULTI_REQUEST, OWN, Script

Watch = Callable[[Session, str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """The answers of a batch to one asked turn; lists by row."""

    turn: int  # place among all turns
    tokens: list[list[int]]  # without end tokens
    cut: list[bool]  # stopped by the limit
    limit: int
    seen: list[int]  # tokens fed when the answer began
    distance: list[int | None]  # tokens from the end of the evidence to the piece with the question
    held: list[float]  # entries held when the answer began, mean over layers and kv heads
    held_after: list[float]  # ... and when it had ended
    log_prob: list[float | None]  # of the golden reply in the answer's place, mean over its tokens (nats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Talk:
    """What a batch of conversations gave, in the order it was asked, and what it cost."""

    replies: list[Reply]
    kv_bytes_allocated: int  # per row, table and tail
    peak_bytes: int
    prefill_seconds: float
    decode_seconds: float
    compile_seconds: float
    prefill_tokens: int
    decode_tokens: int


def converse(
    model: Model, method: Method, settings: Settings, scripts: Sequence[Script], limits: Callable[[Turn], int],
    rng: jax.Array | None = None, capacity: int | None = None, order: Sequence[int] | None = None,
    watch: Watch = lambda session, event: None,
) -> Talk:  # fmt: skip
    """Holds a batch of conversations of one shape: the same turns are asked, with the same limits.

    Args:
        limits: tokens the answer to a turn may take.
        capacity: tokens of the full cache (or the full prefill of oneshot); by default what these scripts need.
        order: of the questions in multi_request, as places among all turns; by default as they stand.
        watch: called after every piece and every answer.

    Raises:
        ValueError: conversations of different shapes, or an order that is none.
    """
    if len({shape(script, limits) for script in scripts}) != 1:
        raise ValueError("the conversations of a batch must ask the same turns with the same limits")
    needs = max(script.needs(limits) for script in scripts)
    session = Session(model, method, settings, len(scripts), capacity=capacity or needs, rng=rng)
    talk = _Talking(session=session, scripts=scripts, limits=limits, watch=watch)
    first = scripts[0].conversation.asked[0]
    for piece in range(first + 1):
        talk.feed(session, piece)
    if settings.protocol == "oneshot" and not method.full:
        session.compress()
        watch(session, "cut")
    if scripts[0].mode == MULTI_REQUEST:
        asked = scripts[0].conversation.asked
        if sorted(asked if order is None else order) != sorted(asked):
            raise ValueError(f"order is {order}; expected the asked turns {list(asked)} in any order")
        for turn in asked if order is None else order:
            talk.ask(session.fork(), turn, feed=True)
    else:
        for turn, said in enumerate(scripts[0].conversation.turns):
            if turn >= first:
                talk.feed(session, turn + 1)
            if said.asked:
                talk.ask(session if scripts[0].history == OWN else session.fork(), turn, feed=False)
    return talk.done()


def shape(script: Script, limits: Callable[[Turn], int]) -> tuple[object, ...]:
    """What conversations must have in common to share a batch."""
    turns = script.conversation.turns
    return script.mode, script.history, tuple(limits(turn) if turn.asked else 0 for turn in turns)


@dataclasses.dataclass(kw_only=True)
class _Talking:
    """The state of a conversation on the host: where pieces began, what was answered, what it cost."""

    session: Session
    scripts: Sequence[Script]
    limits: Callable[[Turn], int]
    watch: Watch
    starts: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)  # piece -> [B] tokens before it
    replies: list[Reply] = dataclasses.field(default_factory=list)
    fed: int = 0

    def feed(self, session: Session, piece: int) -> None:
        ids = [script.pieces[piece] for script in self.scripts]
        self.starts[piece] = session.lengths.copy()
        if any(ids):  # the piece before the first user's text may be empty
            session.feed(ids)
        self.fed += sum(map(len, ids))
        self.watch(session, f"piece {piece}")

    def ask(self, session: Session, turn: int, *, feed: bool) -> None:
        """Answers a turn on a session, feeding its piece first where it is not there yet."""
        if feed:
            self.feed(session, turn + 1)
        limit = self.limits(self.scripts[0].conversation.turns[turn])
        seen, held = session.lengths.copy(), session.counts().mean(axis=(1, 2))
        log_prob = self._judge(session, turn)
        tokens = session.generate(limit)
        self.watch(session, f"answer {turn}")
        self.replies.append(
            Reply(
                turn=turn, tokens=tokens, cut=[len(row) >= limit for row in tokens], limit=limit, seen=seen.tolist(),
                distance=[self._distance(row, turn) for row in range(len(self.scripts))], held=held.tolist(),
                held_after=session.counts().mean(axis=(1, 2)).tolist(), log_prob=log_prob,
            )
        )  # fmt: skip
        main = self.session
        main.prefill_s, main.decode_s, main.compile_s = session.prefill_s, session.decode_s, session.compile_s
        main.peak_bytes = session.peak_bytes

    def _judge(self, session: Session, turn: int) -> list[float | None]:
        """How likely the golden replies are to follow, on a fork; None where that is not wanted."""
        ids = [script.judged[turn] for script in self.scripts]
        if not any(ids):
            return [None] * len(ids)
        return [float(row.mean()) if len(row) else None for row in session.fork().score(ids)]

    def _distance(self, row: int, turn: int) -> int | None:
        found = self.scripts[row].evidence[turn]
        if found is None:
            return None
        piece, offset = found
        return int(self.starts[turn + 1][row] - self.starts[piece][row] - offset)

    def done(self) -> Talk:
        session = self.session
        return Talk(
            replies=self.replies, kv_bytes_allocated=session.buffer.kv_bytes_allocated() // session.batch,
            peak_bytes=session.peak_bytes, prefill_seconds=session.prefill_s, decode_seconds=session.decode_s,
            compile_seconds=session.compile_s, prefill_tokens=self.fed,
            decode_tokens=sum(len(row) for reply in self.replies for row in reply.tokens),
        )  # fmt: skip
