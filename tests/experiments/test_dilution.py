"""The dilution experiment on a preset: files, a second start, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.image import imread

from configs import dilution as configs_dilution
from experiments import dilution
from experiments.dilute import cells, report
from experiments.plan import ConfigError
from nexus import record
from nexus.tasks import haystacks

SMALL = (
    "model=tiny-llama,tasks=niah_multikey_2,lengths=600,800,methods=full,streaming_llm,budgets=48,n=2,pilots=1,heads=3,"
    "max_new_tokens=3,chunk=64,draws=20,distractors=8,64,kept=16,margins=0,2,noises=1,separations=0,4,"
    "text_length=512,texts=2,bins=8,gates="
)
FILES = ("theory", "pilots", "predictions", "metrics", "decay")


@pytest.fixture(autouse=True)
def own_text(monkeypatch):
    """Nothing is downloaded."""
    monkeypatch.setattr(haystacks, "package_essays", essays)


def essays():
    lines = [f"Line {i * i} of the log says {i % 7} and {i % 11}. Again." for i in range(90)]
    return haystacks.EssayText.from_texts(lines)


def run(folder, change=""):
    dilution.run(configs_dilution.get_config(f"{SMALL}{change}"), folder)


def rows(folder, name):
    return record.read_rows(folder / f"{name}.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("dilution")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haystacks, "package_essays", essays)
        run(path)
    return path


def test_files_and_figures(folder):
    config = dilution.resolve(configs_dilution.get_config(SMALL))
    assert len(rows(folder, "theory")) == 2 * 2 * 3 and len(rows(folder, "pilots")) == 1
    answers, summed = rows(folder, "predictions"), rows(folder, "metrics")
    assert [(row["length"], row["method"]) for row in summed] == [
        (length, method) for length in (600, 800) for method in ("full", "streaming_llm")
    ]
    assert len(answers) == 2 * len(summed)
    for row in answers:
        whole = sum(np.array(values) for values in row["answer"].values())  # [L,N], over groups
        np.testing.assert_allclose(whole, 1, atol=1e-4)
        assert np.shape(row["held"]) == (3, 2) and np.shape(row["question"]["useful"]) == (3, 4)
        assert row["seed"] == 0 and row["config_hash"] == record.config_hash(config.to_dict())
        assert row["kept_mean"] == 48 if row["method"] == "streaming_llm" else np.min(row["held"]) == 1
    for row in summed:
        total = sum(row[f"mass_{name}"] for name in ("sinks", "useful", "others", "context", "own"))
        assert total == pytest.approx(1, abs=1e-3) and row["score_unit"] == "percent" and row["num_examples"] == 2
    text = (folder / "report.md").read_text()
    assert "exceeded in 0 of 80 draws" in text and "| niah_multikey_2 |" in text and "closest in" in text
    for name in ("theory", "mass", "heads", "decay"):
        assert f"figures/{name}.png" in text and imread(folder / "figures" / f"{name}.png").shape[0] > 300


def test_a_second_start_does_what_is_missing(folder, capsys):
    before = {name: (folder / f"{name}.jsonl").read_text() for name in FILES}
    run(folder)
    assert before == {name: (folder / f"{name}.jsonl").read_text() for name in FILES}
    for name, lines in (("theory", 6), ("predictions", 3), ("metrics", 1), ("decay", 1)):
        (folder / f"{name}.jsonl").write_text("".join(before[name].splitlines(keepends=True)[:lines]))
    capsys.readouterr()
    run(folder)
    again = {name: (folder / f"{name}.jsonl").read_text() for name in FILES}
    for name in FILES:
        expected = [json.loads(line) for line in before[name].splitlines()]
        assert _results(rows(folder, name)) == _results(expected), name
        (folder / f"{name}.jsonl").write_text(before[name])
    said = capsys.readouterr().out
    assert "[decay 2 of 2]" in said and "[decay 1 of 2]" not in said and "left" in said
    assert again["pilots"] == before["pilots"]


def _results(found):
    return [{name: value for name, value in row.items() if name != "git_commit"} for row in found]


def test_theory_alone_loads_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(dilution.models, "load", lambda *a, **k: pytest.fail("loaded"))
    run(tmp_path, ",parts=theory")
    assert "## Synthetic logits" in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "predictions.jsonl").exists()


def test_an_unfinished_folder_has_a_report(folder, tmp_path):
    for name in ("config.json", "theory.jsonl"):
        (tmp_path / name).write_text((folder / name).read_text())
    report.write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Synthetic logits" in text and "decay.png" not in text


def test_retrieval_heads_are_those_with_most_mass_over_pilots():
    pilots = [{"useful": [[0.1, 0.6], [0.3, 0.0]]}, {"useful": [[0.5, 0.2], [0.5, 0.0]]}]
    assert cells.retrieval_heads(pilots, 2) == [(0, 1), (1, 0)]  # equal means: the first in order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("parts=model+modell", "dilution.parts='modell' is not known; allowed: theory, model, decay"),
        ("margins=x", "dilution.margins takes numbers; got"),
        ("noises=-1", "dilution.noises"),
        ("distractors=8,8", "none twice"),
        ("pilots=0", "dilution.pilots=0 is out of range: at least 1"),
        ("text_length=600", "dilution.text_length=600 is no multiple of 256"),
        ("tasks=vt", "eval.tasks='vt' hides no needle"),
        ("question_mode=query_aware", "eval.question_mode='query_aware' does not apply"),
        ("batch=2", "eval.batch_size=2 does not apply"),
        ("methods=streaming_llm", "eval.methods lacks 'full'"),
        ("budgets=2", "protected entries"),
        ("dtype=float16", "model.dtype='float16' is not known"),
    ],
)
def test_what_cannot_run_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dilution.resolve(configs_dilution.get_config(change))


def test_positions_that_move_cannot_be_looked_at():
    config = configs_dilution.get_config()
    config.method.streaming_llm.positions = "cache"
    with pytest.raises(ValueError, match="positions must be 'original'"):
        dilution.resolve(config)


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("dilution", "heads", 99, "dilution.heads=99 is more than the 12"),
        ("dilution", "gates", "x", "dilution.gates='x'"),
        ("eval", "lengths", (200,), "does not fit"),
    ],
)
def test_what_the_model_cannot_do_claims_no_folder(tmp_path, section, name, value, message):
    config = configs_dilution.get_config(SMALL)
    config[section][name] = value
    with pytest.raises(ConfigError, match=message):
        dilution.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
