"""The model of an experiment, or one line."""

from __future__ import annotations

import pytest

from configs import tiny
from experiments import models
from experiments.plan import ConfigError


def test_a_name_that_nothing_has_is_one_line():
    """A stack trace from five libraries down tells a user nothing."""
    config = tiny.get_config("model=/nowhere/at/all")
    with pytest.raises(ConfigError, match="model.name='/nowhere/at/all': "):
        models.load(config)


def test_positions_are_asked_for_by_field():
    """The field that asks for too many is named, with what there is."""
    config = tiny.get_config()
    most = models.load(config, eval__lengths=1024).config.max_position
    with pytest.raises(ConfigError, match=f"eval.lengths={most + 1} goes beyond the {most} positions of tiny-llama"):
        models.load(config, eval__lengths=most + 1)
