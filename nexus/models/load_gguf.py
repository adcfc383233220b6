"""GGUF files: metadata to ModelConfig, tensors dequantised to float32.

Architectures llama (also Mistral models, which use its name) and qwen2, every quantisation the `gguf` package can
dequantise. Files of architecture llama store the rows of q and k for interleaved rotation; `unpermute` puts them back
into rotate-halves order. Leaving that out still gives fluent text, at nine times the perplexity. qwen2 files are not
permuted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from nexus.models import weights
from nexus.models.config import ModelConfig
from nexus.models.transformer import Params
from nexus.rope import FactorScaling, LinearScaling, RopeConfig

ARCHITECTURES = ("llama", "qwen2")
_ROPE_FACTORS = "rope_freqs.weight"
_GLOBAL_NAMES = {"token_embd.weight": weights.EMBED, "output_norm.weight": weights.FINAL_NORM}
_GLOBAL_NAMES["output.weight"] = weights.HEAD
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFFile:
    """An opened file: `metadata` (plain Python values) and tensors under their checkpoint names.

    Raises:
      ValueError: not a GGUF file, or one that ends early; an architecture that is not supported.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
            self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            size = path.stat().st_size
            raise ValueError(f"{path}: broken or half-downloaded GGUF file of {size} bytes ({error})") from error
        architecture = self.metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ValueError(
                f"{path}: GGUF architecture {architecture!r} is not supported; allowed: {', '.join(ARCHITECTURES)}"
            )
        self.architecture: str = architecture
        self._tensors = {checkpoint_name(tensor.name): tensor for tensor in reader.tensors}

    def value(self, key: str, default: Any = None) -> Any:
        """Metadata `<architecture>.<key>`; ValueError when absent and without a default."""
        full = f"{self.architecture}.{key}"
        found = self.metadata.get(full, default)
        if found is None:
            raise ValueError(f"{self.path}: GGUF metadata has no {full!r}")
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape [out, in] of each tensor; GGUF lists the fastest axis first."""
        return {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> np.ndarray:
        """One tensor as float32, as stored (q and k of architecture llama still permuted)."""
        stored = self._tensors[name]
        try:
            return gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            kind = stored.tensor_type.name
            raise ValueError(f"{self.path}: {name} is stored as {kind}, which cannot be dequantised") from error


def checkpoint_name(name: str) -> str:
    """Name of a GGUF tensor in a safetensors checkpoint; unknown names stay as they are and are reported later."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def config(file: GGUFFile, *, name: str, dtype: str) -> ModelConfig:
    """ModelConfig of the metadata. Raises ValueError for missing keys and for what the decoder does not have."""
    if file.value("expert_count", 0):
        raise ValueError(f"{file.path}: mixture of experts ({file.value('expert_count')} experts) is not supported")
    shapes = file.shapes()
    if weights.EMBED not in shapes:
        raise ValueError(f"{file.path}: 1 tensors are missing: token_embd.weight")
    heads, dim = file.value("attention.head_count"), file.value("embedding_length")
    head_dim = file.value("attention.key_length", dim // heads)
    rotated = file.value("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(f"{file.path}: rotates {rotated} of {head_dim} coordinates; only all is supported")
    return ModelConfig(
        name=name,
        family=file.architecture,
        num_layers=file.value("block_count"),
        num_heads=heads,
        num_kv_heads=file.value("attention.head_count_kv", heads),
        head_dim=head_dim,
        dim=dim,
        ffn_dim=file.value("feed_forward_length"),
        vocab_size=shapes[weights.EMBED][0],
        max_position=file.value("context_length"),
        rms_eps=float(file.value("attention.layer_norm_rms_epsilon")),
        rope=_rope(file),
        qkv_bias=file.architecture == "qwen2",
        tied_embeddings=weights.HEAD not in shapes,
        sliding_window=file.value("attention.sliding_window", 0) or None,
        dtype=dtype,
    )


def _rope(file: GGUFFile) -> RopeConfig:
    theta = float(file.value("rope.freq_base", 10000.0))
    if _ROPE_FACTORS in file.shapes():
        factors = tuple(float(factor) for factor in file.tensor(_ROPE_FACTORS))
        return RopeConfig(theta=theta, scaling=FactorScaling(factors=factors))
    kind = file.value("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=LinearScaling(factor=float(file.value("rope.scaling.factor"))))
    raise ValueError(f"{file.path}: GGUF rope scaling {kind!r} is not supported; allowed: none, linear")


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k [heads*H, ...] from interleaved (0, H/2, 1, H/2+1, ...) to rotate-halves order (0, 1, 2, ...)."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def params(file: GGUFFile, cfg: ModelConfig) -> Params:
    """Checked, dequantised and assembled parameters."""
    shapes = {name: shape for name, shape in file.shapes().items() if name != _ROPE_FACTORS}
    weights.check(cfg, shapes, str(file.path))
    heads = {"q_proj": cfg.num_heads, "k_proj": cfg.num_kv_heads} if file.architecture == "llama" else {}

    def get(name: str) -> np.ndarray:
        projection = name.split(".")[-2]
        tensor = file.tensor(name)
        return unpermute(tensor, heads[projection]) if projection in heads else tensor

    return weights.assemble(cfg, get)
