"""The calibration of a preset in seconds: what it leaves behind, and that it goes on where it stopped."""

from __future__ import annotations

import re

import numpy as np
import pytest

from configs import calibrate_heads as configs_calibrate
from experiments import calibrate_heads
from experiments.plan import ConfigError
from nexus import calibration, record
from nexus.models.load import load_model

SMALL = "model=tiny-llama,lengths=256,depths=2,needles=1,samples=2,answer=6,heads=2,recall=-1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration")
    calibrate_heads.run(configs_calibrate.get_config(SMALL), path)
    return path


def test_it_leaves_a_file_that_the_method_reads(folder):
    """Heads without their provenance could be those of the evaluation's own texts."""
    cfg = load_model("tiny-llama").config
    found = calibration.load(str(folder / "calibration.json"), cfg)
    assert found.heads.shape == (cfg.num_layers, 2) and found.layer_weight.sum() == pytest.approx(1)
    about = found.provenance
    assert re.fullmatch("[0-9a-f]{64}", about["fingerprint"]) and about["environment"]["git_commit"]
    assert (about["trials"], about["trials_counted"], about["seed"]) == (2, 2, 0)


def test_a_second_start_measures_only_what_is_missing(folder, tmp_path, capsys):
    """A run that was killed must not begin again, and must not mix up its trials."""
    rows = record.read_rows(folder / "trials.jsonl")
    assert [row["phase"] for row in rows] == ["heads", "heads", "layers", "layers"]
    record.append_rows(tmp_path / "trials.jsonl", rows[:3])
    capsys.readouterr()
    calibrate_heads.run(configs_calibrate.get_config(SMALL), tmp_path)
    assert capsys.readouterr().out.count("recall") == 1
    one, other = (record.read_json(path / "calibration.json") for path in (folder, tmp_path))
    assert one["heads"] == other["heads"] and one["provenance"]["fingerprint"] == other["provenance"]["fingerprint"]
    np.testing.assert_allclose(one["layer_weight"], other["layer_weight"], atol=1e-6)


def test_a_model_that_answers_nothing_is_refused(tmp_path):
    """Heads ranked by trials that failed are noise."""
    config = configs_calibrate.get_config(SMALL.replace("recall=-1", "recall=0.9"))
    with pytest.raises(ConfigError, match="answered no trial with a recall above 0.9"):
        calibrate_heads.run(config, tmp_path)


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_needle_is_found_where_it_was_put(depth):
    """A span off by a token scores heads that look beside the needle."""
    config = calibrate_heads.resolve(configs_calibrate.get_config(SMALL))
    model = load_model("tiny-llama")
    text, needle = calibrate_heads.text_of(
        config, model, {"phase": "heads", "needle": 0, "length": 2000, "depth": depth}
    )
    assert text.count(needle.sentence) == 1
    assert abs(text.index(needle.sentence) / len(text) - depth) < 0.15
    prompt = model.tokenizer.prompt(text, needle.question, "")[0]
    begin, end = calibrate_heads.find_needle(model, prompt, needle.sentence)
    assert model.tokenizer.decode(prompt[begin:end]).strip() == needle.sentence


@pytest.mark.parametrize(
    ("reference", "said", "expected"),
    [("under the old oak", "It is under the OAK.", 0.75), ("the the cat", "the", 1 / 3), ("a b", "", 0.0)],
)
def test_recall_counts_words_with_multiplicity(reference, said, expected):
    """ROUGE-1 recall decides which trials count."""
    assert calibrate_heads.rouge_recall(reference, said) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("lengths=10", "numbers of at least 64"),
        ("lengths=many", "takes whole numbers"),
        ("kept=8", "calibrate.kept=8 is out of range: at least 9"),
        ("kept=700", "at most the shortest"),
        ("recall=1.5", "calibrate.recall=1.5"),
        ("needles=0", "calibrate.needles=0"),
        ("dtype=half", "model.dtype='half'"),
    ],
)
def test_what_cannot_run_is_refused(options, message):
    """Before a model is loaded."""
    with pytest.raises(ValueError, match=message):
        calibrate_heads.resolve(configs_calibrate.get_config(options))
