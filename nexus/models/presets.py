"""Tiny models with random weights: one per family, every GQA ratio that matters, tied and untied. For tests and smoke.

They share the byte-level tokenizer of `tokenizer.byte_tokenizer`: 256 bytes and three special tokens.
"""

from __future__ import annotations

from typing import Any

from nexus.models.config import ModelConfig
from nexus.rope import Llama3Scaling, RopeConfig

BYTE_VOCAB = 259
BOS_ID, EOS_ID = 256, 258  # <s>, <|im_end|>

_LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=256)


def _tiny(name: str, family: str, heads: int, kv_heads: int, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = dict(
        num_layers=2,
        head_dim=16,
        dim=64,
        ffn_dim=128,
        vocab_size=BYTE_VOCAB,
        max_position=8192,
        rms_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        eos_ids=(EOS_ID,),
    )
    return ModelConfig(name=name, family=family, num_heads=heads, num_kv_heads=kv_heads, **(sizes | changes))


PRESETS: dict[str, ModelConfig] = {
    cfg.name: cfg
    for cfg in (
        _tiny("tiny-llama", "llama", 4, 2, num_layers=3, tied_embeddings=True),
        _tiny("tiny-llama2", "llama", 4, 4, bos_id=BOS_ID),
        _tiny("tiny-llama31", "llama", 8, 2, rope=RopeConfig(theta=500000.0, scaling=_LLAMA3), bos_id=BOS_ID),
        _tiny("tiny-mistral", "mistral", 4, 1, head_dim=32),
        _tiny("tiny-qwen2", "qwen2", 6, 2, qkv_bias=True, tied_embeddings=True, rms_eps=1e-6),
        _tiny("tiny-qwen3", "qwen3", 4, 2, qk_norm=True, head_dim=32, tied_embeddings=True, rms_eps=1e-6),
    )
}
