"""The other side of the benchmark: transformers and kvpress, with our parameters, on the same prompts.

torch is imported inside functions only, so that this file can be read where it is not installed. On CPU, sdpa, all
cores, with exactly the numbers of our parameters: a model of dtype mixed gives its rounded matrices. kvpress is driven
as its own pipeline does it: prefill under the press, then question and greedy answer with true positions, one prompt at
a time.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from nexus.models.config import ModelConfig
from nexus.models.load import Model
from nexus.rope import FactorScaling, LinearScaling, Llama3Scaling

DTYPES = ("float32", "bfloat16")
NAME, NOT_INSTALLED = "transformers", "not installed"
PACKAGES = {"transformers": ("torch", "transformers"), "kvpress": ("torch", "transformers", "kvpress")}


def why_not(name: str, wanted: Sequence[str], cfg: ModelConfig) -> str:
    """Why a package cannot be compared with, in plain words; empty if it can."""
    if name not in wanted:
        return "not asked for"
    absent = [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]
    if absent:
        return f"{NOT_INSTALLED}: {', '.join(absent)}"
    if jax.default_backend() != "cpu":
        return f"compared on CPU only; this device is {jax.default_backend()}"
    if cfg.family != "llama" or cfg.dtype == "bfloat16" or cfg.sliding_window or cfg.qkv_bias or cfg.qk_norm:
        return f"compared for plain llama models in float32 or mixed only; {cfg.name} is {cfg.family} in {cfg.dtype}"
    if isinstance(cfg.rope.scaling, FactorScaling):
        return f"compared where transformers knows the rope scaling; {cfg.name} stores worked-out frequencies"
    return ""


def build(model: Model, dtype: str = "float32") -> Any:
    """LlamaForCausalLM with the parameters of our model; dtype: float32 or bfloat16, of everything it computes."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    cfg = model.config
    config = transformers.LlamaConfig(
        vocab_size=cfg.vocab_size, hidden_size=cfg.dim, intermediate_size=cfg.ffn_dim, num_hidden_layers=cfg.num_layers,
        num_attention_heads=cfg.num_heads, num_key_value_heads=cfg.num_kv_heads, head_dim=cfg.head_dim,
        max_position_embeddings=cfg.max_position, rms_norm_eps=cfg.rms_eps, rope_theta=cfg.rope.theta,
        rope_scaling=_scaling(cfg), tie_word_embeddings=cfg.tied_embeddings, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    state = {name: torch.tensor(np.ascontiguousarray(array)) for name, array in _weights(model).items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if cfg.tied_embeddings else set()):
        raise RuntimeError(f"weights do not fit LlamaForCausalLM: missing {missing}, unexpected {unexpected}")
    theirs.tie_weights()
    return theirs.to(getattr(torch, dtype))


def _scaling(cfg: ModelConfig) -> dict[str, Any] | None:
    scaling = cfg.rope.scaling
    if scaling is None:
        return None
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    if not isinstance(scaling, Llama3Scaling):
        raise ValueError(f"transformers has no rope scaling {scaling}")
    return {
        "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor, "original_max_position_embeddings": scaling.original_max_position,
    }  # fmt: skip


def _weights(model: Model) -> dict[str, np.ndarray]:
    """Our parameters under the names of transformers; its matrices are [out,in]."""
    cfg, params = model.config, jax.tree.map(lambda x: np.asarray(x, np.float32), model.params)
    found = {"model.embed_tokens.weight": params["embed"], "model.norm.weight": params["final_norm"]}
    if not cfg.tied_embeddings:
        found["lm_head.weight"] = params["head"].T
    query, key = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    blocks = params["blocks"]
    for i in range(cfg.num_layers):
        w = {name: np.asarray(every[i]) for name, every in blocks.items()}
        q, k, v = np.split(w["wqkv"], [query, query + key], axis=1)
        gate, up = np.split(w["w_gate_up"], 2, axis=1)
        matrices = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": w["wo"],
                    "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": w["w_down"]}  # fmt: skip
        norms = {"input_layernorm": w["attn_norm"], "post_attention_layernorm": w["ffn_norm"]}
        layer = {name: matrix.T for name, matrix in matrices.items()} | norms
        found |= {f"model.layers.{i}.{name}.weight": array for name, array in layer.items()}
    return found


def prefill_s(theirs: Any, ids: Sequence[Sequence[int]]) -> float:
    """Seconds of one forward pass over whole prompts into a fresh DynamicCache, without logits."""
    import torch
    import transformers

    tokens, cache = torch.tensor(ids), transformers.DynamicCache()
    with torch.inference_mode():
        began = time.perf_counter()
        theirs.model(input_ids=tokens, past_key_values=cache)
        return time.perf_counter() - began


def decoder(theirs: Any, ids: Sequence[Sequence[int]], steps: int) -> Callable[[], float]:
    """A function that decodes `steps` tokens greedily after a prompt and returns the milliseconds of one token."""
    import torch
    import transformers

    cache = transformers.DynamicCache()
    length = len(ids[0])
    with torch.inference_mode():
        first = theirs(input_ids=torch.tensor(ids), past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1)

    def run() -> float:
        with torch.inference_mode():
            token, began = first, time.perf_counter()
            for _ in range(steps):
                logits = theirs(input_ids=token[:, None], past_key_values=cache).logits
                token = logits[:, -1].argmax(-1)
            token.tolist()
            elapsed = time.perf_counter() - began
            cache.crop(length)
        return elapsed / steps * 1e3

    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapKV:
    """kvpress's SnapKVPress, cut to `budget` entries per head after the context."""

    model: Any
    budget: int
    window: int
    kernel: int
    eos_ids: tuple[int, ...]

    def answer(self, context: Sequence[int], question: Sequence[int], max_new_tokens: int) -> list[int]:
        """Tokens of the greedy answer, end token not included."""
        import torch
        import transformers
        from kvpress import SnapKVPress

        # half an entry more: the press truncates length * (1 - ratio)
        ratio = max(0.0, 1 - (self.budget + 0.5) / len(context))
        press = SnapKVPress(compression_ratio=ratio, window_size=self.window, kernel_size=self.kernel)
        cache = transformers.DynamicCache()
        tokens: list[int] = []
        with torch.inference_mode():
            with press(self.model):
                self.model.model(input_ids=torch.tensor([context]), past_key_values=cache)
            fed, position = torch.tensor([question]), len(context)
            while len(tokens) < max_new_tokens:
                positions = torch.arange(position, position + fed.shape[1])[None]
                logits = self.model(fed, past_key_values=cache, position_ids=positions, logits_to_keep=1).logits
                position += fed.shape[1]
                fed = logits[:, -1].argmax(-1, keepdim=True)
                if int(fed) in self.eos_ids:
                    break
                tokens.append(int(fed))
        return tokens
