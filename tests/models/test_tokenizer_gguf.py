"""Tokenizers of GGUF metadata: pre-tokenizers, the BOS rule, and sentencepiece vocabularies against a slow oracle."""

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from nexus.models import tokenizer_gguf
from tests.models.dense import ODD_TEXT


def gguf_metadata(pre="gpt-2", **changes):
    """Byte-level BPE over all bytes with merges that reach across digits and blanks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["1 2", "12 3", "123 4", "l l", "\u0120 a", "\u010a \u010a"]
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), "<|begin|>", "<|im_end|>"]
    value = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "eos_token_id": len(tokens) - 1}
    value |= {"token_type": [1] * (len(tokens) - 2) + [3, 3], "bos_token_id": len(tokens) - 2}
    return {f"tokenizer.ggml.{key}": item for key, item in (value | changes).items() if item is not None}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("gpt-2", ["1234"]),
        ("default", ["1234"]),
    ],
)
def test_pre_tokenizers_split_numbers_their_own_way(pre, pieces):
    tokenizer = tokenizer_gguf.from_metadata(gguf_metadata(pre), "test")
    assert [tokenizer.decode([id]) for id in tokenizer.encode("1234")] == pieces
    assert tokenizer.decode(tokenizer.encode(ODD_TEXT)) == ODD_TEXT


def test_gguf_bos_rule():
    """Llama 3 files that do not say begin with a BOS, other byte-level files do not; the file's own word wins."""
    bos = gguf_metadata()["tokenizer.ggml.bos_token_id"]
    assert tokenizer_gguf.from_metadata(gguf_metadata("gpt-2"), "test").bos_id is None
    assert tokenizer_gguf.from_metadata(gguf_metadata("llama-bpe"), "test").bos_id == bos
    assert tokenizer_gguf.from_metadata(gguf_metadata("llama-bpe", add_bos_token=False), "test").bos_id is None
    assert tokenizer_gguf.from_metadata(gguf_metadata("qwen2", add_bos_token=True), "test").bos_id == bos


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(model="bert"), "test: GGUF tokenizer 'bert' is not supported; allowed: gpt2, llama"),
        (dict(model=None), "GGUF tokenizer None is not supported"),
        (dict(merges=None), "no 'tokenizer.ggml.merges'"),
        (dict(model="llama"), "no 'tokenizer.ggml.scores'"),
    ],
)
def test_unknown_gguf_tokenizers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        tokenizer_gguf.from_metadata(gguf_metadata(**changes), "test")


PIECES = {
    "\u2581the": -1.0,
    "\u2581a": -2.0,
    "th": -3.0,
    "the": -2.5,
    "he": -2.7,
    "er": -4.0,
    "\u2581t": -3.5,
    "in": -5.0,
}


def sentencepiece_metadata(**changes):
    chars = "\u2581abcdefghinrst"
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *chars, *PIECES]
    scores = [0.0] * 259 + [-10.0 - n for n in range(len(chars))] + list(PIECES.values())
    types = [2, 3, 3] + [6] * 256 + [1] * (len(chars) + len(PIECES))
    value = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types, "bos_token_id": 1}
    return {f"tokenizer.ggml.{key}": item for key, item in (value | {"eos_token_id": 2} | changes).items()}


def greedy(text, scores):
    """Sentencepiece BPE as it is defined: join the neighbours with the best scored piece, leftmost first."""
    symbols = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        pairs = [(scores.get(a + b, -np.inf), -n) for n, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))]
        best, place = max(pairs, default=(-np.inf, 0))
        if best == -np.inf:
            return symbols
        symbols[-place : 2 - place] = [symbols[-place] + symbols[1 - place]]


@pytest.mark.parametrize("text", ["the", "the other a", "in there he has a tin ether", "a" * 9, "ththe hthe"])
def test_sentencepiece_vocabulary_joins_by_score(text):
    tokenizer = tokenizer_gguf.from_metadata(sentencepiece_metadata(), "test")
    known = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    expected = []
    for piece in greedy(text, PIECES):
        expected += [known.index(piece)] if piece in known else [3 + byte for byte in piece.encode()]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_has_bos_and_bytes_and_no_blank_after_the_cut():
    tokenizer = tokenizer_gguf.from_metadata(sentencepiece_metadata(), "test")
    context, question = tokenizer.prompt("the hat\n", "the end", "")
    assert context[0] == tokenizer.bos_id == 1
    assert tokenizer.decode(tokenizer.encode("caf\u00e9\n")) == "caf\u00e9\n"
    assert tokenizer.encode("<s>the \u4f60</s>")[0] == 1
    assert context + question == [1, *tokenizer.encode("the hat\nthe end")]
