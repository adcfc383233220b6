"""Runs that share a table, runs that do not, and cells that two of them hold."""

from __future__ import annotations

import dataclasses

import pytest

from experiments import figures, joined, summary
from nexus import record
from tests.experiments import fake_run

OPTIONS = "tasks=vt,niah_single_1,budgets=64,n=3,"


def load(tmp_path, **runs):
    """name -> options or (options, further arguments of fake_run.write)."""
    for name, options in runs.items():
        options, more = options if isinstance(options, tuple) else (options, {})
        fake_run.write(tmp_path / name, OPTIONS + options, **more)
    return joined.load_all([tmp_path / name for name in runs])


def test_methods_of_two_runs_stand_in_one_table(tmp_path):
    (table,) = joined.join(load(tmp_path, a="methods=full,snapkv", b="methods=h2o,floor=0"))
    grid = summary.summaries(table, 1024)
    assert [row.method for row in grid] == ["full", "snapkv", "h2o"]
    assert grid[-1].difference is not None, "paired with the full cache of the other run"
    assert {row["run"] for row in table.rows} == {"a", "b"} and table.name == "a + b"


def test_budgets_lengths_and_tasks_of_two_runs_stand_in_one_result(tmp_path):
    runs = load(tmp_path, a="methods=full,snapkv", b="methods=full,snapkv,length=2048")
    (table,) = joined.join(runs)
    assert table.lengths == [1024, 2048] and not table.repeated and not table.remarks
    fake_run.write(tmp_path / "c", "tasks=niah_multikey_1,methods=full,snapkv,budgets=64,n=3")
    (table,) = joined.join([runs[0], summary.load(tmp_path / "c")])
    (full, snapkv) = summary.summaries(table, 1024)
    assert list(snapkv.rows) == ["vt", "niah_single_1", "niah_multikey_1"] and snapkv.mean is not None


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        ("protocol=oneshot", {}, "protocol (streaming, here oneshot)"),
        ("question_mode=query_aware", {}, "question_mode (query_agnostic, here query_aware)"),
        ("tail=free", {}, "tail (counted, here free)"),
        ("seed=1", {}, "seed (0, here 1)"),
        ("n=2", {}, "num_examples (3, here 2)"),
        ("max_new_tokens=9", {}, "max_new_tokens (48, here 9)"),
        ("", {"dtype": "bfloat16"}, "dtype (float32, here bfloat16)"),
        ("", {"model": "other"}, "model (fake, here other)"),
        ("", {"tokenizer_hash": "e" * 64}, "tokenizer_hash"),
        ("", {"references": ["555"]}, "samples"),
        ("", {"template_hash": "cd" * 32}, "samples"),
    ],
)
def test_what_is_not_comparable_gets_a_table_of_its_own(tmp_path, options, fields, why):
    """Rows of other protocols and samples stood side by side in published tables."""
    options = (OPTIONS + "methods=full,h2o," + options).replace("n=3,", "" if options == "n=2" else "n=3,")
    fake_run.write(tmp_path / "b", options, fields=fields)
    first = load(tmp_path, a="methods=full,snapkv")[0]
    tables = joined.join([first, summary.load(tmp_path / "b")])
    assert [table.name for table in tables] == ["a", "b"]
    assert {row["method"] for row in tables[0].rows} == {"full", "snapkv"}
    assert why in "; ".join(joined.apart(*tables))


def test_a_cell_of_two_runs_is_shown_once_and_the_later_named(tmp_path):
    runs = load(tmp_path, a="methods=full,snapkv", b="methods=full,snapkv,h2o")
    (table,) = joined.join(runs)
    keys = [summary.key(row) for row in table.rows]
    assert len(set(keys)) == len(keys) == 2 * 3
    assert {(row["run"], row["method"]) for row in table.rows} == {("a", "full"), ("a", "snapkv"), ("b", "h2o")}
    assert len(table.predictions) == 2 * 3 * 3 and len(table.kept) == 6 and len(table.tokens) == 6
    assert {(row["run"], row["method"]) for row in table.repeated} == {("b", "full"), ("b", "snapkv")}
    assert "b holds 4 cells that a holds too (full, snapkv @ 64)" in table.remarks[0]


def test_other_options_are_another_method_and_named_with_what_differs(tmp_path):
    runs = load(tmp_path, a="methods=full,snapkv,h2o", b="methods=full,snapkv,h2o,floor=0")
    options = runs[1].config["method"] | {"snapkv": runs[1].config["method"]["snapkv"] | {"window": 16}}
    cache = runs[1].config["cache"]
    other = dataclasses.replace(runs[1], config=runs[1].config | {"method": options})
    (table,) = joined.join([runs[0], other])
    assert [m for m in table.config["eval"]["methods"]] == ["full", "snapkv", "h2o", "snapkv (window=16)"]
    looks = figures.looks(table)
    assert looks["snapkv (window=16)"][0] == looks["snapkv"][0]
    assert looks["snapkv (window=16)"][1] != looks["snapkv"][1]
    chunked = dataclasses.replace(runs[1], config=runs[1].config | {"cache": cache | {"chunk": 64}})
    (table,) = joined.join([runs[0], chunked])
    assert {"snapkv (chunk=64)", "h2o (chunk=64)"} < set(table.config["eval"]["methods"])
    assert {row["method"] for row in table.repeated} == {"full"}, "the full cache does not depend on chunks"


def test_speeds_of_other_machines_are_not_compared(tmp_path):
    runs = load(tmp_path, a="methods=full,snapkv", b="methods=full,h2o,batch=2")
    (table,) = joined.join(runs)
    assert any("do not compare speeds" in remark and "batch size (10, 2)" in remark for remark in table.remarks)


def test_names_are_as_short_as_they_can_be(tmp_path):
    for name in ("x/run", "y/run"):
        fake_run.write(tmp_path / name, OPTIONS + "methods=full")
    runs = joined.load_all([tmp_path / "x" / "run", tmp_path / "y" / "run"])
    assert [run.name for run in runs] == ["x/run", "y/run"]
    with pytest.raises(ValueError, match="given twice"):
        joined.load_all([tmp_path / "x" / "run", tmp_path / "x" / ".." / "x" / "run"])


def test_an_unfinished_run_gives_what_it_has(tmp_path):
    runs = load(tmp_path, a="methods=full,snapkv", b=("methods=full,h2o,knorm", {"cells": 3}))
    lines = (tmp_path / "b" / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    extra = record.read_rows(tmp_path / "b" / "predictions.jsonl")[-1] | {"task": "niah_single_1"}
    record.append_rows(tmp_path / "b" / "predictions.jsonl", [extra])  # of a cell that was being answered
    assert len(lines) == 9
    (table,) = joined.join([runs[0], summary.load(tmp_path / "b", "b")])
    assert table.missing == 3 and summary.summaries(table, 1024)[-1].mean is None
    assert all(row["task"] == "vt" for row in table.predictions if row["method"] == "h2o")
