"""Files of trained numbers: found, written whole, read back."""

from __future__ import annotations

import numpy as np
import pytest

from nexus import gates, shipped
from nexus.models.presets import PRESETS
from tests import tiny


def test_what_is_written_is_read(tmp_path):
    """Header and arrays; nothing half-written stays beside it."""
    path = tmp_path / "deep" / "a.safetensors"
    shipped.write(path, {"x": np.arange(3, dtype=np.float16)}, tiny.CFG, {"seed": 1}, gate={"width": 8})
    arrays, header = shipped.read(str(path), "numbers")
    np.testing.assert_array_equal(arrays["x"], np.arange(3, dtype=np.float32))
    assert arrays["x"].dtype == np.float32
    assert header == {"model": "test", "about": {"seed": 1}, "gate": {"width": 8}}
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_a_name_is_looked_up_for_the_model():
    """Numbers of another model are not near enough; the message says how to get one's own."""
    with pytest.raises(ValueError, match="probes='mine' is no file.*model 'test' .for others: none"):
        shipped.find("probes", "mine", tiny.CFG, "configs/train_judgeq.py")


def test_what_is_shipped_says_how_it_was_made():
    """A file without provenance cannot be checked or made again."""
    files = sorted(shipped.FOLDER.glob("*.safetensors"))
    assert files
    for file in files:
        arrays, header = shipped.read(str(file), "numbers")
        about = header["about"]
        assert {"git_commit", "steps", "config"} <= set(about) and "dirty" not in about["git_commit"]
        assert all(np.isfinite(x).all() for x in arrays.values())
    assert sum(file.stat().st_size for file in files) < 8e6


def test_gates_of_another_model_do_not_come_by_name():
    with pytest.raises(ValueError, match="nothing of this name is shipped for model 'tiny-llama'"):
        gates.load("global_retention", PRESETS["tiny-llama"])
