"""Counter-causal surprise: a token that its own future predicts carries little and may go.

Gould & van den Hengel, "Back from the Future", arXiv 2607.27600. Entry i sees only entries j with pos_j > pos_i + gap.

    full    x_i = embedding of token i; in every layer q from this new stream at i's own position, k and v as cached;
            y_i = logit of token i at i itself after the last layer (not shifted)
    fast    the last layer only: q from h_i, what came into it when i was read; residual, no feed-forward;
            y_i = logit of token i
    score = -y_i, the same for all layers and heads: one set of tokens for the whole model

Where nothing lies ahead the attention's output is 0, and the newest gap + 1 entries are protected by the row. The
measure log_prob takes the log-softmax for the raw logit; the paper's text speaks of 1 - probability, its code ranks raw
logits, and so do we. Differs from the code: positions, not slots, say what lies ahead; 4 sinks by default (paper: none,
or a frozen prefix).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from nexus import attention
from nexus import buffer as kv
from nexus.models import transformer
from nexus.models.product import of_layer, product
from nexus.scorers.base import Entries, Scorer
from nexus.shapes import EMPTY
from nexus.side import Side

VARIANTS = ("fast", "full")
MEASURES = ("logit", "log_prob")
BLOCK = 128  # entries judged at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterCausal(Scorer):
    """score = -(how well later entries predict this one)."""

    variant: str = "fast"  # fast: the last layer only | full: all layers
    measure: str = "logit"  # logit | log_prob
    gap: int = 0  # tokens directly ahead that do not count

    one_set: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value, allowed in (("variant", self.variant, VARIANTS), ("measure", self.measure, MEASURES)):
            if value not in allowed:
                raise ValueError(f"{name} {value!r}; allowed: {', '.join(allowed)}")
        if self.gap < 0:
            raise ValueError(f"gap must be at least 0, got {self.gap}")

    @property
    def token(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("id", "last_input") if self.variant == "fast" else ("id",)

    def recent(self, budget: int) -> int:
        return self.gap + 1

    def look(self, side: Side) -> tuple[kv.KVBuffer, Any]:
        """How well each token is predicted, [B,M+C]: rows of a head, then the tail."""
        buf = side.buffer
        M, C = buf.layout.budget, buf.layout.tail
        pos = jnp.concatenate([buf.pos[:, :M], buf.tail_pos], axis=1)  # all heads hold what the first one holds
        token = {name: jnp.concatenate([x, buf.tail_token[name]], axis=1) for name, x in buf.token.items()}
        size = min(BLOCK, M + C)
        blocks = [_blocks(x, size) for x in (pos, jnp.where(pos >= 0, token["id"], 0))]
        inputs = _blocks(token["last_input"], size) if self.variant == "fast" else jnp.zeros(blocks[0].shape)
        y = lax.map(lambda x: self._predicted(side, *x), (*blocks, inputs))  # [blocks,B,size]
        y = jnp.moveaxis(y, 0, 1).reshape(pos.shape[0], -1)[:, : M + C]
        return buf, jnp.where(pos >= 0, y, 0.0)

    def _predicted(self, side: Side, pos: jax.Array, ids: jax.Array, inputs: jax.Array) -> jax.Array:
        """One block [B,n]."""
        cfg, params = side.cfg, side.params
        if self.variant == "full":
            hidden, _ = side.run(ids, pos, lambda layer, into, q, k, v: (self._ahead(side, layer, q, pos), into), ())
        else:
            hidden = self._last_layer(side, pos, inputs)
        if self.measure == "log_prob":
            logits = jax.nn.log_softmax(transformer.logits(cfg, params, hidden), axis=-1)
            return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
        column = params["embed"][ids] if cfg.tied_embeddings else params["head"].T[ids]
        return jnp.einsum("btd,btd->bt", hidden, column, preferred_element_type=jnp.float32)

    def _last_layer(self, side: Side, pos: jax.Array, inputs: jax.Array) -> jax.Array:
        """Final hidden states of a block whose last layer looks ahead and has no feed-forward. inputs [B,n,D]."""
        cfg = side.cfg
        last = of_layer(side.params["blocks"], -1)
        ahead = lambda q, k, v: (self._ahead(side, jnp.int32(cfg.num_layers - 1), q, pos), None)  # noqa: E731

        def attend(q, k, v, x):
            out, _ = side.attend(q, k, v, pos, ahead)
            return out, out

        block: Any = transformer.Block(cfg)
        _, out = block.apply({"params": last}, inputs, attend)  # [B,K,G,n,H]; what else the block computes is not used
        out = jnp.moveaxis(out, 3, 1).reshape(*pos.shape, -1).astype(inputs.dtype)
        return transformer.rms_norm(inputs + product(out, last["wo"]), side.params["final_norm"], cfg.rms_eps)

    def _ahead(self, side: Side, layer: jax.Array, q: jax.Array, pos: jax.Array) -> attention.Partial:
        """Attention of folded queries at pos [B,n] over all entries more than `gap` ahead of them."""
        buf, layout = side.buffer, side.buffer.layout
        K, M = layout.num_kv_heads, layout.budget
        part = attention.empty_partial(q)

        def see(part, k, v, key_pos):
            visible = (key_pos[:, None] >= 0) & (key_pos[:, None] > pos[..., None] + self.gap)  # [B,n,S]
            mask = jnp.tile(visible, (1, layout.num_groups, 1))[:, None]
            return attention.update(part, q, k, v, mask, (key_pos >= 0)[:, None])

        rows = [x.reshape(x.shape[0], -1, M, layout.head_dim) for x in (buf.k, buf.v)]
        k, v = (lax.dynamic_slice_in_dim(x, layer * K, K, axis=1) for x in rows)
        part = see(part, k, v, buf.pos[:, :M])
        tail_k, tail_v = kv.of_layer((buf.tail_k, buf.tail_v), layer)
        return see(part, tail_k, tail_v, buf.tail_pos)

    def score(self, entries: Entries, state: Any, rng: jax.Array) -> jax.Array:
        return -entries.of_tokens(entries.looked)


def _blocks(x: jax.Array, size: int) -> jax.Array:
    """[B,S,...] -> [blocks,B,size,...], padded at the end: with EMPTY, which is -1, for positions; anything else there
    is never looked at."""
    more = -x.shape[1] % size
    fill = EMPTY if x.ndim == 2 else 0
    x = jnp.pad(x, ((0, 0), (0, more), *((0, 0),) * (x.ndim - 2)), constant_values=fill)
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)
