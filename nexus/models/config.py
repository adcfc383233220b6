"""The shape of a model: one frozen, hashable record, so that it can be a static argument of a compiled function.

Supported families: llama (2, 3, 3.1-3.3), mistral, qwen2 (2.5), qwen3. `from_hf` reads the config.json of a
safetensors directory; GGUF metadata is read in load_gguf.py. What the decoder cannot compute is refused here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nexus.rope import LinearScaling, Llama3Scaling, RopeConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16", "mixed")
ASKED = ("fast", *DTYPES)  # what a person may write; fast: mixed on CPU, bfloat16 on accelerators
ROPE_TYPES = ("default", "linear", "llama3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes are counts of numbers, positions are tokens.

    `sliding_window` w: a query sees itself and the w-1 tokens before it (None: all of them). `bos_id` is set only when
    prompts of this model begin with it. `eos_ids` are all the ids that end an answer.
    """

    name: str
    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dim: int
    ffn_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope: RopeConfig
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    sliding_window: int | None = None
    dtype: str = "float32"
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"{self.name}: family {self.family!r}; known: {', '.join(FAMILIES)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "dim", "ffn_dim", "vocab_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} must be at least 1: {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_kv_heads must divide num_heads: "
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}"
            )

    @property
    def activations(self) -> str:
        """Dtype of everything but the matrices of the layers: embedding, norms, residual stream, attention, cache."""
        return "float32" if self.dtype == "mixed" else self.dtype

    @property
    def matrices(self) -> str:
        """Dtype of the layers' matrices (nexus/models/product.py)."""
        return "bfloat16" if self.dtype == "mixed" else self.dtype

    @property
    def num_groups(self) -> int:
        """G, query heads per key/value head."""
        return self.num_heads // self.num_kv_heads


def from_hf(hf: Mapping[str, Any], *, name: str, dtype: str) -> ModelConfig:
    """ModelConfig of a parsed config.json (layouts of transformers 4 and 5).

    Raises:
      ValueError: model_type, rope type or an option that the decoder does not have; a missing key.
    """
    family = hf.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{name}: model_type {family!r} is not supported; allowed: {', '.join(FAMILIES)}")
    _refuse_unsupported(hf, name)
    try:
        heads, dim = hf["num_attention_heads"], hf["hidden_size"]
        return ModelConfig(
            name=name,
            family=family,
            num_layers=hf["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=hf.get("num_key_value_heads") or heads,
            head_dim=hf.get("head_dim") or dim // heads,
            dim=dim,
            ffn_dim=hf["intermediate_size"],
            vocab_size=hf["vocab_size"],
            max_position=hf["max_position_embeddings"],
            rms_eps=hf["rms_norm_eps"],
            rope=_rope(hf, name),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            tied_embeddings=bool(hf.get("tie_word_embeddings", False)),
            sliding_window=_sliding_window(hf, name),
            dtype=dtype,
        )
    except KeyError as error:
        raise ValueError(f"{name}: config.json has no {error.args[0]!r}") from error


def _refuse_unsupported(hf: Mapping[str, Any], name: str) -> None:
    allowed: dict[str, Any] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
    }
    for key, value in allowed.items():
        if hf.get(key, value) not in (value, None):
            raise ValueError(f"{name}: config.json has {key}={hf[key]!r}; only {value!r} is supported")
    if hf.get("quantization_config"):
        method = hf["quantization_config"].get("quant_method")
        raise ValueError(f"{name}: weights quantised with {method!r}; only plain float safetensors or GGUF files load")


def _rope(hf: Mapping[str, Any], name: str) -> RopeConfig:
    """transformers 4 keeps rope_theta beside rope_scaling; transformers 5 keeps both in rope_parameters."""
    scaling = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta", hf.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=LinearScaling(factor=float(scaling["factor"])))
    if kind == "llama3":
        llama3 = Llama3Scaling(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_position=int(scaling["original_max_position_embeddings"]),
        )
        return RopeConfig(theta=theta, scaling=llama3)
    raise ValueError(f"{name}: rope_type {kind!r} is not supported; allowed: {', '.join(ROPE_TYPES)}")


def _sliding_window(hf: Mapping[str, Any], name: str) -> int | None:
    """The window when every layer has it. Qwen configs carry a number that `use_sliding_window` switches off."""
    window, layers = hf.get("sliding_window"), hf["num_hidden_layers"]
    if window is None or not hf.get("use_sliding_window", hf["model_type"] == "mistral"):
        return None
    if hf.get("layer_types"):
        windowed = sum(kind == "sliding_attention" for kind in hf["layer_types"])
    else:
        windowed = layers - min(hf.get("max_window_layers", 0), layers)
    if windowed not in (0, layers):
        raise ValueError(
            f"{name}: sliding_window={window} on {windowed} of {layers} layers; only none or all is supported"
        )
    return window if windowed else None
