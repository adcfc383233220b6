"""Evaluations of variants as one result, on made-up folders: differences, kinds of tokens, report and figures."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.ablate import compare, kinds, report
from nexus import record
from nexus.metrics import paired_interval
from tests.experiments import fake_run

OPTIONS = "tasks=niah_single_1+niah_multikey_1,length=1024,n=6,show=6"
NAMES = {"base": "snapkv", "tied": "keydiff", "tied_three_layer": "h2o"}  # variant -> whose made-up numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ablation")
    config = {
        "model": {"name": "fake"}, "eval": {"seed": 3}, "data": {"row": 256}, "gate": {"width": 4},
        "loss": {"sinks": 4}, "train": {"steps": 9, "batch": 2, "seed": 0, "method": "g"},
        "ablation": {"variants": [*NAMES, "later"]},
    }  # fmt: skip
    record.write_json(path / "config.json", config)
    record.write_json(path / "env.json", {"runs": [fake_run.ENV]})
    full = {"niah_single_1": 90.0, "niah_multikey_1": 80.0}
    fake_run.write(path / "evaluations" / "full", f"{OPTIONS},methods=full,floor=0,ratios=0.25+0.1", full)
    for name, method in NAMES.items():
        options = f"{OPTIONS},methods={method},floor=0,ratios=0.25+0.1"
        fake_run.write(path / "evaluations" / name, options, full)
        trained = {"steps": 9, "seconds": 360.0, "kl": 0.25, "ntp": 1.0, "teacher_ntp": 0.5, "alive": 42.0}
        line = {"ablation": name, "changes": [] if name == "base" else [f"gate.x={name}"], "method": method,
                "gates": "given: F" if name == "base" else "trained", "training": None if name == "base" else trained,
                "otherwise": ["train.steps (there 3, now 9)"] if name == "base" else [],
                "evaluation": f"evaluations/{name}"}  # fmt: skip
        record.append_rows(path / "variants.jsonl", [line])
    return path


def merged(folder, names=tuple(NAMES)):
    return compare.merged(folder / "evaluations" / "full", {name: folder / "evaluations" / name for name in names})


def test_differences_are_paired_over_the_same_samples(folder):
    """An unpaired interval is wider; pairing by place instead of sample is wrong."""
    results = merged(folder)
    found = compare.minus_base(results)
    score = {(r["method"], r["budget"], r["task"], r["index"]): r["score"] for r in results.predictions}
    for budget in (256, 102):
        by_task = []
        for task in ("niah_single_1", "niah_multikey_1"):
            tied, base = ([score[name, budget, task, i] for i in range(6)] for name in ("tied", "base"))
            assert found[(1024, "tied", budget), task] == paired_interval(tied, base)
            by_task.append((tied, base))
        tied, base = (np.mean([pair[side] for pair in by_task], axis=0) for side in (0, 1))
        assert found[(1024, "tied", budget), ""].mean == pytest.approx(paired_interval(tied, base).mean)
    assert not any(variant in ("full", "base") for (_, variant, _), _ in found)


def test_rows_say_which_variant_and_keep_their_method(folder):
    rows = list(compare.metrics_rows(merged(folder), compare.minus_base(merged(folder))))
    assert {(row["ablation"], row["method"]) for row in rows} == {("full", "full"), *NAMES.items()}
    assert all((row["minus_base"] is None) == (row["ablation"] in ("full", "base")) for row in rows)


def test_shares_by_kind_of_token(folder):
    """Entries add up to all that is held; the words of the made-up contexts are known."""
    rows = list(compare.kinds_rows(merged(folder)))
    for name in NAMES:
        own = {row["kind"]: row for row in rows if row["ablation"] == name and row["budget"] == 256}
        assert list(own) == list(kinds.KINDS) and sum(row["entries"] for row in own.values()) == pytest.approx(
            100, abs=0.1
        )
        assert own["first"]["tokens"] == 4 and own["answer"]["tokens"] == 7 and own["chat"]["held"] is None
    shares = [row["shares"] for row in merged(folder).tokens if (row["method"], row["budget"]) == ("base", 256)]
    first = next(r for r in rows if (r["ablation"], r["budget"], r["kind"]) == ("base", 256, "first"))
    assert first["held"] == pytest.approx(100 * np.mean([row[:4] for row in shares]), abs=0.01)


def test_a_variant_with_other_samples_is_refused(folder, tmp_path):
    """Its difference to base would be one of samples."""
    fake_run.write(tmp_path / "tied", f"{OPTIONS},methods=keydiff,floor=0,ratios=0.25")
    rows = record.read_rows(tmp_path / "tied" / "predictions.jsonl")
    (tmp_path / "tied" / "predictions.jsonl").unlink()
    record.append_rows(tmp_path / "tied" / "predictions.jsonl", [row | {"template_hash": "0"} for row in rows])
    with pytest.raises(ValueError, match="its samples are not those of"):
        compare.merged(folder / "evaluations" / "full", {"tied": tmp_path / "tied"})


def test_the_report_of_an_unfinished_ablation(folder):
    """Whoever waits for hours can read what is there, and sees what is missing and what is not like with like."""
    said = report.write(folder)
    text = (folder / "report.md").read_text()
    assert "**unfinished**: later are missing" in text and "minus base" in said
    assert "- **base**: its gates were given, and were trained otherwise than this config would: train.steps" in text
    assert "| tied " in text and " gate.x=tied |" in text and "0.10" in text  # hours
    for name in ("minus-base-1024.png", "kept-1024.png", "kinds-1024.png"):
        assert f"figures/{name}" in text and (folder / "figures" / name).stat().st_size > 10_000
    assert {row["ablation"] for row in record.read_rows(folder / "kinds.jsonl")} == set(NAMES)
    assert len(record.read_rows(folder / "metrics.jsonl")) == 2 + 3 * 4


def test_a_task_below_the_floor_is_named_and_not_compared(tmp_path):
    full = {"niah_single_1": 90.0, "niah_multikey_1": 10.0}
    fake_run.write(tmp_path / "full", f"{OPTIONS},methods=full,ratios=0.25,floor=25", full)
    fake_run.write(tmp_path / "base", f"{OPTIONS},methods=snapkv,ratios=0.25,floor=0,tasks=niah_single_1".replace(
        "tasks=niah_single_1+niah_multikey_1,", ""), full)  # fmt: skip
    results = compare.merged(tmp_path / "full", {"base": tmp_path / "base"})
    assert "niah_multikey_1 is not compared: the full cache scores" in report._floor(results, 1024)
    assert "niah_multikey_1" not in report._scores(results, 1024, {})
