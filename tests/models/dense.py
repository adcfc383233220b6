"""What model tests share: the fixtures, and plain causal attention over the whole text as the attend function."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from nexus import rope
from nexus.models import transformer
from nexus.models.config import ModelConfig

FIXTURES = Path(__file__).parent.parent / "fixtures"
ODD_TEXT = "Line one.\n\n\tTabs  and  blanks \u2014 caf\u00e9 \u4f60\u597d \U0001f600 12345 don't\r\nend"
NAMES = ("llama2", "llama31", "mistral", "qwen2", "qwen3", "smollm2")


def directory(name: str) -> Path:
    return FIXTURES / "models" / name


def attend_fn(cfg: ModelConfig):
    """Causal softmax attention, [T,T] logits, positions from 0; counts the layers it saw in `state`."""
    frequencies = rope.inv_freq(cfg.rope, cfg.head_dim)

    def attend(layer, state, q, k, v, x):
        pos = jnp.arange(q.shape[3], dtype=jnp.int32)
        cos, sin = rope.cos_sin(pos, frequencies)
        q, k = rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)
        distance = pos[:, None] - pos[None, :]
        seen = (distance >= 0) & (distance < (cfg.sliding_window or len(pos)))
        scores = jnp.einsum("BKGTH,BKSH->BKGTS", q, k).astype(jnp.float32) * cfg.head_dim**-0.5
        probs = jax.nn.softmax(jnp.where(seen[None, None, None], scores, -1e30), axis=-1)
        return jnp.einsum("BKGTS,BKSH->BKGTH", probs.astype(v.dtype), v), state.at[layer].add(1)

    return attend


def all_logits(cfg: ModelConfig, params: transformer.Params, tokens: np.ndarray) -> np.ndarray:
    """float32 [B,T,V]; asserts that the attend function was called once in every layer."""

    @jax.jit
    def run(params, tokens):
        visits = jnp.zeros((cfg.num_layers,), jnp.int32)
        hidden, visits = transformer.forward(cfg, params, tokens, attend_fn(cfg), visits)
        return transformer.logits(cfg, params, hidden), visits

    logits, visits = run(params, jnp.asarray(tokens, jnp.int32))
    np.testing.assert_array_equal(visits, 1)
    return np.asarray(logits)
