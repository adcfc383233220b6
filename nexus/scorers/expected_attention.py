"""Expected attention: what queries that have not come yet will look at, if they are like those that have.

"Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution", arXiv 2510.00636.
Queries before RoPE are taken as one Gaussian per query head, of mean mu and covariance Sg over all tokens after the
first `skip`. With Rm the mean of the RoPE matrices of the next `future` positions, mu' = Rm mu, Sg' = Rm Sg Rm^T:

    z_i   = mu'.k_i / sqrt(H) + k_i^T Sg' k_i / (2H)        log of the expected exp(q.k_i / sqrt(H))
    p_i   = softmax of z over the head's entries without the first `skip` positions
    score = (mean over G of p_i + epsilon) * norm2(v_i)

The statistics are kept as running mean and centred sum of outer products, merged chunk by chunk (Chan et al. 1983), so
that large means cost no precision: H + H * H float32 per layer and query head, whatever the length. Queries arrive
rotated and are turned back by their own positions. Differs from the public code: it is cut after every chunk and while
decoding, with the statistics of all tokens so far (the code: once after the prompt).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import rope
from nexus.models.config import ModelConfig
from nexus.scorers.base import Call, Entries, Scorer
from nexus.shapes import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedAttention(Scorer):
    """score = expected attention of future queries times the norm of the value."""

    future: int = 512  # positions that are averaged over
    skip: int = 4  # first tokens: left out of the statistics and of the softmax, where they score 0
    covariance: bool = True  # use that of the queries beside their mean
    value_norm: bool = True  # times the norm of the value
    epsilon: float = 0.0  # added to attention first

    scale: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        if self.future < 1:
            raise ValueError(f"future must be at least 1, got {self.future}")
        if self.skip < 0:
            raise ValueError(f"skip must be at least 0, got {self.skip}")
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    def weights(self, cfg: ModelConfig, params: Any) -> Any:
        """The frequencies of RoPE, the same for every layer: [L,H/2]."""
        freq = jnp.asarray(rope.inv_freq(cfg.rope, cfg.head_dim))
        return {"inv_freq": jnp.tile(freq, (cfg.num_layers, 1))}

    def init_state(self, layout: Layout, batch: int) -> Any:
        L, K, G, H = layout.num_layers, layout.num_kv_heads, layout.num_groups, layout.head_dim
        state = {"count": jnp.zeros((L, batch)), "mean": jnp.zeros((L, batch, K, G, H))}
        return state | ({"scatter": jnp.zeros((L, batch, K, G, H, H))} if self.covariance else {})

    def observe(self, call: Call, state: Any, table: dict[str, jax.Array], tail: dict[str, jax.Array]):
        B, K, _, H = call.q.shape
        counted = call.pos >= self.skip  # [B,T]
        cos, sin = (x[:, None, None] for x in rope.cos_sin(jnp.maximum(call.pos, 0), call.weights["inv_freq"]))
        q = call.q.reshape(B, K, call.groups, -1, H).astype(jnp.float32) * math.sqrt(H)
        q = jnp.where(counted[:, None, None, :, None], rope.rotate(q, cos, -sin), 0.0)
        return _merged(state, q, counted), table, tail

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        seen = entries.buffer.seen
        future = seen[:, None] + jnp.arange(self.future, dtype=jnp.int32)
        turn = [x.mean(axis=1) for x in rope.cos_sin(future, entries.weights["inv_freq"][0])]  # [B,H/2] each
        G, H = entries.buffer.layout.num_groups, entries.buffer.layout.head_dim
        own = {"mean": rope.rotate(state["mean"], *(x[:, None, None] for x in turn)) / math.sqrt(H)}
        if self.covariance:
            spread = state["scatter"] / jnp.maximum(state["count"], 1.0)[:, :, None, None, None, None]
            turn = [x[:, None, None, None] for x in turn]
            half = jnp.swapaxes(rope.rotate(spread, *turn), -1, -2)
            own["spread"] = rope.rotate(half, *turn) / (2 * H)
        found = entries.each(_logits_and_norm, own, G + 1)  # [B,P,n,G+1]
        p = entries.head_softmax(found[..., :G], entries.valid & (entries.pos >= self.skip)).mean(axis=-1)
        return (p + self.epsilon) * found[..., G] if self.value_norm else p


def _merged(state: Any, q: jax.Array, counted: jax.Array) -> Any:
    """One layer's statistics with the queries q [B,K,G,T,H] of a call, 0 where counted [B,T] is false."""
    new = counted.sum(axis=1).astype(jnp.float32)
    count = state["count"] + new
    wide = lambda x: x[:, None, None, None]  # noqa: E731  [B] -> [B,1,1,1]
    mean = q.sum(axis=3) / wide(jnp.maximum(new, 1.0))
    step = mean - state["mean"]
    merged = {"count": count, "mean": state["mean"] + step * wide(new / jnp.maximum(count, 1.0))}
    if "scatter" not in state:
        return merged
    centred = jnp.where(counted[:, None, None, :, None], q - mean[:, :, :, None], 0.0)
    scatter = jnp.einsum("BKGTX,BKGTY->BKGXY", centred, centred, precision=lax.Precision.HIGHEST)
    both = wide(state["count"] * new / jnp.maximum(count, 1.0))[..., None]
    return merged | {"scatter": state["scatter"] + scatter + step[..., None] * step[..., None, :] * both}


def _logits_and_norm(k: jax.Array, v: jax.Array, own: dict[str, jax.Array]) -> jax.Array:
    """k, v [S,H], mean [G,H] and spread [G,H,H], both scaled -> z of every group and norm2(v): [S,G+1]."""
    z = jnp.einsum("SX,GX->SG", k, own["mean"], precision=lax.Precision.HIGHEST)
    if "spread" in own:
        turned = jnp.einsum("SX,GXY->SGY", k, own["spread"], precision=lax.Precision.HIGHEST)
        z = z + (turned * k[:, None]).sum(axis=-1)
    return jnp.concatenate([z, jnp.sqrt((v * v).sum(axis=-1, keepdims=True))], axis=-1)
