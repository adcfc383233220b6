"""The tokenizer that GGUF metadata describes, rebuilt with the `tokenizers` package.

`tokenizer.ggml.model` gpt2 is byte-level BPE with stored merges, split first by one of the known pre-tokenizers; llama
is sentencepiece BPE, where the merges follow from the scores. Pre-tokenizer "default" is read as that of GPT-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from nexus.models.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4  # tokenizer.ggml.token_type
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _WORDS.format(digits=r"\p{N}")
_LLAMA3 = _WORDS.format(digits=r"\p{N}{1,3}")
_GPT2_NAMES = ("default", "gpt-2", "gpt2")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
PRE_TOKENIZERS = ("smollm", *_QWEN2_NAMES, *_LLAMA3_NAMES, *_GPT2_NAMES)
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def from_metadata(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Tokenizer of GGUF metadata; `where` names the file in errors.

    Raises:
      ValueError: no tokenizer in the file, or a model or pre-tokenizer that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{where}: GGUF tokenizer {kind!r} is not supported; allowed: gpt2, llama")
    missing = [key for key in _needed(kind) if key not in metadata]
    if missing:
        raise ValueError(f"{where}: GGUF metadata has no {missing[0]!r}")
    backend = _byte_level(metadata, where) if kind == "gpt2" else _sentencepiece(metadata)
    _add_specials(backend, metadata)
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in names.items()}
    texts = {name: metadata["tokenizer.ggml.tokens"][id] for name, id in ids.items() if id is not None}
    eos_ids = [metadata[f"tokenizer.ggml.{key}"] for key in _EOS_KEYS if f"tokenizer.ggml.{key}" in metadata]
    return Tokenizer(
        backend,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id") if _adds_bos(metadata, kind) else None,
        eos_ids=eos_ids,
        template=metadata.get("tokenizer.chat_template"),
        special_texts=texts,
    )


def _needed(kind: str) -> tuple[str, ...]:
    keys = ("tokens", "token_type", "merges" if kind == "gpt2" else "scores")
    return tuple(f"tokenizer.ggml.{key}" for key in keys)


def _adds_bos(metadata: Mapping[str, Any], kind: str) -> bool:
    """Files that do not say follow the habit of their kind: sentencepiece and Llama 3 models begin with a BOS."""
    habit = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    return metadata.get("tokenizer.ggml.add_bos_token", habit)


def _byte_level(metadata: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"{where}: GGUF pre-tokenizer {pre!r} is not supported; allowed: {', '.join(PRE_TOKENIZERS)}")
    vocab = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in _LLAMA3_NAMES))
    backend.decoder = decoders.ByteLevel()
    if pre in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(pre)
    return backend


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _GPT2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = Regex(_QWEN2 if pre in _QWEN2_NAMES else _LLAMA3)
    split = pre_tokenizers.Split(words, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {token: id for id, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = _merges_of_scores(vocab, metadata["tokenizer.ggml.scores"], types)
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    blanks: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        blanks.insert(0, normalizers.Prepend("\u2581"))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(blanks)
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_of_scores(vocab: Mapping[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Sentencepiece joins, of all neighbours that form a piece, the pair with the best score: best score first."""
    merges = []
    for piece, id in vocab.items():
        if types[id] != _NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab and types[vocab[left]] == types[vocab[right]] == _NORMAL:
                merges.append((-scores[id], vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _add_specials(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    named = list(zip(tokens, types, strict=True))
    backend.add_special_tokens(
        [AddedToken(text, normalized=False) for text, kind in named if kind in (_CONTROL, _UNKNOWN)]
    )
    backend.add_tokens([AddedToken(text, normalized=False) for text, kind in named if kind == _USER])
