"""Rotary position embedding, rotate-halves convention, with the frequency scalings of the supported model families.

Paper: Su et al., arXiv 2104.09864.   angle[p, i] = p * inv_freq[i],  i < H/2
    out[i]       = x[i] * cos[i] - x[i + H/2] * sin[i]
    out[i + H/2] = x[i + H/2] * cos[i] + x[i] * sin[i]
Differs from the paper: coordinate i is paired with i + H/2, as in the published safetensors weights, not with i + 1.
Weights stored for interleaved pairs (GGUF files of architecture llama) are reordered when they are loaded.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Position interpolation (arXiv 2306.15595): every frequency divided by `factor`."""

    factor: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: long waves are divided by `factor`, short ones kept, those between blended. Lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorScaling:
    """One divisor per frequency, as GGUF files store a scaling that was already worked out. Length H/2."""

    factors: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """`theta` is the base of the frequencies; `scaling` None leaves them as in the paper."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | FactorScaling | None = None


def inv_freq(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Scaled frequencies, radians per token: float32 [H/2].

    Raises:
      ValueError: odd head size, or a FactorScaling of another length.
    """
    if head_dim % 2:
        raise ValueError(f"rope needs an even head size: head_dim={head_dim}")
    freq = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match rope.scaling:
        case None:
            scaled = freq
        case LinearScaling(factor=factor):
            scaled = freq / factor
        case Llama3Scaling():
            scaled = _llama3(freq, rope.scaling)
        case FactorScaling(factors=factors):
            if len(factors) != head_dim // 2:
                raise ValueError(f"rope factors must have head_dim/2 values: {len(factors)}, head_dim={head_dim}")
            scaled = freq / np.asarray(factors)
        case _:
            raise ValueError(f"unknown rope scaling {rope.scaling!r}")
    return scaled.astype(np.float32)


def _llama3(freq: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Full turns made within the original context decide: at most `low` divide, at least `high` keep, blend between."""
    turns = scaling.original_max_position * freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * freq + (1 - keep) * freq / scaling.factor


def cos_sin(pos: jax.Array, inv_freq: jax.Array | np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine, each float32 [..., H/2], of the true positions `pos` int32 [...]."""
    freq = jnp.asarray(inv_freq, jnp.float32).reshape((1,) * pos.ndim + (-1,))
    angle = pos.astype(jnp.float32)[..., None] * freq
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate x [..., H] by the angles of `cos_sin`; same shape and dtype as x, computed in float32.

    cos and sin [..., H/2] broadcast against the leading axes of x from the right: with q [B,K,G,T,H] pass [T,H/2], or
    [B,1,1,T,H/2] where positions differ between sequences.
    """
    lead = (1,) * (x.ndim - cos.ndim)
    cos, sin = cos.reshape(lead + cos.shape), sin.reshape(lead + sin.shape)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
