"""The bound of Prop. 3.1 and what a selective cache makes of dilution."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.dilute import theory
from experiments.dilute.theory import Setting

SETTING = Setting(useful=4, distractors=(8, 512), margin=2.0, noise=1.0, draws=100, kept=32, separations=(0.0, 6.0))


def test_the_bound_holds_on_random_logits():
    """Prop. 3.1 in 1000 draws of all sizes and scales, for the least bound and for gaps at random."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        m, n, scale = rng.integers(1, 9), rng.integers(1, 400), rng.uniform(0, 6)
        useful = scale * rng.normal(size=(1, m)) + rng.uniform(-3, 8)
        others = scale * rng.normal(size=(1, n))
        z = np.concatenate([useful, others], axis=1)[0]
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        mass = theory.mass(useful, others)[0]
        np.testing.assert_allclose(mass, p[:m].sum(), rtol=1e-9)
        assert mass <= theory.tightest(useful, others)[0] * (1 + theory.SLACK)
        gap = rng.uniform(-2, 10)
        near = int((others >= useful.max() - gap).sum())
        assert mass <= theory.bound(m, near, gap) * (1 + theory.SLACK)


def test_the_bound_is_reached_where_all_logits_are_tied():
    """A bound that is never reached could be any number below 1."""
    useful, others = np.full((1, 3), 1.5), np.full((1, 50), 1.0)
    expected = 3 / (3 + 50 * np.exp(-0.5))
    np.testing.assert_allclose(theory.mass(useful, others), expected)
    np.testing.assert_allclose(theory.tightest(useful, others), expected)


def test_retention_of_distractors_weakens_the_bound():
    """Cor. 3.2: distractors that fade (r < 1) leave more; fading is log r on their logits."""
    rng = np.random.default_rng(1)
    useful, others = rng.normal(size=(1, 4)), rng.normal(size=(1, 60))
    assert theory.bound(4, 60, 1.0, retention=0.1) > theory.bound(4, 60, 1.0)
    faded = theory.mass(useful, others + np.log(0.1))[0]
    near = int((others >= useful.max() - 1.0).sum())
    assert theory.mass(useful, others)[0] < faded <= theory.bound(4, near, 1.0, retention=0.1)


def test_best_keeps_the_largest_and_at_most_all():
    score = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    np.testing.assert_array_equal(theory.best(score, 2), [[True, False, True], [False, True, True]])
    assert theory.best(score, 9).all()


def test_rows_of_a_setting():
    """Mass falls with distractors, a telling score brings it back, a score that tells nothing does not."""
    rows = theory.simulate(SETTING, seed=0)
    assert [(row["distractors"], row["cache"], row["separation"]) for row in rows] == [
        (n, *cache) for n in (8, 512) for cache in (("full", None), ("selective", 0.0), ("selective", 6.0))
    ]
    small, same, _, large, lots, told = rows
    assert small["mass"] > 2 * large["mass"] and large["bound"] > large["mass"] and not large["violations"]
    assert same["mass"] == small["mass"] and same["held"] == 1 and same["wins"] == 0  # 12 entries fit into 32
    assert told["mass"] > 3 * large["mass"] and told["held"] > 0.95 and told["wins"] > 0.95
    assert lots["held"] == pytest.approx(32 / 516, abs=0.05) and lots["wins"] < 0.5
    assert rows == theory.simulate(SETTING, seed=0) != theory.simulate(SETTING, seed=1)


def test_more_distractors_leave_the_smaller_ones_as_they_were():
    """Settings that share a seed share their draws: curves over n are of the same logits."""
    alone = theory.simulate(dataclasses.replace(SETTING, distractors=(512, 8)), seed=0)
    assert alone == theory.simulate(SETTING, seed=0)
