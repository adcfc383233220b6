"""Shares: how many entries every layer or head may keep, as whole numbers whose sum is exact.

    pyramid      a line over layers                       PyramidKV, Cai et al., arXiv 2406.02069
    adaptive     a flat ranking's counts, smoothed        Ada-KV, Feng et al., arXiv 2407.11550
    calibrated   weights measured in advance              CompressKV, Lin et al., arXiv 2606.24467
    norm_loss    what a loss of attention norm allows     DBudgetKV / ReFreeKV, Ni et al., arXiv 2502.16886

Fractions become whole numbers by largest remainder in integer arithmetic, where public codes round each number and
drift. All functions are pure and traced; budgets and options are static.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

SPREADS = ("free", "all")


def largest_remainder(part: jax.Array, whole: int) -> jax.Array:
    """part / whole [...,n] int32 as whole numbers whose sum is that of the fractions; ties to the lower index."""
    base, rest = part // whole, part % whole
    left = rest.sum(axis=-1, keepdims=True) // whole
    rank = jnp.argsort(jnp.argsort(-rest, axis=-1, stable=True), axis=-1)
    return base + (rank < left)


def pyramid(
    budget: int, num_layers: int, beta: int, reserved: jax.Array, seen: jax.Array, spread: str = "free"
) -> jax.Array:
    """Entries of a head of every layer, [B,L] int32, falling; their sum is L * M.

        c = M - r                      lo = c / beta,  hi = 2 c - lo
        hi >= P - r:  hi = P - r,      lo = 2 c - hi
        layer l holds r + hi - l (hi - lo) / (L - 1)

    spread="all" spreads M in the place of c, the protected entries inside; equally where lo falls below r (kvpress).

    Args:
        reserved: [B] int32, r, protected entries of a head (the paper's window).
        seen: [B] int32, P, tokens seen. While P <= M all layers are equal, then the slope grows until beta sets it: no
            layer is promised more than there is.
    """
    _check_size(budget, 2 * beta * num_layers)
    if num_layers == 1:
        return jnp.full((*reserved.shape, 1), budget, jnp.int32)
    c = (budget - reserved if spread == "free" else jnp.full_like(reserved, budget))[:, None]
    room = jnp.minimum(seen - reserved, 2 * budget)[:, None] * beta  # from here all numbers count parts of 1 / beta
    hi = jnp.minimum(c * (2 * beta - 1), jnp.maximum(room, c * beta))
    if spread == "all":
        hi = jnp.where(2 * beta * c - hi < reserved[:, None] * beta, c * beta, hi)
    lo = 2 * beta * c - hi
    steps = num_layers - 1
    share = largest_remainder(hi * steps - jnp.arange(num_layers) * (hi - lo), beta * steps)
    return share + reserved[:, None] if spread == "free" else share


def adaptive(budget: int, flat: jax.Array, numerator: int, denominator: int) -> jax.Array:
    """(1 - alpha) f + alpha mean(f) over the last axis, alpha = numerator / denominator; the sum stays.

    flat: [...,K] int32, f, entries of each head among the K * M best of the layer.
    """
    K, total = flat.shape[-1], flat.sum(axis=-1, keepdims=True)
    _check_size(budget, denominator * K * K)
    return largest_remainder((denominator - numerator) * K * flat + numerator * total, denominator * K)


def calibrated(budget: int, weight: jax.Array, least: int, most: int) -> jax.Array:
    """Entries of a head of every layer, [L] int32, between `least` and most * M; their sum is L * M.

        M_l = least + round(w_l (L M - L least)),  cut to [least, most M]
        residue, one at a time: to the largest w_l below its cap, or from the smallest w_l above `least`

    weight: [L] float32, sum 1. Equal weights are taken in the order of layers.
    """
    L = weight.shape[0]
    share = least + jnp.round(weight * (L * (budget - least))).astype(jnp.int32)
    share = jnp.clip(share, least, most * budget)
    over = share.sum() - L * budget
    down, up = jnp.argsort(-weight, stable=True), jnp.argsort(weight, stable=True)
    added = _in_turn(most * budget - share[down], jnp.maximum(-over, 0))
    taken = _in_turn(share[up] - least, jnp.maximum(over, 0))
    return share.at[down].add(added).at[up].add(-taken)


def norm_loss(square: jax.Array, count: jax.Array, tau: float) -> jax.Array:
    """How many entries of every layer may go, [B,L] int32: the largest e with (N(0) - N(e)) / N(0) <= tau.

        N(e) = mean over the query heads of sqrt(sum_{j >= e} a_j^2)

    Computed as the mean of lost / (sqrt(total) + sqrt(total - lost)), lost a running sum: no difference of two norms
    that are nearly equal. 0 where N(0) = 0.

    Args:
        square: [B,L,K,n,G] float32, a^2 of the evictable entries in their order, 0 behind them.
        count: [B,L,K] int32, how many are evictable, the same for all heads of a layer.
    """
    lost = jnp.cumsum(square, axis=3)
    total = lost[..., -1:, :]
    apart = jnp.sqrt(total) + jnp.sqrt(jnp.maximum(total - lost, 0.0))
    loss = jnp.where(lost > 0, lost / jnp.where(apart > 0, apart, 1.0), 0.0).mean(axis=(2, 4))  # [B,L,n]
    whole = jnp.sqrt(total).mean(axis=(2, 3, 4))[..., None]
    allowed = (jnp.minimum(loss, whole) <= tau * whole) & (whole > 0)
    allowed &= jnp.arange(loss.shape[-1]) < count.max(axis=2)[..., None]
    return jnp.cumprod(allowed.astype(jnp.int32), axis=-1).sum(axis=-1)


def _in_turn(room: jax.Array, amount: jax.Array) -> jax.Array:
    """Hands `amount` out to room [n], each as much as it takes before the next gets any."""
    before = jnp.cumsum(room) - room
    return jnp.clip(amount - before, 0, room)


def _check_size(budget: int, factor: int) -> None:
    if budget * factor >= 2**31:
        raise ValueError(f"budget {budget} is too large for exact shares: at most {(2**31 - 1) // factor} here")
