"""What was kept of an example, as a reader sees it."""

from __future__ import annotations

import pytest

from experiments import joined, summary
from experiments.page import examples
from nexus import record
from tests.experiments import fake_run


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0, 0), (0.01, 1), (0.10, 1), (0.11, 2), (0.25, 2), (0.26, 3), (0.5, 3), (0.51, 4), (0.99, 4), (1.0, 5)],
)
def test_levels(share, level):
    assert examples.level(share) == level


def test_every_token_gets_the_colour_of_its_share_and_neighbours_are_one_element():
    tokens = ["<s>", " a", "", "&", " 12", "3", "\x00"]
    text = examples.coloured(tokens, [1.0, 0.3, 0.3, 0.3, 0.05, 0.6, 0.0], [False] * 4 + [True] * 2 + [False])
    assert text == (
        '<i class="k5">&lt;s&gt;</i><i class="k3"> a&amp;</i><mark class="k1"> 12</mark><mark class="k4">3</mark>'
        '<i class="k0">\u2400</i>'
    )


def test_references_are_found_over_token_borders_as_whole_words():
    tokens = ["Code", " 48", "12", "3", " and", " 94", "8123", "; CO", "DE."]
    assert examples.reference_tokens(tokens, ["48123"]) == [False, True, True, True, *[False] * 5]
    assert examples.reference_tokens(tokens, ["code"]) == [True, *[False] * 6, True, True]
    assert not any(examples.reference_tokens(tokens, ["12", "", " "])), "too short to mean anything"
    assert examples.reference_tokens([], ["code"]) == []


def test_all_methods_stand_beside_each_other(tmp_path):
    fake_run.write(tmp_path, "tasks=vt,niah_single_1,methods=full,snapkv,h2o,budgets=64,128,n=3,show=2")
    found = examples.of(summary.load(tmp_path))
    assert [(example.task, example.index) for example in found] == [
        ("vt", 0), ("vt", 1), ("niah_single_1", 0), ("niah_single_1", 1),
    ]  # fmt: skip
    first = found[0]
    assert first.references == ["111", "222", "333", "444"] and first.question == "q a" and first.num_tokens == 40
    assert first.answers[0].label == "full" and {a.label for a in first.answers[1:]} == {
        f"{name}, budget {budget}" for name in ("snapkv", "h2o") for budget in (64, 128)
    }  # fmt: skip
    rows = {(row["method"], row["budget"]): row for row in record.read_rows(tmp_path / "predictions.jsonl")[::3]
            if row["task"] == "vt"}  # fmt: skip
    tokens = {(row["method"], row["budget"]): row for row in record.read_rows(tmp_path / "tokens.jsonl")
              if (row["task"], row["index"]) == ("vt", 0)}  # fmt: skip
    for answer in first.answers[1:]:
        method, budget = answer.label.split(", budget ")
        row, kept = rows[method, int(budget)], tokens[method, int(budget)]
        assert answer.score == row["score"] and answer.text == row["prediction"].strip()
        assert answer.kept == pytest.approx(sum(kept["shares"]) / 40)
        boxed = [s for s, token in zip(kept["shares"], kept["tokens"], strict=True) if token.strip().isdigit()]
        assert answer.kept_references == pytest.approx(sum(boxed) / len(boxed)) and len(boxed) == 7
        assert answer.context.startswith('<i class="k5">&lt;|im_start|&gt;</i><i class="k0">gone</i>')
    assert first.answers[0].context is None and first.answers[0].kept == 1.0


@pytest.mark.parametrize(
    ("row", "mark"),
    [
        ({"score": 100.0}, "right"),
        ({"score": 50.0}, "partly right"),
        ({"score": 0.0, "truncated": True}, "wrong, cut off"),
        ({"score": 0.0, "is_null": True}, "wrong, empty"),
    ],
)
def test_marks_are_words(row, mark):
    assert examples._mark({"truncated": False, "is_null": False} | row) == mark


def test_a_task_below_the_floor_is_marked_and_a_run_of_such_tasks_has_examples_too(tmp_path):
    fake_run.write(tmp_path, "tasks=vt,methods=full,snapkv,budgets=64,n=2", full_scores={"vt": 0.0})
    (example,) = examples.of(summary.load(tmp_path))
    assert not example.meaningful and [answer.label for answer in example.answers] == ["full"]


def test_joined_runs_show_each_cell_once(tmp_path):
    fake_run.write(tmp_path / "a", "tasks=vt,methods=full,snapkv,budgets=64,n=2")
    fake_run.write(tmp_path / "b", "tasks=vt,methods=full,h2o,budgets=64,n=2,show=0")
    (table,) = joined.join(joined.load_all([tmp_path / "a", tmp_path / "b"]))
    (example,) = examples.of(table)
    assert sorted(answer.label for answer in example.answers) == ["full", "h2o, budget 64", "snapkv, budget 64"]
    assert {answer.label: answer.kept is None for answer in example.answers}["h2o, budget 64"]
