"""The training experiment: resumes with the same losses, stops cleanly, refuses what cannot run."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from configs import train_retention
from experiments import train
from experiments.plan import ConfigError
from experiments.training import dev, settings
from nexus import gates, record
from nexus.models.load import load_model
from nexus.training import rows, texts
from tests.training.conftest import PROSE


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setattr(texts, "library", lambda: (PROSE,))
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rows, "BLOCK", 4)


def config(**changes):
    c = train_retention.get_config("model=tiny-llama,steps=6,batch=2,row=1024,budget=8")
    c.train.save_every, c.train.warmup, c.data.rows, c.dev.every = 2, 2, 8, 0
    c.gate.width, c.gate.bias = 8, 2.0
    for name, value in changes.items():
        section, key = name.split("__")
        c[section][key] = value
    return c


def run(c, folder):
    record.open_workdir(folder, train.resolve(c).to_dict())
    train.run(c, folder)
    return record.read_rows(folder / "train.jsonl")


def losses(found):
    return [row["loss"] for row in found]


def test_a_run_leaves_gates_losses_and_a_report(tmp_path):
    """Everything a reader needs; the gates load again for the same model and know where they come from."""
    found = run(config(), tmp_path / "run")
    assert [row["step"] for row in found] == list(range(6)) and np.isfinite(losses(found)).all()
    model = load_model("tiny-llama")
    shape, _ = gates.load(str(tmp_path / "run" / "gates.safetensors"), model.config)
    assert (shape.width, shape.bias) == (8, 2.0)
    text = (tmp_path / "run" / "report.md").read_text()
    assert "6 steps of 2 rows of 1024 tokens, seed 0" in text and "commit" in text
    assert (tmp_path / "run" / "figures" / "loss.png").stat().st_size > 10_000


def signalled(monkeypatch, step: int, number: int) -> None:
    """This process gets a signal after a step, as long as the patch lasts."""
    advance = train.Steps.advance

    def patched(self, row):
        advance(self, row)
        if row["step"] == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(train.Steps, "advance", patched)


def test_a_killed_run_goes_on_with_the_same_losses(tmp_path, monkeypatch, capsys):
    """SIGTERM in step 2 saves and ends; the same command does the rest as if nothing had happened."""
    whole = run(config(), tmp_path / "whole")
    advance = train.Steps.advance
    signalled(monkeypatch, 2, signal.SIGTERM)
    part = run(config(), tmp_path / "run")
    assert len(part) == 3 and "stopped by SIGTERM after step 2" in capsys.readouterr().out
    assert not (tmp_path / "run" / "gates.safetensors").exists()
    monkeypatch.setattr(train.Steps, "advance", advance)
    np.testing.assert_allclose(losses(run(config(), tmp_path / "run")), losses(whole), rtol=1e-5)


def test_ctrl_c_saves_the_step_at_hand(tmp_path, monkeypatch):
    """Finished steps are kept, as launch.py says; what ends is the process and not the training. The handler that was
    there is there again, also in a background job, where Ctrl-C is ignored."""
    before = signal.getsignal(signal.SIGINT)
    advance = train.Steps.advance
    signalled(monkeypatch, 3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "run")
    assert len(record.read_rows(tmp_path / "run" / "train.jsonl")) == 4
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(train.Steps, "advance", advance)
    again = []
    monkeypatch.setattr(
        train.Training, "batch", lambda self, step, f=train.Training.batch: again.append(step) or f(self, step)
    )
    assert [row["step"] for row in run(config(), tmp_path / "run")] == list(range(6)) and again == [4, 5]


def test_cuts_that_cannot_be_met_are_refused():
    """Said before anything is loaded: accepted, they would train nothing."""
    with pytest.raises(ValueError, match=r"loss.cut_every=1024 must be below data.row=1024: nothing would be cut"):
        train.resolve(config(loss__cut_every=1024))
    with pytest.raises(ValueError, match=r"loss.cut_least=0.002 of data.row=1024 tokens leaves only sinks \(4\)"):
        train.resolve(config(loss__cut_least=0.002))


def test_steps_after_the_last_checkpoint_are_done_again(tmp_path, monkeypatch):
    """A hard kill: what was logged beyond the checkpoint must not be there twice."""
    save = train.Checkpoints.save

    def fail_at_four(self, step, state, loss):
        if step == 4:
            raise OSError(28, "No space left on device")
        save(self, step, state, loss)

    monkeypatch.setattr(train.Checkpoints, "save", fail_at_four)
    with pytest.raises(OSError, match="No space left"):
        run(config(), tmp_path / "run")
    assert len(record.read_rows(tmp_path / "run" / "train.jsonl")) == 4
    monkeypatch.setattr(train.Checkpoints, "save", save)
    found = run(config(), tmp_path / "run")
    assert [row["step"] for row in found] == list(range(6))


def test_a_loss_that_is_no_number_names_step_and_batch(tmp_path):
    """And leaves the checkpoint before it."""
    with pytest.raises(ConfigError, match=r"the loss of step \d+ is nan \(batch \d+ of seed 0\)"):
        run(config(train__learning_rate=1e30, train__clip=1e30), tmp_path / "run")


def test_gradients_can_be_gathered_over_steps(tmp_path):
    """accumulate=2 moves the gates every second step."""
    found = run(config(train__accumulate=2), tmp_path / "run")
    assert len(found) == 6


def test_small_evaluations_are_one_line_per_budget(tmp_path, monkeypatch, capsys):
    """In dev.jsonl, in the report and on the screen; of the gates as they are at that step."""
    asked = []

    def score(config, model, method, examples):
        asked.append((method.budget, [example.task for example in examples]))
        return 50.0

    monkeypatch.setattr(dev, "_score", score)
    made = config(dev__every=3, dev__ratios=(0.1, 0.25), dev__tasks=("niah_single_1",), dev__num_examples=2)
    run(made, tmp_path / "run")
    assert asked == [(102, ["niah_single_1"] * 2), (256, ["niah_single_1"] * 2)] * 2
    found = record.read_rows(tmp_path / "run" / "dev.jsonl")
    assert [(row["step"], row["budget"]) for row in found] == [(3, 102), (3, 256), (6, 102), (6, 256)]
    assert "| 6 | 256 | 50.0 |" in (tmp_path / "run" / "report.md").read_text()
    assert "dev after 3 steps, budget 102: mean 50.0" in capsys.readouterr().out


def test_a_mix_is_one_text():
    """So that the command line takes it: --config.data.mix=facts=1,text=3."""
    found = settings.mix(train.resolve(config(data__mix="facts=1,text=3")))
    assert found.kinds == (("facts", 1.0), ("text", 3.0))


def test_a_first_stage_regresses_attention_and_a_killed_one_goes_on(tmp_path, capsys):
    """Its steps have no KL; report and progress say what was done, and a continued run does not repeat it."""
    found = run(config(train__regress_steps=3), tmp_path / "run")
    assert ["kl" in row for row in found] == [False] * 3 + [True] * 3 and np.isfinite(losses(found)).all()
    assert "the first 3 steps regress log future attention" in (tmp_path / "run" / "report.md").read_text()
    again = run(config(train__regress_steps=3), tmp_path / "run")
    assert losses(again) == losses(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train__method": "snapkv"}, "train.method='snapkv' is not known; allowed: global_retention, trimkv"),
        ({"data__mix": "facts"}, "data.mix takes kind=share; got 'facts'"),
        ({"data__mix": "facts=0"}, "the data mix is empty"),
        ({"data__mix": "facts=x"}, "data.mix facts takes numbers; got 'x'"),
        ({"train__steps": 0}, "train.steps must be at least 1, got 0"),
        ({"train__warmup": 6}, "train.warmup=6 must be below train.steps=6"),
        ({"train__regress_steps": 7}, "train.regress_steps=7 are more than train.steps=6"),
        ({"train__learning_rate": 0.0}, "train.learning_rate must be above 0"),
        ({"gate__kind": "x"}, "gate kind 'x'; allowed: two_layer, three_layer"),
        ({"loss__budget": 0}, "budget must be at least 1, got 0"),
        ({"dev__every": 2, "dev__tasks": ("niah",)}, "niah"),
        ({"data__mix": "facts=1,text=nan"}, "the share of data kind 'text' must be a finite number"),
        ({"dev__every": 2, "dev__tasks": ()}, "dev.tasks is empty; dev.every=0 trains without"),
        ({"dev__every": 2, "dev__ratios": (0.1, 1.5)}, "dev.ratios=1.5 is out of range: 0 to 1"),
    ],
)
def test_what_cannot_run_is_refused_first(change, message):
    """One line, before a model is loaded."""
    with pytest.raises((ValueError, KeyError), match=message):
        train.resolve(config(**change))


def test_a_small_evaluation_that_cannot_be_made_is_refused_before_the_first_step(tmp_path):
    """Not when it is due, after hours; the folder is not claimed."""
    impossible = config(dev__every=2, dev__tasks=("niah_single_1",), dev__length=256, dev__num_examples=2)
    with pytest.raises(ConfigError, match="task niah_single_1 does not fit into L=256"):
        train.run(impossible, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_longer_than_the_model_are_refused(tmp_path):
    """Before any data is made."""
    with pytest.raises(ConfigError, match="data.row=1000000 goes beyond"):
        run(config(data__row=1_000_000), tmp_path / "run")
