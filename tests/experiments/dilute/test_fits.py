"""Fits over bins of ages: each law is found where it holds, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.dilute import decay, fits

WHERE = decay.bins(2048, 24)
AGE = np.arange(decay.ages(2048), dtype=float)


def test_a_geometric_curve_is_found_to_be_one():
    curve = decay.binned(0.3 * np.exp(-0.01 * AGE), WHERE)
    right, wrong = fits.fit(curve, fits.geometric(WHERE)), fits.fit(curve, fits.power_law(WHERE))
    assert right.value == pytest.approx(0.01, rel=0.02) and np.exp(right.scale) == pytest.approx(0.3, rel=0.05)
    assert right.factor < 1.1 < 1.5 < wrong.factor
    np.testing.assert_allclose(right.curve, curve, rtol=0.3)


def test_a_heavy_tail_is_found_to_be_one():
    """Bins are averaged alike in data and curve: the wide ones at the end bend nothing."""
    curve = decay.binned(0.2 * np.maximum(AGE, 1) ** -1.2, WHERE)
    right, wrong = fits.fit(curve, fits.power_law(WHERE)), fits.fit(curve, fits.geometric(WHERE))
    assert right.value == pytest.approx(1.2, abs=0.011) and right.factor < 1.02 and wrong.factor > 2


def test_what_was_not_fitted_is_judged_apart():
    """A curve that is geometric up to age 64 and flat behind is foretold badly by its beginning."""
    curve = decay.binned(np.exp(-0.1 * np.minimum(AGE, 64)), WHERE)
    young = np.array([high - 1 <= 64 for _, high in WHERE])
    early = fits.fit(curve, fits.geometric(WHERE), young)
    assert early.factor < 1.1 and early.beyond > 100
    assert np.isnan(fits.fit(curve, fits.geometric(WHERE)).beyond)


def test_many_curves_at_once_and_one_that_is_given():
    curves = np.stack([decay.binned(np.exp(-rate * AGE), WHERE) for rate in (0.001, 0.02)])
    found = fits.fit(curves, fits.geometric(WHERE))
    np.testing.assert_allclose(found.value, [0.001, 0.02], rtol=0.02)
    assert found.curve.shape == curves.shape
    scaled = fits.fit(7 * curves[0], fits.given("own", curves[0]))
    assert np.exp(scaled.scale) == pytest.approx(7) and scaled.factor == pytest.approx(1)


def test_half_life_of_a_geometric_curve_is_the_same_at_every_age():
    curve = decay.binned(np.exp(-0.02 * AGE), decay.bins(2048, 200))
    lives = [fits.half_life(curve, decay.bins(2048, 200), age) for age in (8, 32, 128)]
    np.testing.assert_allclose(lives, np.log(2) / 0.02, rtol=0.1)
    assert fits.half_life(np.ones(len(WHERE)), WHERE, 16) == float("inf")
