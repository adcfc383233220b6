"""Heat maps: what is drawn where, which files there are, and that the first depth is in no mean."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from configs import niah
from experiments import boards, needle_maps, plan, sections, summary
from nexus import metrics
from nexus.tasks.example import Example
from tests.experiments import fake_run

SCORES = {"full": {0: 100.0, 50: 60.0, 100: 90.0}, "snapkv": {0: 100.0, 50: 10.0, 100: 90.0}}


def row(method, length, depth, ratio=0.25):
    score = SCORES[method][depth] - length / 1000
    return {
        "model": "m", "method": method, "length": length, "task": f"needle_map_{depth}", "num_examples": 3,
        "budget": length // 4 if method != "full" else length, "ratio": ratio if method != "full" else None,
        "score": score, "rouge1_recall": score / 2,
    }  # fmt: skip


def results(rows):
    return summary.Results(
        name="r", folders=(Path(),), config={"eval": {"lengths": [512, 1024]}}, env={}, rows=rows, predictions=[],
        kept=[], tokens=[], missing=0, left_out=[],
    )  # fmt: skip


def test_a_cell_of_the_map_is_the_row_of_its_depth_and_length():
    rows = [row("snapkv", length, depth) for length in (512, 1024) for depth in (50, 0)]
    found = needle_maps.grid(rows, "snapkv", "score", [0, 50, 100], [512, 1024])
    assert np.allclose(found[:2], [[99.488, 98.976], [9.488, 8.976]])
    assert np.isnan(found[2]).all()  # not run


def test_one_file_per_budget_and_score_whatever_the_depths_are_called(tmp_path):
    """Files named by a rounded percentage overwrote each other (gkamradt/LLMTest_NeedleInAHaystack)."""
    rows = [row(m, length, d) for m in SCORES for length in (512, 1024) for d in (0, 50, 100)]
    rows += [row("snapkv", length, d, ratio=0.1) for length in (512, 1024) for d in (0, 50)]  # unfinished
    made = needle_maps.write(tmp_path, results(rows))
    assert [name for name, _ in made] == [
        "needles-1.png", "needles-2.png", "needles-rouge-1.png", "needles-rouge-2.png"
    ]  # fmt: skip
    assert all(needle_maps.NAMES.fullmatch(name) and (tmp_path / name).stat().st_size > 1000 for name, _ in made)
    assert "budget 25% of the length" in made[0][1] and "budget 10% of the length" in made[1][1]


def test_one_depth_is_no_map_and_other_tasks_have_none(tmp_path):
    assert needle_maps.write(tmp_path, results([row("full", 512, 50), row("full", 1024, 50)])) == []
    assert needle_maps.write(tmp_path, results([row("full", 512, 50) | {"task": "vt"}])) == []


def test_the_first_depth_is_shown_but_not_in_the_mean():
    """Sinks keep what stands at the very start, so it lifts the mean of every method."""
    assert summary.in_mean(["needle_map_0", "needle_map_50", "vt"]) == ["needle_map_50", "vt"]
    assert summary.in_mean(["needle_map_0"]) == ["needle_map_0"]  # alone it is what was asked for
    answers = {(f"needle_map_{d}", i): {"score": SCORES["snapkv"][d]} for d in (0, 50, 100) for i in range(3)}
    mean = summary.mean_over_tasks(answers, ["needle_map_0", "needle_map_50", "needle_map_100"])
    assert math.isclose(mean.mean, 50.0)


def test_a_report_holds_the_maps_says_what_is_left_out_and_counts_the_mean_without_it(tmp_path):
    fake_run.write(tmp_path, "tasks=needle_map_0,needle_map_50,needle_map_100,length=512,methods=full,snapkv,n=3")
    rows = [
        line | {"rouge1_recall": 50.0} for line in summary.load(tmp_path).rows
    ]  # the made-up examples have another rule
    section = sections.build([dataclasses.replace(summary.load(tmp_path), rows=rows)], tmp_path)[0]
    assert [picture.path for picture in section.maps] == [
        f"figures/needles{kind}-{i}.png" for kind in ("", "-rouge") for i in (1, 2)
    ]
    assert any("needle_map_0" in fact and "in no mean" in fact for fact in section.facts)
    board = section.parts[0].scores
    assert isinstance(board, boards.Board) and "mean of 2" in board.head and "needle_map_0" in board.head
    assert not section.pictures  # the maps are not listed twice


@pytest.mark.parametrize(
    ("options", "tasks", "examples"),
    [
        ("", ("0", "25", "50", "75", "100"), 3),
        ("depths=0,10,needles=7", ("0", "10"), 7),
        ("depths=5;50", ("5", "50"), 3),
    ],
)
def test_depths_and_needles_of_the_config(options, tasks, examples):
    config = plan.resolve(niah.get_config(options))
    assert config.eval.tasks == tuple(f"needle_map_{task}" for task in tasks)
    assert config.eval.num_examples == examples >= 3


@pytest.mark.parametrize("depth", ["101", "2.5", "x"])
def test_wrong_depths_are_refused(depth):
    with pytest.raises(ValueError, match="eval.tasks="):
        plan.resolve(niah.get_config(f"depths=0,{depth}"))


def test_both_scores_stand_in_the_rows():
    example = Example(
        task="needle_map_50", index=0, context="c", question="q", answer_prefix="", length=100, max_new_tokens=9,
        references=("The ferry leaves at dawn.", "ferry", "dawn|sunrise"), metric="key_phrases", variant="v",
        template_hash="h",
    )  # fmt: skip
    assert metrics.score(example, "A FERRY at\n  sunrise") == 100
    assert metrics.beside(example, "A FERRY at\n  sunrise") == {"rouge1_recall": 40.0}
    assert metrics.beside(dataclasses.replace(example, metric="all"), "ferry") == {}
