"""The ablation on a preset, once, and its order with stand-ins: trains what is missing, compares, refuses."""

from __future__ import annotations

import pytest
from matplotlib.image import imread

from configs import ablation as config_file
from experiments import ablation, evaluate, plan, train
from experiments.ablate import variants
from experiments.plan import ConfigError
from nexus import metrics, record
from nexus.models.load import load_model
from nexus.training import rows, texts
from tests.experiments import fake_run
from tests.training.conftest import PROSE

SMALL = "model=tiny-llama,tasks=niah_single_1,n=2,batch=2,max_new_tokens=4,floor=0,steps=4,row=1024"


def config(options="variants=lookahead_128", gates=""):
    c = config_file.get_config(f"{SMALL},{options}" + (f",gates={gates}" if gates else ""))
    c.gate.width, c.gate.bias, c.loss.budget = 8, 2.0, 8
    c.train.save_every, c.train.warmup, c.data.rows, c.loss.remat = 2, 2, 4, False
    return c


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """base, trained and evaluated, and its gates with a lookahead."""
    path = tmp_path_factory.mktemp("ablation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "library", lambda: (PROSE,))
        patch.setenv("NEXUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(rows, "BLOCK", 4)
        patch.setattr(evaluate.report.sections.figures, "write", lambda *arguments: [])  # of evaluations: slow
        ablation.run(config(), path)
    return path


class Fakes:
    """Stand in for trainings and evaluations, and list them. A training in `stopped` ends as after SIGTERM."""

    def __init__(self, monkeypatch, stopped=()):
        self.calls, self.stopped = [], stopped
        monkeypatch.setattr(train, "run", self.train)
        monkeypatch.setattr(evaluate, "run", self.evaluate)

    def train(self, config, workdir):
        self.calls.append(f"train {workdir.name}")
        if workdir.name in self.stopped:
            return  # without its report
        workdir.mkdir(parents=True, exist_ok=True)  # as claiming it does
        record.append_rows(workdir / "train.jsonl", [dict.fromkeys((*ablation.LAST, "seconds"), 1.5)] * 4)
        record.write_text(workdir / "report.md", "")

    def evaluate(self, config, workdir):
        resolved = plan.resolve(config)
        (method,) = resolved.eval.methods
        gates = resolved.method[method].to_dict().get("gates", "")
        self.calls.append(f"evaluate {workdir.name} {gates}".strip())
        options = f"tasks=niah_single_1,length=1024,n=2,show=2,methods={method},ratios=0.25,floor=0"
        fake_run.write(workdir, options, {"niah_single_1": 90.0})
        record.write_json(workdir / "config.json", record.plain(resolved.to_dict()))
        record.write_text(workdir / "report.md", "")


def test_a_stopped_ablation_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """What was finished is not done again, nothing is evaluated with gates that are half trained, and every variant
    has its own gates or those of the one that is trained alike."""
    many = config("variants=tied+lookahead_128+per_head")
    fakes = Fakes(monkeypatch, stopped=("tied",))
    ablation.run(many, tmp_path)
    at = lambda name: str(tmp_path / "trainings" / name / "gates.safetensors")  # noqa: E731
    begun = ["evaluate full", "train base", f"evaluate base {at('base')}", "train tied"]
    assert fakes.calls == begun and "tied: the training was stopped" in capsys.readouterr().out
    assert "**unfinished**: tied, lookahead_128, per_head are missing" in (tmp_path / "report.md").read_text()
    fakes = Fakes(monkeypatch)
    ablation.run(many, tmp_path)
    assert fakes.calls == [
        "train tied", f"evaluate tied {at('tied')}", f"evaluate lookahead_128 {at('base')}",
        "train per_head", f"evaluate per_head {at('per_head')}",
    ]  # fmt: skip
    lines = record.read_rows(tmp_path / "variants.jsonl")
    assert [line["ablation"] for line in lines] == ["base", "tied", "lookahead_128", "per_head"]
    assert [line["gates"] for line in lines] == ["trained", "trained", "of base", "trained"]
    assert lines[1]["training"] == {"steps": 4, "seconds": 6.0, **dict.fromkeys(ablation.LAST, 1.5)}
    assert "unfinished" not in (tmp_path / "report.md").read_text()


def test_given_gates_are_not_trained(tmp_path, folder, monkeypatch):
    file = folder / "trainings" / "base" / "gates.safetensors"
    fakes = Fakes(monkeypatch)
    ablation.run(config(gates=f"base={file}"), tmp_path)
    assert fakes.calls == ["evaluate full", f"evaluate base {file}", f"evaluate lookahead_128 {file}"]
    lines = record.read_rows(tmp_path / "variants.jsonl")
    assert [line["gates"] for line in lines] == [f"given: {file}", "of base"] and not lines[0]["training"]


def test_rows_report_and_figures(folder):
    """The lookahead uses the gates of base; the full cache is answered once, for all."""
    found = record.read_rows(folder / "metrics.jsonl")
    assert [row["ablation"] for row in found] == ["full", "base", "lookahead_128"]
    scores = [
        [row["score"] for row in record.read_rows(folder / "evaluations" / name / "predictions.jsonl")]
        for name in ("lookahead_128", "base")
    ]
    assert found[2]["minus_base"] == pytest.approx(metrics.paired_interval(*scores).mean, abs=0.01)
    assert found[2]["seed"] == 1000 and found[2]["config_hash"] and found[2]["score_unit"] == "percent"
    own = record.read_json(folder / "evaluations" / "lookahead_128" / "config.json")["method"]["global_retention"]
    assert own["lookahead"] == 128 and own["gates"] == str(folder / "trainings" / "base" / "gates.safetensors")
    sinks = [row["held"] for row in record.read_rows(folder / "kinds.jsonl") if row["kind"] == "first"]
    assert sinks == [100.0, 100.0]  # four sinks stay everywhere
    text = (folder / "report.md").read_text()
    assert "| lookahead_128 | lookahead=128 | of base |" in " ".join(text.split())
    for name in ("minus-base-1024.png", "kinds-1024.png"):  # two steps leave the heads as equal as they began
        assert f"figures/{name}" in text and imread(folder / "figures" / name).shape[0] > 200


def test_a_finished_ablation_does_nothing(folder, monkeypatch, capsys):
    fakes = Fakes(monkeypatch)
    ablation.run(config(), folder)
    assert not fakes.calls and "report: " in capsys.readouterr().out


def test_given_gates_are_checked_before_anything_is_trained(folder, tmp_path):
    """Hours later, or never, is too late to learn that they are of another form, model or training."""
    file = folder / "trainings" / "base" / "gates.safetensors"
    model = load_model("tiny-llama")
    (base, ahead) = variants.of(ablation.resolve(config(gates=f"base={file}")))
    assert ablation._otherwise(base, model) == [] and ahead.given == str(file)
    longer = config(gates=f"base={file}")
    longer.train.steps = 6
    (base, *_) = variants.of(ablation.resolve(longer))
    assert ablation._otherwise(base, model) == ["train.steps (there 4, now 6)"]
    with pytest.raises(ConfigError, match="gates of variant 'tied': .* has tied False; wanted kind two_layer"):
        ablation.run(config("variants=tied", gates=f"tied={file}"), tmp_path / "run")
    with pytest.raises(ConfigError, match="gates of variant 'tied': gates='nothing' is no file"):
        ablation.run(config("variants=tied", gates="tied=nothing"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_trained_where_the_full_cache_knows_no_answer(tmp_path, monkeypatch):
    """Whatever is kept, there is nothing to lose."""
    fakes = Fakes(monkeypatch)
    asked = config()
    asked.eval.full_floor = 95.0  # the full cache of the stand-in scores 87.5 or 100 per sample
    monkeypatch.setattr(ablation, "tasks_above_floor", lambda full, length: ([], full.rows))
    with pytest.raises(ConfigError, match="stays below eval.full_floor=95 on every task of niah_single_1"):
        ablation.run(asked, tmp_path)
    assert fakes.calls == ["evaluate full"]
