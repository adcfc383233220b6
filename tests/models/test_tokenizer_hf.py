"""Tokenizers of model directories: which of the files beside tokenizer.json decides what."""

import json

import pytest
import tokenizers

from nexus.models import tokenizer_hf
from tests.models import dense


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
