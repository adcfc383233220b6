"""The survival experiment on a preset, in seconds: curves that are right, files, and what a second start does."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from configs import survival as configs_survival
from experiments import survival
from experiments.lifetimes import simulation, streams
from experiments.lifetimes.simulation import Setting
from nexus import record
from nexus.models.load import load_model
from nexus.samplers import Reservoir, Top
from nexus.tasks import haystacks

SMALL = "model=tiny-llama,length=128,budget=32,chunk=16,ages=4,texts=2,rows=2,repeats=30,cohorts=4,powers=1"
SETTING = Setting(kept=24, arrivals=8, cohorts=8, ages=6, repeats=40, spread=1.0, noise=0.5)


@pytest.fixture(autouse=True)
def own_text(monkeypatch):
    """Nothing is downloaded."""
    lines = [f"Line {i * i} of the log says {i % 7} and {i % 11}. Again." for i in range(90)]
    text = haystacks.EssayText.from_texts(lines)
    monkeypatch.setattr(haystacks, "package_essays", lambda: text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("survival")
    with pytest.MonkeyPatch.context() as patch:
        text = haystacks.EssayText.from_texts(["One word and another word stand here. The end."])
        patch.setattr(haystacks, "package_essays", lambda: text)
        survival.run(configs_survival.get_config(SMALL), path)
    return path


def test_a_cache_without_noise_keeps_the_heaviest():
    """Top on exact weights: what lives is heavier than all that went, so light entries never stay; an entry that is
    gone does not come back."""
    exact = Setting(**{**SETTING.__dict__, "noise": 0.0})
    curves = simulation.survival(Top(), exact, seed=0)
    for units in curves.values():
        assert units.shape == (40, 6) and (np.diff(units, axis=1) <= 1e-12).all()
    assert curves["light"].mean(axis=0)[0] < 0.05 < 0.5 < curves["heavy"].mean(axis=0)[0]


def test_the_number_of_survivors_is_the_budget():
    """Whatever the sampler, `kept` entries stay: mean survival after one eviction is the same share of the whole."""
    for sampler in (Top(), Reservoir(), Reservoir(draws=2, power=2.0)):
        setting = Setting(**{**SETTING.__dict__, "ages": 40, "cohorts": 40})
        curves = simulation.survival(sampler, setting, seed=1)
        lifetime = sum(units.mean(axis=0).sum() / 3 for units in curves.values())
        assert lifetime <= setting.kept / setting.arrivals * 1.05  # Little's law; entries older than 40 are missing


def test_the_reservoir_gives_light_entries_a_tail_and_takes_it_from_heavy_ones():
    """What the experiment is about, and its price."""
    setting = Setting(**{**SETTING.__dict__, "ages": 16})
    top, drawn = (simulation.survival(sampler, setting, seed=2) for sampler in (Top(), Reservoir()))
    assert drawn["light"].mean(axis=0)[2] > 3 * top["light"].mean(axis=0)[2]
    assert drawn["heavy"].mean(axis=0)[-1] < top["heavy"].mean(axis=0)[-1]


def test_a_model_that_holds_everything_forgets_nothing_and_one_that_does_not_forgets():
    """Ages counted from the wrong eviction, or chunks that arrived before the cache was full, flatten the curve."""
    model = load_model("tiny-llama", dtype="float32")
    text = np.random.default_rng(0).integers(0, model.config.vocab_size, (2, 128)).tolist()
    config = survival.resolve(configs_survival.get_config(SMALL)).survival
    small = survival.method(config, Top())
    curves = streams.survival(model, small, text, 1, 16, 4, 0)
    assert set(curves) == set(streams.GROUPS)
    for units in curves.values():
        assert units.shape == (2, 4) and (np.diff(units, axis=1) <= 1e-9).all() and (units <= 1).all()
    assert (curves["any layer"] >= curves["one layer"]).all()
    # The rest of the budget beside 14 entries of sink, previous and current block is for all older chunks together.
    assert 0 < curves["one layer"][:, -1].max() < 1


def test_files_and_figure(folder):
    rows = record.read_rows(folder / "survival.jsonl")
    keys = [(row["part"], row["sampler"], row["group"]) for row in rows]
    groups = {"simulation": simulation.GROUPS, "model": streams.GROUPS}
    assert keys == [(part, name, g) for part in groups for name in ("top", "reservoir") for g in groups[part]]
    for row in rows:
        assert len(row["survival"]) == len(row["error"]) == 4 and 0 <= min(row["survival"]) <= max(row["survival"]) <= 1
        assert row["units"] == (30 if row["part"] == "simulation" else 2)
    text = (folder / "report.md").read_text()
    assert "| simulation: lightest third" in text and "| model: positions held by any layer" in text
    assert "seed 0" in text and imread(folder / "figures" / "survival.png").shape[0] > 300


def test_a_second_start_runs_what_is_missing(folder, capsys):
    before = (folder / "survival.jsonl").read_text()
    survival.run(configs_survival.get_config(SMALL), folder)
    assert (folder / "survival.jsonl").read_text() == before
    lines = before.splitlines(keepends=True)
    (folder / "survival.jsonl").write_text("".join(lines[:3]))
    survival.run(configs_survival.get_config(SMALL), folder)
    again = record.read_rows(folder / "survival.jsonl")
    strip = lambda rows: [{k: v for k, v in row.items() if k != "wall_s"} for row in rows]  # noqa: E731
    (folder / "survival.jsonl").write_text(before)
    full = record.read_rows(folder / "survival.jsonl")
    simulated = [row for row in full if row["part"] == "simulation"]
    assert strip(again)[: len(simulated)] == strip(simulated) and len(again) == len(full)
    assert "[2 of 4] simulation, reservoir" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("parts=model+modell", "survival.parts='modell' is not known; allowed: simulation, model"),
        ("powers=x", "survival.powers takes numbers; got 'x'"),
        ("powers=0", "power must be above 0"),
        ("ages=0", "survival.ages=0 is out of range"),
        ("noise=-1", "survival.noise=-1.0 is out of range"),
        ("length=100", "survival.length=100 is no multiple of chunk=16"),
        ("length=80", "length=80 is too short: filling budget=32 and following entries over ages=4 evictions takes 96"),
        ("budget=5", "protected entries"),
        ("dtype=float16", "model.dtype='float16' is not known"),
    ],
)
def test_what_cannot_run_is_refused(change, message):
    name = change.split("=")[0]
    rest = ",".join(pair for pair in SMALL.split(",") if not pair.startswith(f"{name}="))
    with pytest.raises(ValueError, match=message):
        survival.resolve(configs_survival.get_config(f"{rest},{change}"))
