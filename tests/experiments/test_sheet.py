"""report.csv against the files it is made of."""

from __future__ import annotations

import csv
import io

import pytest

from experiments import joined, sections, sheet, summary
from nexus import record
from tests.experiments import fake_run

OPTIONS = "tasks=vt,niah_single_1,niah_multivalue,budgets=64,128,n=3,"


def rows(tmp_path, monkeypatch, *names):
    monkeypatch.setattr(sections.figures, "write", lambda *arguments: [])
    runs = joined.load_all([tmp_path / name for name in names])
    return list(csv.DictReader(io.StringIO(sheet.text(sections.build(runs, tmp_path / "out")))))


def test_cells_are_the_rows_of_metrics(tmp_path, monkeypatch):
    fake_run.write(tmp_path / "a", OPTIONS + "methods=full,snapkv")
    found = [row for row in rows(tmp_path, monkeypatch, "a") if row["kind"] == "cell"]
    expected = record.read_rows(tmp_path / "a" / "metrics.jsonl")
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        assert {name: row[name] for name in wanted} == {n: "" if v is None else str(v) for n, v in wanted.items()}
        assert (row["table"], row["run"], row["status"]) == ("1", "a", "compared")


def test_means_are_those_of_the_tables(tmp_path, monkeypatch):
    fake_run.write(tmp_path / "a", OPTIONS + "methods=full,snapkv")
    found = [row for row in rows(tmp_path, monkeypatch, "a") if row["kind"] == "mean"]
    grid = summary.summaries(summary.load(tmp_path / "a"), 1024)
    assert [(row["method"], int(row["budget"])) for row in found] == [(r.method, r.budget) for r in grid]
    for row, wanted in zip(found, grid, strict=True):
        assert float(row["score"]) == wanted.mean.mean and float(row["score_low"]) == wanted.mean.low
        assert row["task"] == "mean of 3" and row["config_hash"] and row["git_commit"] and row["tokenizer_hash"]
        assert row["protocol"] == "streaming" and row["num_examples"] == "3"
        assert float(row["kv_bytes_allocated"]) == pytest.approx(wanted.average("kv_bytes_allocated"))
    assert found[1]["minus_full"] == str(grid[1].difference.mean) and found[0]["minus_full"] == ""


def test_what_is_below_the_floor_is_marked_and_not_missing(tmp_path, monkeypatch):
    fake_run.write(tmp_path / "a", OPTIONS + "methods=full,snapkv", full_scores={"niah_multivalue": 0.0})
    found = [row for row in rows(tmp_path, monkeypatch, "a") if row["task"] == "niah_multivalue"]
    assert [(row["method"], row["budget"], row["score"]) for row in found] == [
        ("full", "1024", "0.0"), ("snapkv", "64", ""), ("snapkv", "128", ""),
    ]  # fmt: skip
    assert {row["status"] for row in found} == {"not meaningful"}


def test_repeated_cells_are_marked_and_tables_numbered(tmp_path, monkeypatch):
    fake_run.write(tmp_path / "a", OPTIONS + "methods=full,snapkv")
    fake_run.write(tmp_path / "b", OPTIONS + "methods=full,h2o")
    fake_run.write(tmp_path / "c", OPTIONS + "methods=full,h2o,protocol=oneshot")
    found = rows(tmp_path, monkeypatch, "a", "b", "c")
    repeated = [row for row in found if row["status"] == "repeated"]
    assert {(row["run"], row["method"], row["table"]) for row in repeated} == {("b", "full", "1")} and len(
        repeated
    ) == 3
    assert {row["table"] for row in found if row["run"] == "c"} == {"2"}
    assert {row["protocol"] for row in found if row["table"] == "2"} == {"oneshot"}
    assert {row["run"] for row in found if row["kind"] == "mean" and row["table"] == "1"} == {"a", "b"}
