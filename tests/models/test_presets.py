"""The tiny models cover, between them, what the decoder can do."""

import pytest

from nexus.models.presets import BOS_ID, BYTE_VOCAB, EOS_ID, PRESETS
from nexus.models.tokenizer import byte_tokenizer


def test_presets_cover_what_the_decoder_can_do():
    assert {cfg.family for cfg in PRESETS.values()} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {cfg.num_groups for cfg in PRESETS.values()} >= {1, 2, 3, 4}
    assert {cfg.tied_embeddings for cfg in PRESETS.values()} == {True, False}


@pytest.mark.parametrize("name", PRESETS)
def test_ids_are_those_of_the_byte_tokenizer(name):
    cfg = PRESETS[name]
    assert cfg.name == name
    assert byte_tokenizer().encode("<s>") == [BOS_ID]
    assert byte_tokenizer().eos_ids == cfg.eos_ids == (EOS_ID,)
    assert byte_tokenizer().vocab_size == cfg.vocab_size == BYTE_VOCAB
