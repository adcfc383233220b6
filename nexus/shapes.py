"""The notation of the whole package, and the static shape of a cache.

Upper-case letters, in shape comments and einsum strings alike (as in `jax.nn.dot_product_attention`):

    B  batch                      K  key/value heads             V  vocabulary
    T  tokens of this call        G  query heads per kv head     C  chunk: columns of the dense tail
    S  slots of one head          N  query heads, N = K * G      M  budget: kept slots per layer and kv head, the mean
    L  layers                     H  head size                   E  rows of the packed table, E = M * L * K
    D  model width                F  feed-forward width          O  owners, O = L * K; owner o = layer * K + kv head

Query head n belongs to kv head n // G: arrays are split as (K, G), never as (G, K).
An allocator divides the owners into P *pools*. The rows of one pool are shared by its heads, and only by them:
P = 1 is a global budget, P = L one budget per layer, P = L * K one budget per head.
"""

from __future__ import annotations

import dataclasses

EMPTY = -1  # position of a row that holds nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Static shape of a KV buffer: hashable, so that it can be a static argument of a compiled function."""

    num_layers: int  # L
    num_kv_heads: int  # K
    num_groups: int  # G
    head_dim: int  # H
    budget: int  # M
    tail: int  # C
    pools: int  # P
    dtype: str = "float32"  # of keys and values
    dim: int = 0  # D and V of the model, for methods that keep something of a token; 0 where none does
    vocab_size: int = 0

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "num_groups", "head_dim", "budget", "tail"):
            if getattr(self, name) < 1:
                raise ValueError(f"Layout.{name} must be at least 1, got {getattr(self, name)}")
        if self.pools not in (1, self.num_layers, self.owners):
            raise ValueError(f"Layout.pools must be 1, {self.num_layers} or {self.owners}, got {self.pools}")

    @property
    def owners(self) -> int:
        """O = L * K."""
        return self.num_layers * self.num_kv_heads

    @property
    def rows(self) -> int:
        """E = M * L * K rows of the table, per sequence."""
        return self.budget * self.owners

    @property
    def pool_heads(self) -> int:
        """Heads that share one pool."""
        return self.owners // self.pools

    @property
    def pool_rows(self) -> int:
        """Table rows of one pool."""
        return self.budget * self.pool_heads

    @property
    def dense(self) -> bool:
        """Every head owns its own pool: segments stand at fixed multiples of M and the table is a dense array."""
        return self.pools == self.owners

    def bytes_per_row(self) -> int:
        """Bytes of one key and one value."""
        return 2 * self.head_dim * (2 if self.dtype == "bfloat16" else 4)

    def kv_bytes(self, batch: int = 1) -> int:
        """Bytes of keys and values that are allocated, table and tail together."""
        return batch * (self.rows + self.owners * self.tail) * self.bytes_per_row()
