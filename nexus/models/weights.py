"""From named tensors of any file format to the stacked parameters of transformer.py.

A file reader offers its tensors under the names of the safetensors checkpoints, matrices as [out, in]; q and k rows
are in the rotate-halves order. Everything is checked (names, then shapes) before the first tensor is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from nexus.models.config import ModelConfig
from nexus.models.product import Stored, stored
from nexus.models.transformer import Params

Shape = tuple[int, ...]
EMBED, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_SHOWN = 4  # names listed in an error before it says how many more


def layer_tensors(cfg: ModelConfig) -> dict[str, tuple[tuple[str, Shape], ...]]:
    """Parameter of a block -> the checkpoint tensors (name within the layer, shape) it is put together from."""
    D, F, H = cfg.dim, cfg.ffn_dim, cfg.head_dim
    rows = {"q": cfg.num_heads * H, "k": cfg.num_kv_heads * H, "v": cfg.num_kv_heads * H}
    table: dict[str, tuple[tuple[str, Shape], ...]] = {
        "attn_norm": (("input_layernorm.weight", (D,)),),
        "wqkv": tuple((f"self_attn.{name}_proj.weight", (size, D)) for name, size in rows.items()),
        "wo": (("self_attn.o_proj.weight", (D, rows["q"])),),
        "ffn_norm": (("post_attention_layernorm.weight", (D,)),),
        "w_gate_up": (("mlp.gate_proj.weight", (F, D)), ("mlp.up_proj.weight", (F, D))),
        "w_down": (("mlp.down_proj.weight", (D, F)),),
    }
    if cfg.qkv_bias:
        table["bqkv"] = tuple((f"self_attn.{name}_proj.bias", (size,)) for name, size in rows.items())
    if cfg.qk_norm:
        table["q_norm"] = (("self_attn.q_norm.weight", (H,)),)
        table["k_norm"] = (("self_attn.k_norm.weight", (H,)),)
    return table


def expected_shapes(cfg: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a checkpoint of this config must have."""
    shapes: dict[str, Shape] = {EMBED: (cfg.vocab_size, cfg.dim), FINAL_NORM: (cfg.dim,)}
    if not cfg.tied_embeddings:
        shapes[HEAD] = (cfg.vocab_size, cfg.dim)
    for parts in layer_tensors(cfg).values():
        for layer in range(cfg.num_layers):
            shapes |= {_in_layer(layer, name): shape for name, shape in parts}
    return shapes


def check(cfg: ModelConfig, found: Mapping[str, Shape], where: str) -> None:
    """Raises ValueError for missing, unknown or misshapen tensors. A stored copy of a tied head is let pass."""
    expected = expected_shapes(cfg)
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected and not (cfg.tied_embeddings and name == HEAD)]
    if missing:
        raise ValueError(f"{where}: {len(missing)} tensors are missing: {_some(missing)}")
    if extra:
        raise ValueError(f"{where}: {len(extra)} tensors that a {cfg.family} model does not have: {_some(extra)}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ValueError(f"{where}: {name} has shape {tuple(found[name])}, the config asks for {shape}")


def assemble(cfg: ModelConfig, get: Callable[[str], np.ndarray]) -> Params:
    """Parameters in the dtypes of the config from `get(name)` -> float array [out, in] or [out]."""
    dtype = np.dtype(jnp.dtype(cfg.activations))
    params: Params = {
        "embed": jnp.asarray(get(EMBED).astype(dtype)),
        "final_norm": jnp.asarray(get(FINAL_NORM).astype(dtype)),
        "blocks": {name: _stacked(cfg, parts, get) for name, parts in layer_tensors(cfg).items()},
    }
    if not cfg.tied_embeddings:
        params["head"] = jnp.asarray(np.ascontiguousarray(get(HEAD).astype(dtype).T))
    return params


def _stacked(cfg: ModelConfig, parts: tuple[tuple[str, Shape], ...], get: Callable[[str], np.ndarray]) -> Stored:
    """[L, in, sum of outs] (matrices, transposed) or [L, sum of outs] (vectors) of the parts side by side."""
    outs = [shape[0] for _, shape in parts]
    matrix = len(parts[0][1]) == 2
    dtype = jnp.dtype(cfg.matrices if matrix else cfg.activations)
    stacked = np.empty((cfg.num_layers, *parts[0][1][1:], sum(outs)), dtype)
    for layer in range(cfg.num_layers):
        start = 0
        for (name, _), size in zip(parts, outs, strict=True):
            stacked[layer, ..., start : start + size] = get(_in_layer(layer, name)).T
            start += size
    return stored(jnp.asarray(stacked)) if matrix else jnp.asarray(stacked)


def _in_layer(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{name}"


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(sorted(names)[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
