"""The report of a made-up run folder."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.image import imread

from experiments import figures, report, summary
from nexus import record
from tests.experiments import fake_run

TASKS = "niah_single_1,niah_multikey_1,niah_multivalue"
OPTIONS = f"tasks={TASKS},methods=full,snapkv,h2o,ratios=0.1,0.25,n=6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    fake_run.write(path, OPTIONS)
    report.write(path)
    return path


def test_header_says_what_was_measured_and_where(folder):
    """Several benchmarks were called RULER, and averages were over an unknown set (NVIDIA/RULER#86)."""
    text = (folder / "report.md").read_text()
    for said in ("3 of 13 RULER tasks", "`ruler-nexus`", "`streaming`", "`query_agnostic`", "`counted`", "6 examples",
                 "seed 0", "0123456789ab", "c" * 40, "1 x cpu", "float32"):  # fmt: skip
        assert said in text
    assert "unfinished" not in text


def test_table_has_a_row_per_method_and_budget_and_all_columns(folder):
    grid = summary.summaries(summary.load(folder), 1024)
    assert [(row.method, row.ratio) for row in grid] == [
        ("full", None), ("snapkv", 0.1), ("snapkv", 0.25), ("h2o", 0.1), ("h2o", 0.25),
    ]  # fmt: skip
    text = (folder / "report.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "method", "budget", "rank", "mean of 3", "minus full", "of full", *TASKS.split(","), "KV MB", "KV live MB",
        "decode tok/s", "n",
    ]  # fmt: skip
    assert len({line.count("|") for line in lines[:7]}) == 1
    assert all("256 (0.25)" in line for line in lines[3:5]) and all("102 (0.1)" in line for line in lines[5:7])


def test_mean_weighs_tasks_alike_and_pairs_with_the_full_cache(folder):
    results = summary.load(folder)
    full, snapkv, *_ = summary.summaries(results, 1024)
    means = [row["score"] for row in snapkv.rows.values()]
    assert snapkv.mean.mean == pytest.approx(sum(means) / 3, abs=0.01)
    assert snapkv.difference.mean == pytest.approx(snapkv.mean.mean - full.mean.mean)
    assert snapkv.difference.low <= snapkv.difference.mean <= snapkv.difference.high
    assert full.difference is None


def test_figures_are_pictures(folder):
    for name in ("score-1024.png", "kept-1024.png", "memory-1024.png", "speed-1024.png"):
        picture = imread(folder / "figures" / name)
        assert picture.shape[0] > 200 and picture[..., :3].std() > 0.02
        assert f"(figures/{name})" in (folder / "report.md").read_text()


def test_a_method_looks_the_same_whatever_runs_beside_it(folder, tmp_path):
    fake_run.write(tmp_path, "tasks=vt,methods=full,h2o,n=1")
    alone, beside = figures.looks(summary.load(tmp_path)), figures.looks(summary.load(folder))
    assert alone["h2o"] == beside["h2o"]
    assert len(set(beside.values())) == len(beside)


def test_a_task_below_the_floor_is_not_compared(tmp_path):
    """A full cache of 13.8 beside 35.2 at 20 % says nothing about eviction (snu-mllab/KVzip#4)."""
    fake_run.write(tmp_path, OPTIONS, full_scores={"niah_multivalue": 0.0})
    printed = report.write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**niah_multivalue: not meaningful.** The full cache scores 0.0 there, below the floor of 25" in text
    assert "mean of 2" in printed and "unfinished" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")][2:7]
    assert "0.0, not meaningful" in lines[0] and all(line.count("not meaningful") == 1 for line in lines)


def test_an_unfinished_run_says_so_and_gives_no_mean_of_some_tasks(tmp_path):
    fake_run.write(tmp_path, OPTIONS, cells=4)
    printed = report.write(tmp_path)
    assert "**unfinished**: 11 of 15 cells are missing" in (tmp_path / "report.md").read_text()
    last = summary.summaries(summary.load(tmp_path), 1024)[-1]
    assert last.method == "snapkv" and last.mean is None and last.difference is None
    assert "snapkv" in printed


def test_a_method_that_changes_nothing_is_flagged(tmp_path):
    """A method that evicted nothing stood in the table as lossless (abdelfattah-lab/xKV#9)."""
    fake_run.write(tmp_path, "tasks=vt,methods=full,h2o,snapkv,budgets=64,1024,n=3")
    text = report.write(tmp_path) + (tmp_path / "report.md").read_text()
    assert "h2o @ 1024 evicted nothing" in text
    assert "h2o @ 64 evicted nothing" not in text


def test_the_full_cache_s_answers_word_for_word_are_flagged(tmp_path):
    fake_run.write(tmp_path, "tasks=vt,methods=full,h2o,budgets=64,n=3")
    rows = record.read_rows(tmp_path / "predictions.jsonl")
    same = {row["index"]: row["prediction"] for row in rows if row["method"] == "full"}
    (tmp_path / "predictions.jsonl").unlink()
    record.append_rows(tmp_path / "predictions.jsonl", [row | {"prediction": same[row["index"]]} for row in rows])
    report.write(tmp_path)
    assert "h2o @ 64 gives the full cache's answers word for word" in (tmp_path / "report.md").read_text()


def test_shares_are_not_taken_for_percent(tmp_path):
    """0-1 and 0-100 were confused (ByteDance-Seed/ShadowKV#12)."""
    fake_run.write(tmp_path, "tasks=vt,methods=full,n=1")
    rows = record.read_rows(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").unlink()
    record.append_rows(tmp_path / "metrics.jsonl", [row | {"score_unit": "share"} for row in rows])
    with pytest.raises(ValueError, match=r"percent.*share"):
        report.write(tmp_path)


@pytest.mark.parametrize("options", ["tasks=vt,methods=full,n=1", "tasks=vt,methods=full,h2o,budgets=64,n=1",
                                     "tasks=vt,niah_single_1,length=512,1024,n=2"])  # fmt: skip
def test_small_runs_have_a_report_too(tmp_path, options):
    fake_run.write(tmp_path, options)
    assert "report.md" in report.write(tmp_path)


def test_command_line(folder, tmp_path, capsys):
    assert report.main([str(folder)]) == 0
    assert "snapkv" in capsys.readouterr().out
    assert report.main([str(tmp_path)]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert report.main([]) == 2


def test_methods_are_compared_with_any_other_example_by_example(folder, tmp_path, capsys):
    """The differences are the paired means over tasks, at the same budget; the method itself and full have none."""
    out = tmp_path / "against"
    assert report.main([str(folder), "--against", "snapkv", "--out", str(out)]) == 0
    results = summary.load(folder)
    score = {(r["method"], r["budget"], r["task"], r["index"]): r["score"] for r in results.predictions}
    rows = {(r.method, r.ratio): r for r in summary.summaries(results, 1024, ["snapkv"])}
    for ratio, budget in ((0.1, 102), (0.25, 256)):
        wanted = np.mean([s - score["snapkv", *at[1:]] for at, s in score.items() if at[:2] == ("h2o", budget)])
        assert rows["h2o", ratio].against["snapkv"].mean == pytest.approx(wanted)
        assert not rows["snapkv", ratio].against
    assert not rows["full", None].against
    text = (out / "report.md").read_text()
    assert "| minus full | minus snapkv |" in re.sub(" +", " ", text)
    assert "minus_snapkv_low" in (out / "report.csv").read_text().splitlines()[0]
    capsys.readouterr()
    assert report.main([str(folder), "--against", "tova"]) == 2
    assert "--against=tova: no run has it; these have full, snapkv, h2o" in capsys.readouterr().err


def test_a_control_that_was_told_the_answers_is_marked(tmp_path):
    """It ranks first, and is no competitor."""
    fake_run.write(tmp_path, OPTIONS.replace("h2o", "oracle"))
    said = [row | {"told": True} if row["method"] == "oracle" else row for row in summary.load(tmp_path).rows]
    (tmp_path / "metrics.jsonl").unlink()
    record.append_rows(tmp_path / "metrics.jsonl", said)
    report.write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "oracle @ 256 is a control that is told the answers, and no competitor." in text
    assert "snapkv @ 256 is a control" not in text


def test_several_runs_go_into_one_report(folder, tmp_path, capsys):
    fake_run.write(tmp_path / "other", OPTIONS.replace("full,snapkv,h2o", "full,keydiff"))
    own = (folder / "report.md").read_bytes()
    assert report.main([str(folder), str(tmp_path / "other"), "--out", str(tmp_path / "both")]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("snapkv", "h2o", "keydiff"))
    assert f"\nother minus {folder.name}\n|" in printed
    for name in ("report.md", "report.html", "report.csv", "figures/score-1024.png"):
        assert (tmp_path / "both" / name).is_file()
    text = (tmp_path / "both" / "report.md").read_text()
    assert text.count("\n# ") == 0 and text.startswith("# "), "one table"
    assert f"## other minus {folder.name}" in text
    assert (folder / "report.md").read_bytes() == own


def test_without_out_several_runs_get_a_folder_of_their_own(folder, tmp_path, monkeypatch):
    fake_run.write(tmp_path / "other", OPTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report.sections.figures, "write", lambda *arguments: [])
    assert report.main([str(folder), str(tmp_path / "other")]) == 0
    assert [path.parent.name.startswith("joined-") for path in tmp_path.glob("runs/*/report.md")] == [True]


def test_a_report_of_several_runs_never_overwrites_that_of_one(folder, tmp_path, capsys):
    fake_run.write(tmp_path / "other", OPTIONS)
    assert report.main([str(folder), str(tmp_path / "other"), "--out", str(folder)]) == 2
    assert "is a run folder with a report of its own" in capsys.readouterr().err


def _break(path, name):
    file = path / name
    if name == "env.json":
        file.unlink()
    elif name == "config.json":
        record.write_json(file, record.read_json(file) | {"experiment": "survival"})
    elif name == "metrics.jsonl":
        file.write_text('{"task": "vt"}\n')
    elif name == "kept.jsonl":
        file.write_text('{"task": \n')
    else:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("env.json", "there is no env.json"),
        ("config.json", "experiment 'survival'; a report is made of runs of 'evaluate'"),
        ("metrics.jsonl", "metrics.jsonl, row 1: no field length, method, budget, num_examples"),
        ("kept.jsonl", "kept.jsonl, line 1: not JSON"),
        ("predictions.jsonl", "h2o at budget 64 on vt (length 1024) has 2 examples in metrics.jsonl and 1 in"),
    ],
)
def test_a_broken_folder_is_refused_in_one_line_that_says_what_is_broken(tmp_path, capsys, name, complaint):
    fake_run.write(tmp_path / "good", "tasks=vt,methods=full,snapkv,budgets=64,n=2")
    fake_run.write(tmp_path / "bad", "tasks=vt,methods=full,h2o,budgets=64,n=2")
    _break(tmp_path / "bad", name)
    folders = [str(tmp_path / "good"), str(tmp_path / "bad")]
    assert report.main([*folders, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert complaint in said and str(tmp_path / "bad") in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
