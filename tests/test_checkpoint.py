"""Checkpoints: newest and best stay, wrong ones are refused."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from nexus.checkpoint import Checkpoints


class State(NamedTuple):
    step: object
    gates: dict


def state(step: int, width: int = 3) -> State:
    return State(jnp.int32(step), {"w1": jnp.full((2, width), float(step))})


def test_the_newest_and_the_best_are_kept(tmp_path):
    """A long training must not fill the disk, and the best must not be lost to the last."""
    made = Checkpoints(tmp_path / "checkpoints")
    for step, loss in [(2, 3.0), (4, 1.0), (6, 2.0), (8, 2.5)]:
        made.save(step, state(step), loss)
    made.close()
    again = Checkpoints(tmp_path / "checkpoints")
    assert (again.latest(), again.best()) == (8, 4)
    for step in (4, 8):
        np.testing.assert_array_equal(again.restore(step, state(0)).gates["w1"], state(step).gates["w1"])
    with pytest.raises(Exception, match="2"):
        again.restore(2, state(0))
    again.close()


def test_an_empty_folder_has_none(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints")
    assert made.latest() is None and made.best() is None
    made.close()


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path):
    """Both shapes by name, rather than a broadcast or a stack trace."""
    made = Checkpoints(tmp_path / "checkpoints")
    made.save(1, state(1), 1.0)
    made.close()
    again = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match=r"checkpoint 1 .* gates.w1 of shape \(2, 3\); .* needs \(2, 5\)"):
        again.restore(1, state(0, width=5))
    again.close()


def test_a_half_written_checkpoint_does_not_count(tmp_path):
    """Killed while saving, or a full disk: the one before it is the newest."""
    made = Checkpoints(tmp_path / "checkpoints")
    made.save(1, state(1), 1.0)
    made.close()
    (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-0").mkdir()
    again = Checkpoints(tmp_path / "checkpoints")
    assert again.latest() == 1
    again.close()
