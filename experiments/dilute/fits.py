"""Curves over age, fitted in the logarithm: does attention fall geometrically, or with a heavy tail?

    geometric    c beta^age       the retention of "Make Each Token Count" (arXiv 2605.09649, Thm. 3.3) and TRIM-KV
    power law    c age^-p         a heavy tail: the rate of decay itself falls as 1 / age

Both have two numbers to choose. The parameter comes from a fine grid, the scale c is the best one for it; a family is
averaged over each bin of ages as the data are, so wide bins bias nobody. The error is the root mean square of the
difference of logarithms over the bins, which are equally long in log(age), and is stated as a factor: 1.1 means that
curve and data typically differ by 10 %.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

Bins = list[tuple[int, int]]
LEAST = 1e-12  # attention below this is rounding
RATES = np.concatenate([[0.0], np.geomspace(1e-6, 5.0, 700)])  # -log beta per token
POWERS = np.linspace(0.0, 5.0, 501)


@dataclasses.dataclass(frozen=True)
class Family:
    """Curves of one parameter. values [P]; shapes [P,bins], the logarithm of each bin's mean at scale 1."""

    name: str
    values: np.ndarray
    shapes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Fit:
    """The best member for each curve, [...]. `beyond` is the error where nothing was fitted, NaN where all was."""

    value: np.ndarray
    scale: np.ndarray  # log c
    factor: np.ndarray  # exp of the root mean square error, fitted bins
    beyond: np.ndarray  # the same over the other bins
    curve: np.ndarray  # [...,bins] the fitted curve


def geometric(where: Bins) -> Family:
    """beta^age; the parameter is -log beta, so its half-life is log 2 / parameter."""
    return Family("geometric", RATES, _shapes(where, lambda age: -RATES[:, None] * age))


def power_law(where: Bins) -> Family:
    """age^-p."""
    return Family("power law", POWERS, _shapes(where, lambda age: -POWERS[:, None] * np.log(age)))


def given(name: str, curve: np.ndarray) -> Family:
    """One curve [bins], of which only the scale is free."""
    return Family(name, np.zeros(1), np.log(np.maximum(curve, LEAST))[None])


def _shapes(where: Bins, log_curve: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Log of the mean over each bin, [P,bins], without underflow."""
    parts = [log_curve(np.arange(low, high, dtype=np.float64)) for low, high in where]
    tops = [part.max(axis=1) for part in parts]
    return np.stack([t + np.log(np.exp(p - t[:, None]).mean(axis=1)) for p, t in zip(parts, tops, strict=True)], axis=1)


def fit(curves: np.ndarray, family: Family, used: np.ndarray | None = None) -> Fit:
    """The closest member of a family to each curve [...,bins]; used: [bins] bool, bins that are fitted (all)."""
    used = np.ones(curves.shape[-1], bool) if used is None else used
    y = np.log(np.maximum(curves, LEAST))
    off = y[..., None, :] - family.shapes  # [...,P,bins]
    scale = off[..., used].mean(axis=-1)  # [...,P]
    error = np.sqrt(((off[..., used] - scale[..., None]) ** 2).mean(axis=-1))
    best = error.argmin(axis=-1)
    pick = lambda x: np.take_along_axis(x, best[..., None], axis=-1)[..., 0]  # noqa: E731
    left = off[..., ~used] - scale[..., None]
    rest = np.sqrt((left**2).mean(axis=-1)) if left.shape[-1] else np.full(error.shape, np.nan)
    chosen = pick(scale)
    return Fit(
        value=family.values[best], scale=chosen, factor=np.exp(pick(error)), beyond=np.exp(pick(rest)),
        curve=np.exp(chosen[..., None] + family.shapes[best]),
    )  # fmt: skip


def middles(where: Bins) -> np.ndarray:
    """Geometric middle of each bin's ages, [bins]."""
    return np.array([np.sqrt(low * (high - 1)) for low, high in where])


def half_life(curve: np.ndarray, where: Bins, age: float) -> float:
    """Tokens in which a curve [bins] halves, read off between half and twice an age; inf where it does not fall.

    A geometric curve gives the same number at every age.
    """
    at, y = np.log(middles(where)), np.log(np.maximum(curve, LEAST))
    low, high = np.interp(np.log([age / 2, age * 2]), at, y)
    return float(np.log(2) * 1.5 * age / (low - high)) if low > high else float("inf")
