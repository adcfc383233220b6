"""Tokenizers of directories, of GGUF metadata and in code: exactly one BOS, the cut prompt, end tokens, round trips."""

import numpy as np
import pytest
import tokenizers

from nexus import fetch
from nexus.models import tokenizer_gguf, tokenizer_hf
from nexus.models.load_gguf import GGUFFile
from nexus.models.tokenizer import Tokenizer, byte_tokenizer
from tests.models import dense

WITH_BOS = {"llama2": "<s>", "llama31": "<|begin_of_text|>", "mistral": "<s>"}
EMBEDDED = "embedded"
EVERY = (*dense.NAMES, "byte", "byte-bos", EMBEDDED)


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
    assert tokenizer.decode(tokenizer.encode(dense.ODD_TEXT)) == dense.ODD_TEXT
    assert tokenizer.decode(np.asarray(tokenizer.encode(dense.ODD_TEXT), np.int32)) == dense.ODD_TEXT
    assert max(tokenizer.encode(dense.ODD_TEXT)) < tokenizer.vocab_size


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


@pytest.mark.parametrize("name", EVERY)
def test_pieces_join_to_the_text(load, name):
    """Decoded one by one, tokens lose the blanks before words and the bytes of characters that span several."""
    tokenizer = load(name)
    text = "The caf\u00e9 at \u65e5\u672c, room  4812.\nEnd"
    ids = tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids) and "".join(pieces) == tokenizer.decode(ids, skip_special=False)


def test_byte_tokenizer_ids_are_bytes():
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("caf\u00e9") == list("caf\u00e9".encode())
    assert tokenizer.decode(list(range(32, 127))) == bytes(range(32, 127)).decode()
    assert tokenizer.vocab_size == 259


def test_without_chat_wrapping_the_parts_follow_each_other():
    """Few-shot and code prompts go on with a pattern; a turn around it would end the pattern."""
    for tokenizer in (byte_tokenizer(), byte_tokenizer(bos=True)):
        before, after = tokenizer.prompt("a\n", "b\n", "c", chat=False)
        assert before == ([tokenizer.bos_id] if tokenizer.bos_id is not None else []) + tokenizer.encode("a\n")
        assert after == tokenizer.encode("b\nc")
    with pytest.raises(ValueError, match="takes no system text"):
        byte_tokenizer().prompt("a", "b", "c", system="s", chat=False)


@pytest.mark.parametrize("name", ["byte", "smollm2", "llama31", EMBEDDED])
def test_a_given_answer_and_a_prefix_join_to_the_whole_conversation(load, name):
    """A history with given answers is the template's text, and a prefix follows the last header."""
    tokenizer = load(name)
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is red."}]
    whole = tokenizer.chat([*turns, {"role": "user", "content": "And that?"}]) + "That is"
    opening = tokenizer.decode(tokenizer.first_turn("What is it?"), skip_special=False)
    after = tokenizer.decode(tokenizer.next_turn("And that?", "That is", "It is red."), skip_special=False)
    assert opening + after == whole
    own = tokenizer.decode(tokenizer.next_turn("And that?", "That is"), skip_special=False)
    assert "It is red." + own == after
