"""From conversation to pieces: they join to the template's text, and places in them are counted right."""

from __future__ import annotations

import pytest

from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks.dialogue import script
from nexus.tasks.dialogue.schema import Conversation, Turn
from nexus.tasks.dialogue.script import GOLDEN, MULTI_REQUEST, MULTI_TURN, OWN


def talk(context: str = "", told: tuple[str, ...] = ("red is 17", "blue is 25"), extra: str = "") -> Conversation:
    turns = [Turn(user=text, reply=f"ok {i}", asked=False) for i, text in enumerate(told)]
    for text in ("blue", "red"):
        number = "25" if text == "blue" else "17"
        turns.append(
            Turn(
                user=f"{text}?", reply=f" {number}", answer_prefix="It is", references=(number,), metric="contains",
                max_new_tokens=3 if text == "blue" else 40, evidence=f"{text} is {number}",
            )
        )  # fmt: skip
    return Conversation(
        task="t", index=0, context=context, turns=tuple(turns), length=999, variant="v", template_hash="h"
    )


def text_of(ids) -> str:
    return byte_tokenizer().decode(list(ids), skip_special=False)


def whole(turns, golden: bool = True) -> str:
    """The template's text of a conversation up to the last header and prefix."""
    parts = [f"<|im_start|>user\n{t.user}<|im_end|>\n<|im_start|>assistant\n{t.answer_prefix}" for t in turns]
    closed = [
        part + (t.reply if golden or not t.asked else "") + "<|im_end|>\n" for part, t in zip(parts, turns, strict=True)
    ]
    return "".join(closed[:-1]) + parts[-1]


def test_pieces_join_to_the_template(bytes_tokenizer):
    """A turn that was closed twice, or a reply that was lost, makes another conversation."""
    one = talk()
    joined = "".join(map(text_of, script.render(one, bytes_tokenizer).pieces))
    assert joined == whole(one.turns)
    own = script.render(one, bytes_tokenizer, MULTI_TURN, OWN)
    assert "".join(map(text_of, own.pieces)) == whole(one.turns, golden=False)


def test_every_request_follows_the_stem(bytes_tokenizer):
    """With something told first, and with a context alone."""
    one = talk()
    made = script.render(one, bytes_tokenizer, MULTI_REQUEST)
    stem = "".join(map(text_of, made.pieces[:3]))
    for turn in (2, 3):
        assert stem + text_of(made.pieces[turn + 1]) == whole([*one.turns[:2], one.turns[turn]])
    one = talk(context="red is 17, blue is 25. ", told=())
    made = script.render(one, bytes_tokenizer, MULTI_REQUEST)
    for turn in (0, 1):
        asked = f"{one.context}{one.turns[turn].user}<|im_end|>"
        assert asked in text_of(made.pieces[0]) + text_of(made.pieces[turn + 1])


def test_evidence_is_found_where_it_ends(bytes_tokenizer):
    """A byte is a token here, so that places can be read off."""
    made = script.render(talk(), bytes_tokenizer)
    assert made.evidence[:2] == (None, None)
    for turn, piece, wanted in ((2, 2, "blue is 25"), (3, 1, "red is 17")):
        found, end = made.evidence[turn]
        assert found == piece and text_of(made.pieces[piece][:end]).endswith(wanted)
    lost = talk(told=("red is 17", "blue is 99"))
    with pytest.raises(ValueError, match="not found verbatim before the question: 'blue is 25'"):
        script.render(lost, bytes_tokenizer)


def test_needs_is_the_most_that_a_full_cache_holds(bytes_tokenizer):
    """Golden: an answer is dropped again. Own: all answers stay. A full cache of `needs` must not overflow."""
    sizes = {}
    for mode, history in ((MULTI_TURN, GOLDEN), (MULTI_TURN, OWN), (MULTI_REQUEST, GOLDEN)):
        made = script.render(talk(), bytes_tokenizer, mode, history)
        total = [len(p) for p in made.pieces]
        sizes[mode, history] = made.needs(), total
    golden, total = sizes[MULTI_TURN, GOLDEN]
    assert golden == sum(total) + 40
    own, total = sizes[MULTI_TURN, OWN]
    assert own == sum(total) + 3 + 40
    request, total = sizes[MULTI_REQUEST, GOLDEN]
    assert request == sum(total[:3]) + total[4] + 40
    assert script.render(talk(), bytes_tokenizer).needs(lambda turn: 1) == golden - 39


def test_wrong_modes_are_refused(bytes_tokenizer):
    with pytest.raises(ValueError, match="mode 'turns'; allowed: multi_turn, multi_request"):
        script.render(talk(), bytes_tokenizer, "turns")
    with pytest.raises(ValueError, match="history 'gold'; allowed: golden, own"):
        script.render(talk(), bytes_tokenizer, MULTI_TURN, "gold")
    one = talk()
    mixed = Conversation(**{**one.__dict__, "turns": (one.turns[2], *one.turns[:2], one.turns[3])})
    with pytest.raises(ValueError, match="multi_request needs all that is told before the first question"):
        script.render(mixed, bytes_tokenizer, MULTI_REQUEST, locate=False)


def test_a_long_context_is_cut_in_its_middle_and_it_is_said_how_much(bytes_tokenizer):
    """Truncation once dropped chat markers with the special tokens (NVIDIA/TensorRT-LLM#8086)."""
    one = talk(context="red is 17, blue is 25. " + "z" * 300 + "END", told=())
    room = script.render(one, bytes_tokenizer).needs()
    short = script.shorten(one, bytes_tokenizer, room - 100)
    assert script.render(short, bytes_tokenizer).needs() == room - 100
    assert short.context.startswith("red is 17, blue") and short.context.endswith("END")
    assert short.cut_share == pytest.approx(100 / len(one.context))
    assert script.shorten(one, bytes_tokenizer, room) == one
    with pytest.raises(ValueError, match="needs .* tokens, the length is 60, and its context has only"):
        script.shorten(one, bytes_tokenizer, 60)
