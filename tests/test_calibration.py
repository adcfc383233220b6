"""Calibration files: found by name or path, and refused where they do not fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nexus import calibration, record
from tests import tiny

GOOD = {"heads": [[0, 1], [2, 3]], "layer_weight": [3.0, 1.0]}


def test_a_file_is_read_and_its_weights_add_up(tmp_path):
    """Layer weights are shares, whatever their sum was written as."""
    record.write_json(tmp_path / "x.json", GOOD | {"provenance": {"seed": 1}})
    found = calibration.load(str(tmp_path / "x.json"), tiny.CFG)
    np.testing.assert_array_equal(found.heads, [[0, 1], [2, 3]])
    np.testing.assert_array_equal(found.layer_weight, np.float32([0.75, 0.25]))
    assert found.provenance == {"seed": 1}


def test_committed_files_fit_their_models_and_say_where_they_come_from():
    """A list of heads without data fingerprint, seed and commit cannot be told from one made on test data."""
    for path in calibration.FOLDER.glob("*.json"):
        found = record.read_json(path)
        assert calibration.path_of(found["model"]) == path
        assert {"fingerprint", "seed", "settings", "environment"} <= found["provenance"].keys()
        assert found["provenance"]["environment"]["git_commit"]
        L, N = len(found["heads"]), 1 + max(map(max, found["heads"]))
        cfg = dataclasses.replace(tiny.CFG, name=path.stem, num_layers=L, num_heads=2 * N)
        assert calibration.load("", cfg).layer_weight.shape == (L,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": [[0, 1]]}, "heads must be \\[2, J\\] numbers in 0..5"),
        ({"heads": [[0, 1], [2, 6]]}, "numbers in 0..5"),
        ({"heads": [[0, 0], [1, 2]]}, "listed twice"),
        ({"heads": "none"}, "is no calibration"),
        ({"layer_weight": [1.0]}, "layer_weight must be 2 numbers"),
        ({"layer_weight": [-1.0, 2.0]}, "of at least 0"),
        ({"layer_weight": [0.0, 0.0]}, "positive sum"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message, tmp_path):
    """A list made for another model would be read as heads of this one."""
    record.write_json(tmp_path / "x.json", GOOD | changes)
    with pytest.raises(ValueError, match=message):
        calibration.load(str(tmp_path / "x.json"), tiny.CFG)


def test_a_missing_file_names_the_command_that_makes_it(tmp_path):
    """And those that are there."""
    with pytest.raises(ValueError, match="is missing; there: .*configs/calibrate_heads.py:model=test"):
        calibration.load(str(tmp_path / "none.json"), tiny.CFG)
