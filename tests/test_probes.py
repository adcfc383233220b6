"""Files of soft tokens, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nexus import probes
from tests import tiny

ROWS = np.random.default_rng(0).normal(size=(5, tiny.CFG.dim)).astype(np.float32)


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "deep" / "rows.safetensors"
    probes.save(path, ROWS, tiny.CFG, {"steps": 3})
    np.testing.assert_array_equal(probes.load(str(path), tiny.CFG), ROWS)
    assert [p.name for p in path.parent.iterdir()] == ["rows.safetensors"]


def test_rows_of_another_model_are_refused_with_both_shapes(tmp_path):
    """A width that is broadcast or cut gives scores that mean nothing."""
    path = tmp_path / "rows.safetensors"
    probes.save(path, ROWS, tiny.CFG, {})
    other = dataclasses.replace(tiny.CFG, name="other", dim=48)
    with pytest.raises(ValueError, match=r"for model 'test' and do not fit 'other'.*\(5, 32\).*\(5, 48\)"):
        probes.load(str(path), other)


def test_other_files_and_unknown_names_are_refused(tmp_path):
    """The message says how to get some."""
    path = tmp_path / "text.safetensors"
    path.write_text("not a tensor")
    with pytest.raises(ValueError, match="is not a file of soft tokens"):
        probes.load(str(path), tiny.CFG)
    with pytest.raises(ValueError, match="probes='judgeq' is no file.*model 'test'.*train_judgeq"):
        probes.load("judgeq", tiny.CFG)


def test_untrained_rows_lie_near_the_mean():
    """The same each time, and no two alike."""
    embed = tiny.model().params["embed"]
    rows = np.asarray(probes.init(embed))
    assert rows.shape == (probes.COUNT, tiny.CFG.dim)
    np.testing.assert_array_equal(rows, probes.init(embed))
    assert len(np.unique(rows, axis=0)) == probes.COUNT
    assert np.abs(rows - np.asarray(embed).mean(axis=0)).max() < 0.6 * np.asarray(embed).std()
