"""Products with a model's matrices, which may be stored in fewer bits than what they are multiplied with.

`dtype="mixed"` keeps matrices in bfloat16 and everything else (embedding, norms, residual stream, attention, cache) in
float32; products take bfloat16 and sum in float32. A CPU with bfloat16 tiles makes them 3 to 5 times faster so, and one
token at a time reads half the bytes; results come in float32, because XLA's products that return bfloat16 are slow.

On CPU a bfloat16 matrix is stored as the uint16 of the same bits: XLA copies a layer out of a stack of bfloat16 number
by number, which for one token makes copy and product 5 times slower than with bits (LOG.md, 2026-11-30).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def stored(w: jax.Array) -> jax.Array:
    """A matrix as it is kept in memory on this backend: bfloat16 as uint16 on CPU, anything else as it is."""
    if w.dtype == jnp.bfloat16 and jax.default_backend() == "cpu":
        return lax.bitcast_convert_type(w, jnp.uint16)
    return w


def read(w: jax.Array) -> jax.Array:
    """The numbers of a stored matrix, in their own dtype."""
    return lax.bitcast_convert_type(w, jnp.bfloat16) if w.dtype == jnp.uint16 else w


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., A] @ w [A, C] of a stored matrix, summed in float32, in the dtype of x.

    Where w is narrower than x or stored as bits it is taken as frozen: gradients reach x alone, through a product of
    the same kind, and those of w are NaN.
    """
    return x @ w if w.dtype == x.dtype else _narrow(x, w)


@jax.custom_vjp
def _narrow(x: jax.Array, w: jax.Array) -> jax.Array:
    return _dot(x, read(w), 0)


def _dot(x: jax.Array, w: jax.Array, side: int) -> jax.Array:
    dimensions = (((x.ndim - 1,), (side,)), ((), ()))
    return lax.dot_general(x.astype(w.dtype), w, dimensions, preferred_element_type=jnp.float32).astype(x.dtype)


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _narrow(x, w), w


def _backward(w: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    frozen = None if w.dtype == jnp.uint16 else jnp.full_like(w, jnp.nan)
    return _dot(g, read(w), 1), frozen


_narrow.defvjp(_forward, _backward)
