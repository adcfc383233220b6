"""Text to ids and back, and the chat wrapping of a prompt that is cut between context and question.

A prompt is  BOS . user header . context | question . end of turn . assistant header . answer prefix  and is returned as
the ids on either side of the bar, so that a cache can be compressed before the question is known. The template is
rendered once, with a marker at the bar. BOS stands exactly once in prompts of models that have one, never in others.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from nexus.models import chat
from nexus.models.chat import Message

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>")
"""Specials that end an answer where the chat template writes them, whatever the configuration files say."""
_CUT = "\u241fcut\u241f"
_GUARD = "\u241e"  # no vocabulary merges it with what follows
_BYTE_SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>")
_BYTE_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """A `tokenizers` backend with what a model needs beside it. Built by the functions that read model files.

    Attributes: `bos_id` (None when prompts do not begin with one), `eos_ids` (sorted; every id that ends an answer),
    `template` (chat template source, None for models without one).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None,
        eos_ids: Iterable[int],
        template: str | None,
        special_texts: Mapping[str, str] | None = None,
    ):
        """`special_texts` (bos_token, eos_token, ...) are the names under which templates write special tokens."""
        self._backend = backend
        self._texts = dict(special_texts or {})
        self._compiled = chat.compile_template(template) if template is not None else None
        self._prefixes_space = backend.encode("x", add_special_tokens=False).tokens[0].startswith("\u2581")
        self.template = template
        self.bos_id = bos_id
        written = [backend.token_to_id(text) for text in END_OF_TURN if template and text in template]
        self.eos_ids = tuple(sorted({*eos_ids, *(id for id in written if id is not None)}))

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id, special tokens included."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 (hexadecimal) of vocabulary, merges, special tokens and chat template."""
        spec = json.loads(self._backend.to_str())
        merges = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in spec["model"].get("merges", [])]
        added = [[token["id"], token["content"], token["special"]] for token in spec["added_tokens"]]
        parts = [spec["model"]["vocab"], merges, added, self.bos_id, self.eos_ids, self.template]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of the text. Special tokens written in it are recognised; none is added."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the ids, by default without special tokens."""
        return self._backend.decode([int(id) for id in ids], skip_special_tokens=skip_special)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each id adds, special tokens included; "" for an id that ends inside a character."""
        stream = decoders.DecodeStream(skip_special_tokens=False)
        return [stream.step(self._backend, int(id)) or "" for id in ids]

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Prompt text of a conversation. Raises ValueError when the model has no template or the template refuses."""
        if self._compiled is None:
            raise ValueError("this model has no chat template; give it plain text")
        return chat.render(self._compiled, messages, add_generation_prompt=add_generation_prompt, **self._texts)

    def prompt(
        self, context: str, question: str, answer_prefix: str, system: str | None = None, *, chat: bool = True
    ) -> tuple[list[int], list[int]]:
        """Ids before and after the cut between context and question; see the module docstring.

        Without `chat`, and for models without a chat template: BOS . context | question . answer_prefix.

        Raises:
          ValueError: a system text without a template; a template that does not print the user's text once; a context
            or question that contains the marker.
        """
        if _CUT in context or _CUT in question:
            raise ValueError(f"the text contains the marker {_CUT!r} that separates context and question")
        if self._compiled is None or not chat:
            if system is not None:
                raise ValueError("no chat template for this prompt, so the prompt takes no system text")
            text = context + _CUT + question
        else:
            messages = [] if system is None else [{"role": "system", "content": system}]
            text = self.chat([*messages, {"role": "user", "content": context + _CUT + question}])
        if text.count(_CUT) != 1:
            raise ValueError(f"the chat template prints the user's text {text.count(_CUT)} times, expected once")
        before, after = text.split(_CUT)
        return self.with_bos(self.encode(before)), self._encode_after(after + answer_prefix)

    def first_turn(self, prompt: str | Sequence[Message]) -> list[int]:
        """Ids that open a conversation with a user's text, or with messages; the assistant is to speak next."""
        messages: Sequence[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if self._compiled is None and isinstance(prompt, str):
            return self.with_bos(self.encode(prompt))
        return self.with_bos(self.encode(self.chat(messages)))

    def next_turn(self, prompt: str, answer_prefix: str = "", answer: str = "") -> list[int]:
        """Ids that go on after an answer whose end token is not in the cache: end of turn, user's text, header, prefix.

        answer: the earlier answer (or what is missing of it) where it is not in the cache yet, as in a given history.
        """
        if self._compiled is None:
            return self._encode_after(answer + prompt + answer_prefix)
        earlier = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _CUT}]
        after = self.chat([*earlier, {"role": "user", "content": prompt}]).split(_CUT)[-1]
        return self._encode_after(answer + after + answer_prefix)

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids with the BOS of the model in front, unless it has none or a template has already written it."""
        return ids if self.bos_id is None or ids[:1] == [self.bos_id] else [self.bos_id, *ids]

    def fixed_tokens(self) -> int:
        """Tokens of the wrapping alone: a prompt with empty texts."""
        return sum(len(ids) for ids in self.prompt("", "", ""))

    def _encode_after(self, text: str) -> list[int]:
        """Ids of a text that continues another: sentencepiece vocabularies put a blank before a text's first word."""
        if not self._prefixes_space:
            return self.encode(text)
        guard = self.encode(_GUARD)
        return self.encode(_GUARD + text)[len(guard) :]


def byte_tokenizer(bos: bool = False) -> Tokenizer:
    """The tokenizer of the presets: ids 0-255 are the bytes of UTF-8, then <s>, <|im_start|> and <|im_end|>."""
    vocab = {char: byte for byte, char in enumerate(_byte_chars())}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(_BYTE_SPECIALS))
    bos_id = len(vocab) if bos else None
    return Tokenizer(backend, bos_id=bos_id, eos_ids=(), template=_BYTE_TEMPLATE, special_texts={"bos_token": "<s>"})


def _byte_chars() -> list[str]:
    """The printable stand-in of each byte in byte-level vocabularies: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]
