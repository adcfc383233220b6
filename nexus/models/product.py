"""Products with a model's matrices: how those of all layers are stored, and what they are multiplied with.

On CPU the matrices of a name are a tuple of L arrays and not one stack [L,A,C]: XLA copies a layer out of a stack
before every product, which for one token takes as long as the product itself (float32: 40 ms a token from a stack,
20 ms from a tuple; embedded model, two cores, LOG.md, 2026-11-30). A scan over layers takes its own by `lax.switch`.
Accelerators keep stacks, and so do matrices too small for the copy to matter.

`dtype="mixed"` keeps matrices in bfloat16 and everything else (embedding, norms, residual stream, attention, cache) in
float32; products take bfloat16 and sum in float32. A CPU with bfloat16 tiles makes them 3 to 5 times faster so; results
come in float32, because XLA's products that return bfloat16 are slow there.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SMALL = 2**16  # bytes of one layer's matrix up to which a stack stays a stack on CPU

Stored = jax.Array | tuple[jax.Array, ...]
"""The matrices of all layers: [L,A,C], or L arrays [A,C]."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=["every", "layer"], meta_fields=[])
class OfLayer:
    """One layer's matrix of a tuple of them, not copied. every: L arrays [A,C]; layer: int32."""

    def __init__(self, every: tuple[jax.Array, ...], layer: jax.Array) -> None:
        self.every, self.layer = every, layer


def stored(stack: jax.Array) -> Stored:
    """Matrices [L,A,C] as they are kept on this backend."""
    one = stack.size // stack.shape[0] * stack.dtype.itemsize
    return tuple(stack) if jax.default_backend() == "cpu" and one > SMALL else stack


def stacked(w: Stored) -> jax.Array:
    """Stored matrices as one array [L,A,C]; a copy where they are a tuple."""
    return jnp.stack(w) if isinstance(w, tuple) else w


def split(blocks: dict[str, Any]) -> tuple[dict[str, jax.Array], dict[str, tuple[jax.Array, ...]]]:
    """Parameters of all layers: (what a scan goes through, what each layer picks from)."""
    tuples = {name: w for name, w in blocks.items() if isinstance(w, tuple)}
    return {name: w for name, w in blocks.items() if name not in tuples}, tuples


def of_layer(blocks: dict[str, Any], layer: int) -> dict[str, jax.Array]:
    """Parameters of one layer; negative counts from the end."""
    return {name: w[layer] for name, w in blocks.items()}


def product(x: jax.Array, w: jax.Array | OfLayer) -> jax.Array:
    """x [..., A] @ w [A, C], summed in float32, in the dtype of x.

    A matrix that is narrower than x, or one of a tuple, is taken as frozen: gradients reach x alone, and those of the
    matrix are NaN.
    """
    if isinstance(w, OfLayer):
        return _frozen(x, w.every, w.layer)
    return x @ w if w.dtype == x.dtype else _frozen(x, (w,), jnp.int32(0))


@jax.custom_vjp
def _frozen(x: jax.Array, every: tuple[jax.Array, ...], layer: jax.Array) -> jax.Array:
    return _pick(x, every, layer, 0)


def _pick(x: jax.Array, every: tuple[jax.Array, ...], layer: jax.Array, side: int) -> jax.Array:
    return lax.switch(layer, [functools.partial(_dot, w=w, side=side) for w in every], x)


def _dot(x: jax.Array, w: jax.Array, side: int) -> jax.Array:
    """side: the axis of w that is summed over."""
    rows = x.reshape(-1, x.shape[-1]).astype(w.dtype)
    single = len(rows) == 1 and w.dtype == jnp.bfloat16  # two rows are faster than one: only they go to the tiles
    rows = jnp.concatenate([rows, rows]) if single else rows
    out = lax.dot_general(rows, w, (((1,), (side,)), ((), ())), preferred_element_type=jnp.float32)
    return (out[:1] if single else out).astype(x.dtype).reshape(*x.shape[:-1], -1)


def _forward(x: jax.Array, every: tuple[jax.Array, ...], layer: jax.Array) -> tuple[jax.Array, Any]:
    return _frozen(x, every, layer), (every, layer)


def _backward(kept: Any, g: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...], None]:
    every, layer = kept
    return _pick(g, every, layer, 1), tuple(jnp.full_like(w, jnp.nan) for w in every), None


_frozen.defvjp(_forward, _backward)
