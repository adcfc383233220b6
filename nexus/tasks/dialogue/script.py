"""From a conversation to the token pieces a session is fed with, and where in them the evidence of a question ends.

    piece 0       BOS . user header . context                              (the cut stands before the first user's text)
    piece 1       first user's text . end of turn . assistant header . answer prefix
    piece i + 1   reply of turn i - 1 . end of turn . user header . user's text . assistant header . answer prefix

Golden history puts the golden reply into the next piece. With own answers an asked turn's reply is already in the cache
and the next piece begins at the end of turn. Pieces join to the chat template's rendering of the whole conversation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from nexus.tasks.dialogue.schema import Conversation, Turn
from nexus.tasks.fit import Tokenizer as PromptTokenizer

GOLDEN, OWN = "golden", "own"
HISTORIES = (GOLDEN, OWN)
MULTI_TURN, MULTI_REQUEST = "multi_turn", "multi_request"
MODES = (MULTI_TURN, MULTI_REQUEST)


class Tokenizer(PromptTokenizer, Protocol):
    """What a conversation needs of a model's tokenizer (`nexus.models.tokenizer.Tokenizer`)."""

    def next_turn(self, prompt: str, answer_prefix: str = "", answer: str = "") -> list[int]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """A conversation as tokens.

    `pieces` has one more entry than there are turns; in `multi_request` the pieces of asked turns all follow the same
    stem. `evidence[i]` is (piece, tokens of it up to the end of the evidence) of turn i, None where it has none.
    `judged[i]` is the golden reply where its likelihood is wanted (agreement), else empty.
    """

    conversation: Conversation
    mode: str
    history: str
    pieces: tuple[tuple[int, ...], ...]
    evidence: tuple[tuple[int, int] | None, ...]
    judged: tuple[tuple[int, ...], ...]

    def needs(self, limit: Callable[[Turn], int] = lambda turn: turn.max_new_tokens) -> int:
        """Most tokens that a cache without eviction ever holds. limit: tokens an asked turn's answer may take."""
        turns, first = self.conversation.turns, self.conversation.asked[0]
        stem = sum(map(len, self.pieces[: first + 1]))
        sizes = [len(self.pieces[i + 1]) for i in range(first, len(turns))]
        judged = [len(ids) for ids in self.judged[first:]]
        answers = [max(limit(turn) if turn.asked else 0, n) for turn, n in zip(turns[first:], judged, strict=True)]
        if self.mode == MULTI_REQUEST:
            return stem + max(a + b for a, b in zip(sizes, answers, strict=True))
        if self.history == OWN:
            return stem + sum(sizes) + sum(answers)
        held = stem
        most = held
        for size, answer in zip(sizes, answers, strict=True):
            held += size
            most = max(most, held + answer)
        return most


def render(
    conversation: Conversation, tokenizer: Tokenizer, mode: str = MULTI_TURN, history: str = GOLDEN, *,
    locate: bool = True,
) -> Script:  # fmt: skip
    """The script of a conversation.

    Args:
        locate: find the evidence; fitting, which renders often, needs none of it.

    Raises:
        ValueError: an unknown mode or history, a conversation that tells something after its first question in
            multi_request, evidence that is not verbatim in the tokens of an earlier piece.
    """
    for name, value, known in (("mode", mode, MODES), ("history", history, HISTORIES)):
        if value not in known:
            raise ValueError(f"{name} {value!r}; allowed: {', '.join(known)}")
    if mode == MULTI_REQUEST and not conversation.told_first:
        raise ValueError(f"{conversation.sample_id}: multi_request needs all that is told before the first question")
    turns, first = conversation.turns, conversation.asked[0]
    opening, after = tokenizer.prompt(conversation.context, turns[0].user, turns[0].answer_prefix)
    pieces = [tuple(opening), tuple(after)]
    for i in range(1, len(turns)):
        if mode == MULTI_REQUEST and i > first and first == 0:
            ids = tokenizer.prompt(conversation.context, turns[i].user, turns[i].answer_prefix)[1]
        else:
            before = turns[min(i, first) - 1] if mode == MULTI_REQUEST else turns[i - 1]
            said = "" if before.asked and history == OWN else before.reply
            ids = tokenizer.next_turn(turns[i].user, turns[i].answer_prefix, said)
        pieces.append(tuple(ids))
    found = [_evidence(conversation, i, pieces, tokenizer) if locate else None for i in range(len(turns))]
    judged = [tuple(tokenizer.encode(turn.reply)) if turn.metric == "agreement" else () for turn in turns]
    return Script(
        conversation=conversation, mode=mode, history=history, pieces=tuple(pieces), evidence=tuple(found),
        judged=tuple(judged),
    )  # fmt: skip


def _evidence(
    conversation: Conversation, i: int, pieces: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> tuple[int, int] | None:
    """The first place before turn i where its evidence ends."""
    wanted = conversation.turns[i].evidence
    if not wanted:
        return None
    for place, ids in enumerate(pieces[: i + 1]):
        end = _end_of(wanted, list(ids), tokenizer)
        if end is not None:
            return place, end
    raise ValueError(
        f"{conversation.sample_id}, turn {i}: the tokenizer does not give back its text; not found verbatim before the "
        f"question: {wanted!r}"
    )


def _end_of(text: str, ids: list[int], tokenizer: Tokenizer) -> int | None:
    """The fewest first ids whose text holds `text`, None if all of them do not."""

    def holds(count: int) -> bool:
        return text in tokenizer.decode(ids[:count], skip_special=False)

    if not holds(len(ids)):
        return None
    low, high = 0, len(ids)  # holds(high), not holds(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def shorten(conversation: Conversation, tokenizer: Tokenizer, limit: int) -> Conversation:
    """The conversation with as much cut out of the middle of its context that it needs at most `limit` tokens.

    Upstream leaves room for the answers of all turns (1000 tokens less in multi-request); here it is what the script
    needs. ValueError when the context has too little to cut.
    """
    ids = tokenizer.encode(conversation.context)
    kept = len(ids)
    current = conversation
    for _ in range(8):  # cutting joins two texts anew, which may take a token more
        over = render(current, tokenizer, locate=False).needs() - limit
        if over <= 0:
            return current
        kept -= over
        if kept < 2:
            break
        head, tail = tokenizer.decode(ids[: kept - kept // 2]), tokenizer.decode(ids[len(ids) - kept // 2 :])
        current = dataclasses.replace(conversation, context=head + tail, cut_share=1 - kept / len(ids))
    raise ValueError(
        f"{conversation.sample_id} needs {render(conversation, tokenizer, locate=False).needs()} tokens, the length is "
        f"{limit}, and its context has only {len(ids)} to cut from"
    )
