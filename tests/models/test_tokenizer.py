"""Tokenizers of directories, of GGUF metadata and in code: exactly one BOS, the cut prompt, end tokens, round trips."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from nexus import fetch
from nexus.models import tokenizer_gguf, tokenizer_hf
from nexus.models.load_gguf import GGUFFile
from nexus.models.tokenizer import Tokenizer, byte_tokenizer
from tests.models import dense

WITH_BOS = {"llama2": "<s>", "llama31": "<|begin_of_text|>", "mistral": "<s>"}
EMBEDDED = "embedded"
EVERY = (*dense.NAMES, "byte", "byte-bos", EMBEDDED)
ODD_TEXT = "Line one.\n\n\tTabs  and  blanks \u2014 caf\u00e9 \u4f60\u597d \U0001f600 12345 don't\r\nend"


@pytest.fixture(scope="module")
def load():
    embedded = GGUFFile(fetch.fetch(fetch.SMOLLM2))
    made = {EMBEDDED: tokenizer_gguf.from_metadata(embedded.metadata, EMBEDDED)}
    made |= {"byte": byte_tokenizer(), "byte-bos": byte_tokenizer(bos=True)}
    made |= {name: tokenizer_hf.from_directory(dense.directory(name)) for name in dense.NAMES}
    return made.__getitem__


@pytest.mark.parametrize("name", EVERY)
def test_exactly_one_bos_or_none(load, name):
    """Double or missing BOS around chat templates (huggingface/open-r1#462, abetlen/llama-cpp-python#1537)."""
    tokenizer = load(name)
    context, question = tokenizer.prompt("The grass is green.", "What is green?", "It is")
    if name in WITH_BOS or name == "byte-bos":
        expected = tokenizer.encode(WITH_BOS.get(name, "<s>"))
        assert [tokenizer.bos_id] == expected
        assert context[0] == tokenizer.bos_id
        assert (context + question).count(tokenizer.bos_id) == 1
    else:
        assert tokenizer.bos_id is None
        assert context == tokenizer.encode(tokenizer.decode(context, skip_special=False))


def test_a_bos_name_without_a_rule_that_adds_it_adds_none(load):
    """SmolLM2 names <|im_start|> as its BOS, adds none, and its template begins with that very token."""
    tokenizer = load("smollm2")
    start = tokenizer.encode("<|im_start|>")[0]
    context, question = tokenizer.prompt("a", "b", "")
    assert context[:2] != [start, start]
    assert (context + question).count(start) == 3  # system, user, assistant


@pytest.mark.parametrize("name", EVERY)
def test_halves_join_to_the_whole_prompt(load, name):
    """Nothing is lost or doubled at the cut, and the needle stands verbatim (Zefan-Cai/KVCache-Factory#62)."""
    tokenizer = load(name)
    needle = "The magic number for red-fox is 9312847."
    context, question = tokenizer.prompt(f"Some text. {needle} More text.\n", "What is the magic number?", " It is")
    text = tokenizer.decode(context, skip_special=False) + tokenizer.decode(question, skip_special=False)
    assert needle in tokenizer.decode(context)
    assert "What is the magic number?" in tokenizer.decode(question)
    assert "cut" not in text
    assert text.rstrip().endswith("It is")
    assert tokenizer.decode(question).startswith("What")


@pytest.mark.parametrize("name", EVERY)
def test_context_ids_do_not_depend_on_the_question(load, name):
    """One cache serves many questions."""
    tokenizer = load(name)
    first, _ = tokenizer.prompt("Some text.\n", "What is it?", "")
    second, _ = tokenizer.prompt("Some text.\n", "\nWho? ", "He")
    assert first == second


@pytest.mark.parametrize("name", ["llama2", "byte", "qwen2", "llama31"])
def test_ids_equal_those_of_the_whole_text(load, name):
    """Cut at a line end, the two halves have the ids of the prompt encoded in one piece."""
    tokenizer = load(name)
    context, question = tokenizer.prompt("Some text.\n", "the name?", "")
    whole = tokenizer.chat([{"role": "user", "content": "Some text.\nthe name?"}])
    assert context + question == tokenizer.with_bos(tokenizer.encode(whole))


def test_order_of_a_chat_prompt(load):
    context, question = load("byte").prompt("CONTEXT", "QUESTION", "PREFIX", system="SYSTEM")
    decode = load("byte").decode
    assert decode(context, False) == "<|im_start|>system\nSYSTEM<|im_end|>\n<|im_start|>user\nCONTEXT"
    assert decode(question, False) == "QUESTION<|im_end|>\n<|im_start|>assistant\nPREFIX"


def test_order_of_a_prompt_without_template(load):
    tokenizer = load("mistral")
    context, question = tokenizer.prompt("CONTEXT ", "QUESTION ", "PREFIX")
    assert tokenizer.decode(context, False) == "<s>CONTEXT "
    assert tokenizer.decode(question, False) == "QUESTION PREFIX"
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="takes no system text"):
        tokenizer.prompt("a", "b", "", system="c")


def test_thinking_is_off(load):
    text = load("qwen3").chat([{"role": "user", "content": "x"}])
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_template_refusals_carry_their_words(load):
    with pytest.raises(ValueError, match="no system role"):
        load("llama2").prompt("a", "b", "", system="c")


def test_texts_that_cannot_be_cut_are_refused(load):
    with pytest.raises(ValueError, match="contains the marker"):
        load("byte").prompt("a\u241fcut\u241fb", "c", "")
    twice = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}"
    backend = tokenizers.Tokenizer.from_file(str(dense.directory("qwen2") / "tokenizer.json"))
    with pytest.raises(ValueError, match="prints the user's text 2 times"):
        Tokenizer(backend, bos_id=None, eos_ids=(), template=twice).prompt("a", "b", "")


@pytest.mark.parametrize("name", EVERY)
def test_fixed_tokens_count_the_wrapping(load, name):
    tokenizer = load(name)
    context, question = tokenizer.prompt("x", "y", "")
    assert 0 <= len(context) + len(question) - tokenizer.fixed_tokens() <= 4


@pytest.mark.parametrize("name", EVERY)
def test_decode_of_encode_is_the_text(load, name):
    tokenizer = load(name)
    assert tokenizer.decode(tokenizer.encode(ODD_TEXT)) == ODD_TEXT
    assert tokenizer.decode(np.asarray(tokenizer.encode(ODD_TEXT), np.int32)) == ODD_TEXT
    assert max(tokenizer.encode(ODD_TEXT)) < tokenizer.vocab_size


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("llama2", ["</s>"]),
        ("llama31", ["<|end_of_text|>", "<|eot_id|>"]),
        ("mistral", ["</s>"]),
        ("qwen3", ["<|im_end|>"]),
        ("byte", ["<|im_end|>"]),
        (EMBEDDED, ["<|im_end|>"]),
    ],
)
def test_all_end_tokens_are_known(load, name, ends):
    """Models that stop at one of several end tokens ran on with one (Zefan-Cai/KVCache-Factory#46)."""
    tokenizer = load(name)
    assert tokenizer.eos_ids == tuple(sorted(tokenizer.encode(end)[0] for end in ends))
    assert "".join(ends) not in tokenizer.decode(list(tokenizer.eos_ids))


def test_fingerprint_follows_vocabulary_and_template(load):
    assert load("smollm2").fingerprint == load("qwen2").fingerprint  # they name other specials, and differ in nothing
    assert len({load(name).fingerprint for name in EVERY}) == len(EVERY) - 1


def test_embedded_tokenizer_splits_digits_and_has_its_system_text(load):
    tokenizer = load(EMBEDDED)
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.decode([id]) for id in tokenizer.encode("number 4812")] == ["number", " ", "4", "8", "1", "2"]
    context, _ = tokenizer.prompt("x", "y", "")
    assert "named SmolLM" in tokenizer.decode(context)


def test_directory_settings_decide_about_bos_and_template(tmp_path):
    """`add_bos_token: false` wins over a post-processor that adds one; a list of templates needs a default."""
    source = dense.directory("llama31")
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    settings = {"bos_token": "<|begin_of_text|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizer_hf.from_directory(tmp_path).bos_id is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin_of_text|>"}))
    assert tokenizer_hf.from_directory(tmp_path).bos_id == tokenizer_hf.from_directory(source).bos_id
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "rag", "template": ""}]}))
    with pytest.raises(ValueError, match="chat templates rag, but none is named 'default'"):
        tokenizer_hf.from_directory(tmp_path)


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    """A tokenizer.json saved after training may cut every text at 512 tokens."""
    backend = tokenizers.Tokenizer.from_file(str(dense.directory("qwen2") / "tokenizer.json"))
    backend.enable_truncation(8)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_hf.from_directory(tmp_path)
    assert len(tokenizer.encode("x" * 50)) == 50
    assert len(tokenizer.encode("x")) == 1


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


def test_byte_tokenizer_ids_are_bytes():
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("caf\u00e9") == list("caf\u00e9".encode())
    assert tokenizer.vocab_size == 259
    reference = tokenizers.Tokenizer(models.BPE())
    reference.decoder = decoders.ByteLevel()
    assert tokenizer.decode(list(range(32, 127))) == bytes(range(32, 127)).decode()
