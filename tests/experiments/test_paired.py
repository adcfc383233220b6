"""Two runs against each other: the same samples, example by example."""

from __future__ import annotations

import pytest

from experiments import joined, paired
from nexus import metrics, record
from tests.experiments import fake_run

OPTIONS = "tasks=vt,niah_single_1,methods=full,snapkv,budgets=64,n=4"


def compare(tmp_path, second="", **more):
    fake_run.write(tmp_path / "a", OPTIONS)
    fake_run.write(tmp_path / "b", OPTIONS + second, **more)
    return paired.compare(joined.load_all([tmp_path / "a", tmp_path / "b"]))


def test_the_difference_is_that_of_the_predictions(tmp_path):
    (pair,) = compare(tmp_path, ",protocol=oneshot", full_scores={"vt": 50.0})
    assert [(line.method, line.task) for line in pair.lines] == [
        ("full", "vt"), ("full", "niah_single_1"), ("full", "mean of 2"),
        ("snapkv", "vt"), ("snapkv", "niah_single_1"), ("snapkv", "mean of 2"),
    ]  # fmt: skip
    scores = [
        [row["score"] for row in record.read_rows(tmp_path / name / "predictions.jsonl")
         if (row["method"], row["task"]) == ("snapkv", "vt")]
        for name in "ab"
    ]  # fmt: skip
    line = pair.lines[3]
    assert line.difference == metrics.paired_interval(scores[1], scores[0])
    assert line.second - line.first == pytest.approx(line.difference.mean)
    assert pair.lines[0].difference.mean == -25.0 and pair.lines[0].changed == 4 == pair.lines[0].num_examples
    means = [line.difference.mean for line in pair.lines[:3]]
    assert means[2] == pytest.approx((means[0] + means[1]) / 2)


def test_a_run_against_itself_differs_in_nothing(tmp_path):
    (pair,) = compare(tmp_path)
    assert pair.differing == [] and paired.remarks(pair) == ["the runs have the same settings"]
    assert all(line.difference == metrics.Interval(0.0, 0.0, 0.0) and line.changed == 0 for line in pair.lines)


def test_what_differs_is_named(tmp_path):
    (pair,) = compare(tmp_path, ",protocol=oneshot,chunk=64", fields={"git_commit": "d" * 40})
    text = "; ".join(pair.differing)
    assert "protocol (there 'streaming', now 'oneshot')" in text and "cache.chunk (there 128, now 64)" in text
    assert "git_commit" in text and "eval.protocol" not in text, "once is enough"


def test_other_samples_are_never_subtracted(tmp_path):
    (pair,) = compare(tmp_path, fields={"references": ["555"]})
    assert pair.lines == [] and pair.other_samples == ["vt at 1024", "niah_single_1 at 1024"]


def test_common_examples_of_runs_of_other_sizes(tmp_path):
    (pair,) = compare(tmp_path, cells=1)
    assert [(line.method, line.task) for line in pair.lines] == [("full", "vt")]
    fake_run.write(tmp_path / "c", OPTIONS.replace("n=4", "n=2"))
    (pair,) = paired.compare(joined.load_all([tmp_path / "a", tmp_path / "c"]))
    assert {line.num_examples for line in pair.lines} == {2}


def test_runs_without_a_common_cell_are_no_pair(tmp_path):
    fake_run.write(tmp_path / "a", "tasks=vt,methods=full,n=2")
    fake_run.write(tmp_path / "b", "tasks=niah_single_1,methods=full,n=2")
    assert paired.compare(joined.load_all([tmp_path / "a", tmp_path / "b"])) == []
