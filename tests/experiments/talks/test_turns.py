"""Conversations on a tiny model with random weights: what it says means nothing, that it says the same does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.talks import turns
from nexus import methods
from nexus.generate import Session, Settings
from nexus.models.load import load_model
from nexus.tasks.dialogue import script
from nexus.tasks.dialogue.schema import Conversation, Turn

BUDGET, CHUNK, EVERY = 48, 32, 8
ROOM = 640  # tokens: more than any of these conversations; one number, so that programs are shared
SETTINGS = Settings(chunk=CHUNK, evict_every=EVERY)
LIMIT = 12
METHODS = {"snapkv": {"window": 8}, "knorm": {"allocator": "global", "min_per_head": 1}}


@pytest.fixture(scope="module")
def model():
    """Without end tokens, so that every answer has its full length."""
    model = load_model("tiny-llama", dtype="float32")
    return dataclasses.replace(model, config=dataclasses.replace(model.config, eos_ids=()))


def conversation(seed: int, context: bool) -> Conversation:
    """Two told turns of unequal length, or a context, then three questions."""
    rng = np.random.default_rng(seed)
    say = lambda n: "".join(rng.choice(list("abcdefgh "), n))  # noqa: E731
    told = [Turn(user=f"x{i} is {say(40 + 90 * i)}", reply=say(9), asked=False) for i in range(0 if context else 2)]
    asked = [
        Turn(user=f"{say(6 + 5 * i)}?", reply=f" {say(7)}", answer_prefix=say(4), references=("a",), metric="any",
             max_new_tokens=LIMIT + i, evidence="" if context else told[0].user)
        for i in range(3)
    ]  # fmt: skip
    return Conversation(
        task="t", index=seed, context=say(150) if context else "", turns=(*told, *asked), length=999, variant="v",
        template_hash="h",
    )  # fmt: skip


def scripts(model, mode=script.MULTI_TURN, history=script.GOLDEN, context=False, n=2):
    return [script.render(conversation(i, context), model.tokenizer, mode, history) for i in range(n)]


def build(name: str, budget: int = BUDGET) -> methods.Method:
    return methods.build(name, budget=budget, **(METHODS[name] if name != "full" else {}))


def converse(model, method, made, **more) -> turns.Talk:
    return turns.converse(model, method, SETTINGS, made, lambda turn: turn.max_new_tokens, capacity=ROOM, **more)


def answers(talk: turns.Talk) -> dict[int, list[list[int]]]:
    return {reply.turn: reply.tokens for reply in talk.replies}


@pytest.mark.parametrize(("name", "context"), [("snapkv", True), ("snapkv", False), ("knorm", True)])
def test_requests_do_not_depend_on_their_order(model, name, context):
    """The second question once met a cache that the first had left (cold-compress#42, SnapKV#18)."""
    made = scripts(model, script.MULTI_REQUEST, context=context)
    asked = list(made[0].conversation.asked)
    found = [
        answers(converse(model, build(name), made, order=order))
        for order in (None, asked[::-1], [asked[1], asked[2], asked[0]])
    ]
    assert found[0] == found[1] == found[2]
    assert len({str(tokens) for tokens in found[0].values()}) > 1, "different questions, different answers"


@pytest.mark.parametrize("history", script.HISTORIES)
@pytest.mark.parametrize("name", METHODS)
def test_the_buffer_holds_the_budget_at_every_step_of_every_turn(model, name, history):
    """When eviction runs, between turns or per token, was unclear (mit-han-lab/streaming-llm#48)."""
    seen: list[str] = []
    allocated: set[int] = set()

    def watch(session: Session, event: str) -> None:
        counts = session.counts()
        extra = EVERY if event.startswith("answer") else 0
        assert (counts.mean(axis=(1, 2)) <= BUDGET + extra).all(), event
        if session.method.allocator.name == "per_head":
            assert counts.max() <= BUDGET + extra, event
        assert session.layout.tail == CHUNK and session.layout.budget == BUDGET, event
        allocated.add(session.buffer.kv_bytes_allocated())
        seen.append(event)

    made = scripts(model, history=history)
    talk = converse(model, build(name), made, watch=watch)
    pieces = [f"piece {i}" for i in range(len(made[0].pieces))]
    assert [event for event in seen if event.startswith("piece")] == pieces
    assert [event for event in seen if event.startswith("answer")] == ["answer 2", "answer 3", "answer 4"]
    assert len(allocated) == 1, "the buffer never grows: a piece of any length passes through one chunk"
    assert all(max(reply.held) <= BUDGET and max(reply.held_after) <= BUDGET + EVERY for reply in talk.replies)
    assert max(talk.replies[-1].seen) > 4 * BUDGET, "there was something to evict"


@pytest.mark.parametrize(
    ("mode", "history"), [("multi_turn", "golden"), ("multi_turn", "own"), ("multi_request", "golden")]
)
def test_a_budget_for_everything_gives_the_full_cache_s_answers(model, mode, history):
    """Methods once changed answers although nothing had to go (NVIDIA/kvpress#134)."""
    made = scripts(model, mode, history)
    assert max(one.needs() for one in made) <= ROOM
    full = converse(model, build("full"), made)
    held = converse(model, build("snapkv", ROOM), made)
    assert answers(full) == answers(held)
    assert all(reply.held == [float(n) for n in reply.seen] for reply in held.replies)


def test_golden_history_is_the_conversation_fed_in_one_piece(model):
    """What a fork answered must leave nothing behind, and the golden reply must stand where it was."""
    made = scripts(model)
    talk = converse(model, build("full"), made)
    last = talk.replies[-1]
    whole = Session(model, build("full"), SETTINGS, len(made), capacity=ROOM)
    whole.feed([[token for piece in one.pieces for token in piece] for one in made])
    assert whole.generate(last.limit) == last.tokens
    assert last.seen == [sum(map(len, one.pieces)) for one in made]


def test_own_history_holds_what_the_model_said(model):
    """SCBench with golden history and with own answers are different numbers."""
    golden, own = (converse(model, build("full"), scripts(model, history=h)) for h in script.HISTORIES)
    assert golden.replies[0].tokens == own.replies[0].tokens
    made = scripts(model, history=script.OWN)
    first, second = own.replies[:2]
    expected = [
        a + len(said) + len(one.pieces[second.turn + 1])
        for a, said, one in zip(first.seen, first.tokens, made, strict=True)
    ]
    assert second.seen == expected != golden.replies[1].seen


def test_distance_is_counted_from_the_evidence_to_the_question(model):
    made = scripts(model)
    talk = converse(model, build("snapkv"), made)
    for reply in talk.replies:
        for row, one in enumerate(made):
            piece, end = one.evidence[reply.turn]
            between = len(one.pieces[piece]) - end + sum(map(len, one.pieces[piece + 1 : reply.turn + 1]))
            assert reply.distance[row] == between
    request = converse(model, build("snapkv"), scripts(model, script.MULTI_REQUEST))
    assert len({reply.distance[0] for reply in request.replies}) == 1, "all questions follow the same stem"


def test_oneshot_reads_all_that_is_told_before_it_cuts_once(model):
    """The first question already meets the budget, and later turns stay in it."""
    cuts: list[np.ndarray] = []

    def watch(session: Session, event: str) -> None:
        if event == "cut":
            cuts.append(session.counts())
        elif cuts:
            assert (session.counts().mean(axis=(1, 2)) <= BUDGET + EVERY).all()

    settings = dataclasses.replace(SETTINGS, protocol="oneshot")
    made = scripts(model, context=True)
    turns.converse(model, build("snapkv"), settings, made, lambda t: t.max_new_tokens, capacity=ROOM, watch=watch)
    assert len(cuts) == 1 and (cuts[0] == BUDGET).all()


def test_unlike_conversations_and_wrong_orders_are_refused(model):
    made = scripts(model, script.MULTI_REQUEST)
    with pytest.raises(ValueError, match="must ask the same turns with the same limits"):
        converse(model, build("full"), [*made, *scripts(model, script.MULTI_REQUEST, context=True)])
    with pytest.raises(ValueError, match=r"order is \[2, 2, 3\]; expected the asked turns \[2, 3, 4\]"):
        converse(model, build("snapkv"), made, order=[2, 2, 3])


def test_the_reference_is_judged_in_the_answer_s_place(model):
    """Its likelihood is that of the template's text, and judging it leaves nothing behind."""
    plain = scripts(model)
    judged = [
        dataclasses.replace(one, judged=tuple(tuple(model.tokenizer.encode(t.reply)) if t.asked else () for t in
                            one.conversation.turns))
        for one in plain
    ]  # fmt: skip
    talk, without = converse(model, build("full"), judged), converse(model, build("full"), plain)
    assert answers(talk) == answers(without) and without.replies[0].log_prob == [None, None]
    last = talk.replies[-1]
    whole = Session(model, build("full"), SETTINGS, len(plain), capacity=ROOM)
    whole.feed([[token for piece in one.pieces for token in piece] for one in plain])
    expected = [row.mean() for row in whole.score([one.judged[last.turn] for one in judged])]
    np.testing.assert_allclose(last.log_prob, expected, atol=1e-4)
    assert all(value < 0 for value in expected)
