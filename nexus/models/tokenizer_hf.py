"""The tokenizer of a model directory: tokenizer.json, and beside it what the other JSON files say about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from nexus.models.load_safetensors import read_json
from nexus.models.tokenizer import Tokenizer

_SPECIAL_TEXTS = ("bos_token", "eos_token", "unk_token", "pad_token")


def from_directory(directory: Path) -> Tokenizer:
    """Tokenizer of tokenizer.json with BOS, EOS ids and chat template from the files beside it.

    EOS ids are those of config.json, generation_config.json and the tokenizer itself.

    Raises:
      FileNotFoundError: no tokenizer.json.
      ValueError: a broken file.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        other = " (a sentencepiece tokenizer.model must be converted first)" if _has_sentencepiece(directory) else ""
        raise FileNotFoundError(f"{directory}: no tokenizer.json in this directory{other}")
    read_json(path)  # tokenizers reports broken files as a bare Exception without the name
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.no_truncation()
    backend.no_padding()
    settings = {**_optional(directory / "special_tokens_map.json"), **_optional(directory / "tokenizer_config.json")}
    texts = {key: _text(settings[key]) for key in _SPECIAL_TEXTS if settings.get(key)}
    bos_id = _id(backend, texts.get("bos_token"))
    eos_ids = {_id(backend, texts.get("eos_token"))}
    for name in ("config.json", "generation_config.json"):
        eos_ids.update(_ids(_optional(directory / name).get("eos_token_id")))
    return Tokenizer(
        backend,
        bos_id=bos_id if _adds_bos(backend, bos_id, settings) else None,
        eos_ids=(id for id in eos_ids if id is not None),
        template=_template(directory, settings),
        special_texts=texts,
    )


def _adds_bos(backend: tokenizers.Tokenizer, bos_id: int | None, settings: Mapping[str, Any]) -> bool:
    """`add_bos_token` decides where it is given, else whether the tokenizer's post-processor adds the BOS."""
    if bos_id is None:
        return False
    if isinstance(settings.get("add_bos_token"), bool):
        return settings["add_bos_token"]
    return backend.encode("").ids[:1] == [bos_id]


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else `chat_template` of tokenizer_config.json: a text, or a list of named texts."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if found is None or isinstance(found, str):
        return found
    named = {entry["name"]: entry["template"] for entry in found}
    if "default" not in named:
        raise ValueError(f"{directory}: chat templates {', '.join(named)}, but none is named 'default'")
    return named["default"]


def _has_sentencepiece(directory: Path) -> bool:
    return any(directory.glob("*.model"))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
