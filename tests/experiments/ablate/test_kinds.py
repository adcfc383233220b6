"""Kinds of tokens, on texts made by hand: one wrong border and a whole column of the report says something else."""

from __future__ import annotations

import re

import pytest

from experiments.ablate import kinds

CONTEXT = (
    "<|im_start|>system\nYou are a bot.<|im_end|>\n<|im_start|>user\nA magic number is hidden below. Find it.\n"
    "The snow was deep, and 12 men froze. One of the numbers for fog is: 7352. Then it thawed."
)


def split(text):
    """Special tokens, single digits, words with the blank before them, signs."""
    return re.findall(r"<\|\w+\|>|\d| ?[^\W\d_]+|\s|[^\w\s]", text)


def named(text, references=("7352",)):
    tokens = split(text)
    assert "".join(tokens) == text
    return list(zip(tokens, kinds.of_tokens(tokens, references), strict=True))


def texts(found, kind):
    return "".join(token for token, own in found if own == kind)


def test_every_kind_of_a_prompt():
    found = named(CONTEXT)
    assert texts(found, "first") == "<|im_start|>system\nYou"
    assert texts(found, "chat") == " are a bot.<|im_end|>\n<|im_start|>user\n"
    assert texts(found, "instruction") == "A magic number is hidden below. Find it.\n"
    assert texts(found, "answer") == "7352"
    assert texts(found, "needle") == " One of the numbers for fog is: ."
    assert texts(found, "digits") == "12"
    assert texts(found, "function") == "The was and Then it"
    assert texts(found, "word") == " snow deep men froze thawed"
    assert texts(found, "punctuation") == ",.."
    assert {kind for _, kind in found} <= set(kinds.KINDS) == set(kinds.TITLES)


def test_an_answer_in_every_place_and_in_whole_words_only():
    """7352 is no part of 17352; a line is a sentence too."""
    found = named("x\nlist of things\nfog 7352\nsun 17352\nend 7352!", ("7352",))
    assert texts(found, "answer") == "73527352"
    assert texts(found, "needle").replace(" ", "") == "fog\nend!"
    assert "sun" in texts(found, "word") and texts(found, "digits") == "17352"


def test_a_long_first_line_is_the_text_itself():
    """RULER's fwe and files of others have no line of their own for the instruction."""
    long = " ".join(["word"] * 80) + "\nmore"
    assert texts(named(long), "instruction") == ""
    assert texts(named("Now do this for me.\n" + long), "instruction") == " me.\n"  # the first tokens go before


def test_tokens_of_other_vocabularies():
    """Blanks inside tokens, tokens of several characters, an id that ends inside a character, and no text at all."""
    tokens = ["a", "b", "c", "d", "the\n", "\n", " \t", "", "é", ").", "x7", "_", "ing"]
    found = kinds.of_tokens(tokens, ())
    assert found[4:7] == ["instruction", "blank", "blank"]
    assert found[7:] == ["word", "word", "punctuation", "digits", "punctuation", "word"]
    assert kinds.of_tokens([], ("7352",)) == []
    assert kinds.of_tokens(["a"], ("7352",)) == ["first"]


@pytest.mark.parametrize(
    "header", ["<|start_header_id|>user<|end_header_id|>\n\n", "<s>[INST] ", "<start_of_turn>user\n"]
)
def test_headers_of_other_templates(header):
    tokens = ["<bos>", "a", "b", "c", header, "Find", " it", ".", "\n", "Snow", "."]
    found = list(zip(tokens, kinds.of_tokens(tokens, ("7352",)), strict=True))
    assert texts(found, "instruction") == "Find it.\n" and texts(found, "chat") == header
