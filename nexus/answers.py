"""Context -> cut -> question -> answer for a batch, as evaluations need it, and what it cost."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from nexus.generate import Ids, Session, Settings
from nexus.methods import Method
from nexus.models.load import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What a batch of questions gave, and what it cost."""

    tokens: list[list[int]]  # without end tokens
    cut: list[bool]  # stopped by max_new_tokens
    kept: np.ndarray  # [B,L,K] int32, entries held after the context
    context_tokens: list[int]
    kv_bytes_allocated: int  # per row, table and tail
    kv_bytes_live: float  # mean over rows, after the context
    peak_bytes: int  # of the largest program, parameters not counted
    prefill_seconds: float
    decode_seconds: float
    compile_seconds: float
    prefill_tokens: int
    decode_tokens: int
    shares: list[np.ndarray] = dataclasses.field(
        default_factory=list
    )  # [row][token] `Session.shares` after the context


def answer_batch(
    model: Model, method: Method, settings: Settings, contexts: Ids, questions: Ids, max_new_tokens: int,
    rng: jax.Array | None = None, temperature: float = 0.0, capacity: int | None = None, num_shares: int = 0,
    expected: Ids | None = None,
) -> Answers:  # fmt: skip
    """Answers one question per context. In `query_aware` evaluations `contexts` hold the question's text as well.

    Args:
        contexts, questions: token ids per row; the cut (or the stream) sees contexts only.
        capacity: tokens of the full cache; by default what this batch needs.
        num_shares: of so many rows, the share of heads that hold each token is looked at; outside the timed parts.
        expected: the answers, told to a method that is a control (`oracle`); others never see them.
    """
    needs = max(len(c) + len(q) for c, q in zip(contexts, questions, strict=True)) + max_new_tokens
    session = Session(model, method, settings, len(contexts), capacity=capacity or needs, rng=rng)
    if method.scorer.foresees and expected is not None:
        session.foresee([len(context) for context in contexts], questions, expected)
    session.feed(contexts)
    if settings.protocol == "oneshot" and not method.full:
        session.compress()
    counts, shares = session.counts(), session.shares()[:num_shares] if num_shares else []
    free = settings.tail == "free" and not method.full
    if free:
        session.free_tail(-(-max(map(len, questions)) // 32) * 32 + max_new_tokens)
    session.feed(questions)
    tokens = session.generate(max_new_tokens, temperature=temperature)
    return Answers(
        tokens=tokens,
        cut=[len(row) >= max_new_tokens for row in tokens],
        kept=counts,
        context_tokens=[len(c) for c in contexts],
        kv_bytes_allocated=session.buffer.kv_bytes_allocated() // session.batch,
        kv_bytes_live=float(counts.sum(axis=(1, 2)).mean()) * session.layout.bytes_per_row(),
        peak_bytes=session.peak_bytes,
        prefill_seconds=session.prefill_s,
        decode_seconds=session.decode_s,
        compile_seconds=session.compile_s,
        prefill_tokens=sum(map(len, contexts)) + sum(map(len, questions)),
        decode_tokens=sum(map(len, tokens)),
        shares=shares,
    )
