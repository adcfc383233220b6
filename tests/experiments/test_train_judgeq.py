"""Training of soft tokens from config to file, on a tiny random model and prompts of random tokens."""

from __future__ import annotations

import re

import numpy as np
import pytest

from configs import train_judgeq as config_file
from experiments import train_judgeq
from nexus import probes, record
from nexus.models.presets import PRESETS
from tests import tiny


def config(**changes):
    made = config_file.get_config("model=tiny-llama,steps=6,batch=2,examples=5,length=64")
    made.data.response, made.train.rows, made.train.save_every, made.train.warmup = 4, 3, 2, 1
    for name, value in changes.items():
        section, key = name.split("__")
        made[section][key] = value
    return made


@pytest.fixture
def prompts(monkeypatch):
    """Without the training text."""
    monkeypatch.setattr(train_judgeq, "prompt", lambda config, model, i: tiny.prompt(20 + i, i, 250))


def test_a_training_that_is_continued_is_the_uninterrupted_one(prompts, tmp_path, monkeypatch):
    """A killed run goes on at its checkpoint, with the same losses; answers are not made twice."""
    train_judgeq.run(config(), tmp_path / "whole")

    class Killed(Exception):
        pass

    def batch(*args):
        if args[-1] == 5:
            raise Killed
        return real(*args)

    real = train_judgeq.batch
    with monkeypatch.context() as patch:
        patch.setattr(train_judgeq, "batch", batch)
        with pytest.raises(Killed):
            train_judgeq.run(config(), tmp_path / "parts")
    answered = (tmp_path / "parts" / "responses.jsonl").read_bytes()
    train_judgeq.run(config(), tmp_path / "parts")
    assert (tmp_path / "parts" / "responses.jsonl").read_bytes() == answered
    logs = [record.read_rows(tmp_path / name / "train.jsonl") for name in ("whole", "parts")]
    assert [row["step"] for row in logs[1]] == list(range(6))
    assert logs[0] == logs[1]
    whole, parts = (probes.load(str(tmp_path / name / "judgeq.safetensors"), PRESETS["tiny-llama"])
                    for name in ("whole", "parts"))  # fmt: skip
    assert whole.shape == (3, 64)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__batch": 9}, "train.batch=9 is more than data.examples=5"),
        ({"train__warmup": 6}, "train.warmup=6 must be below train.steps=6"),
        ({"train__learning_rate": 0.0}, "train.learning_rate must be above 0, got 0.0"),
        ({"data__kinds": ("facts", "songs")}, "data.kinds songs; allowed: facts,"),
        ({"data__response": 0}, "data.response must be at least 1, got 0"),
        ({"model__dtype": "int8"}, "model.dtype='int8'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train_judgeq.resolve(config(**changes))
