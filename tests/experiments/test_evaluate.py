"""The evaluation loop with a made-up model: resume, floor, order, refusals. One run with the real tiny model."""

from __future__ import annotations

import contextlib
import random
import types
import zlib

import numpy as np
import pytest

from configs import llama_ruler, tiny
from experiments import evaluate, plan
from nexus import record
from nexus.answers import Answers
from nexus.tasks.example import Example

TIMINGS = ("prefill_s", "decode_s", "compile_s")
OPTIONS = "length=1000,n=5,batch=2,tasks=niah_single_1,vt,methods=full,snapkv,budgets=64,128"


class Tokenizer:
    """A token is a character."""

    fingerprint = "0" * 64

    def encode(self, text):
        return [ord(c) for c in text]

    def prompt(self, context, question, answer_prefix, *, chat=True):
        return [ord(c) for c in context], [ord(c) for c in question + answer_prefix]

    def decode(self, ids, skip_special=True):
        return "".join(map(chr, ids))

    def pieces(self, ids):
        return list(map(chr, ids))


class FakeModel:
    """Stands in for model, tasks and decoding. `right`: methods that know the answer; `calls`: batches answered."""

    def __init__(self, monkeypatch, right=("full", "snapkv"), die_after=None, max_position=2048):
        self.right, self.die_after, self.calls = right, die_after, []
        config = types.SimpleNamespace(max_position=max_position, sliding_window=None, dtype="float32")
        model = types.SimpleNamespace(config=config, params={}, tokenizer=Tokenizer())
        monkeypatch.setattr(evaluate.models, "load_model", lambda name, dtype=None: model)
        monkeypatch.setattr(evaluate.catalog, "examples", self.examples)
        monkeypatch.setattr(evaluate.answers, "answer_batch", self.answer_batch)
        figures = evaluate.report.sections.figures  # slow, and tested with the report
        monkeypatch.setattr(figures, "write", lambda *arguments: [])

    def examples(self, task, request):
        length, n = request.length, request.n
        return [
            Example(
                task=task, index=i, context=f"{task} {i}".ljust(200 + i, "."), question="?", answer_prefix=":",
                references=(f"{task} {i}",), max_new_tokens=30, metric="all", length=length, variant="ruler-nexus",
                template_hash="1" * 64, prompt_tokens=length - 30,
            )
            for i in range(n)
        ]  # fmt: skip

    def answer_batch(
        self, model, method, settings, contexts, questions, max_new_tokens, rng=None, capacity=None, num_shares=0,
        expected=(),
    ):  # fmt: skip
        if self.die_after is not None and len(self.calls) == self.die_after:
            raise KeyboardInterrupt
        assert max(map(len, contexts)) + max(map(len, questions)) + max_new_tokens <= capacity
        self.prompts = contexts, questions
        self.calls.append((method.name, method.budget, len(contexts), max_new_tokens))
        noise = zlib.crc32(np.asarray(contexts[0][:8], np.int32).tobytes() + method.name.encode())
        known = ["".join(map(chr, context)).rstrip(".") for context in contexts]
        texts = [f"{text} {noise}" if method.name in self.right else "no idea" for text in known]
        size = len(contexts)
        return Answers(
            tokens=[[ord(c) for c in text] for text in texts], cut=[False] * size,
            kept=np.full((size, 3, 2), min(method.budget, 200), np.int32),
            context_tokens=np.array([len(context) for context in contexts]), kv_bytes_allocated=1000, 
            kv_bytes_live=900.0, peak_bytes=5000, prefill_seconds=1.0, decode_seconds=0.5, compile_seconds=0.25, 
            prefill_tokens=200 * size, decode_tokens=10 * size,
            shares=[np.linspace(0, 1, len(context)) for context in contexts[:num_shares]],
        )  # fmt: skip


def run(workdir, options=OPTIONS):
    evaluate.run(llama_ruler.get_config(options), workdir)
    return record.read_rows(workdir / "predictions.jsonl"), record.read_rows(workdir / "metrics.jsonl")


def test_one_row_per_example_and_one_per_cell_full_first(tmp_path, monkeypatch, capsys):
    FakeModel(monkeypatch)
    predictions, metrics = run(tmp_path)
    assert len(predictions) == 5 * 2 * 3 and len(metrics) == 2 * 3
    assert [(row["method"], row["task"]) for row in metrics[:2]] == [("full", "niah_single_1"), ("full", "vt")]
    ids = {f"{task}-1000-{i}" for task in ("niah_single_1", "vt") for i in range(5)}
    assert {row["sample_id"] for row in predictions} == ids
    row = metrics[-1]
    assert (row["method"], row["budget"], row["num_examples"], row["score"]) == ("snapkv", 128, 5, 100.0)
    assert row["kept_fraction_mean"] == pytest.approx(np.mean([128 / (200 + i) for i in range(5)]), abs=1e-3)
    assert row["prefill_tokens_per_s"] == pytest.approx(1000 / 3, abs=0.01)
    assert row["compile_s"] == 0.75
    printed = capsys.readouterr().out
    assert "64 entries" in printed and "report.md" in printed
    assert (tmp_path / "report.md").exists() and (tmp_path / "env.json").exists()


def test_metrics_rows_have_every_promised_field(tmp_path, monkeypatch):
    """Scores could not be reproduced: variant, commit and wording were not in the row (NVIDIA/RULER#86)."""
    FakeModel(monkeypatch)
    _, metrics = run(tmp_path)
    promised = (
        "model task length method budget protocol question_mode tail num_examples score kept_fraction_mean "
        "kept_fraction_max kv_bytes_allocated kv_bytes_live peak_bytes prefill_tokens_per_s decode_tokens_per_s "
        "compile_s seed config_hash git_commit ratio score_unit score_low score_high nulls truncated_share fill_min "
        "max_new_tokens variant template_hash tokenizer_hash num_tasks num_tasks_published"
    ).split()
    for row in metrics:
        assert not set(promised) - row.keys()


def test_the_shown_examples_are_recorded_token_by_token(tmp_path, monkeypatch):
    FakeModel(monkeypatch)
    run(tmp_path, OPTIONS + ",show=3")
    rows = record.read_rows(tmp_path / "tokens.jsonl")
    assert len(rows) == 2 * 3 * 3
    assert {(row["task"], row["index"]) for row in rows} == {(t, i) for t in ("niah_single_1", "vt") for i in range(3)}
    row = rows[1]
    assert "".join(row["tokens"]) == "niah_single_1 1".ljust(201, ".") and row["question"] == "?:"
    assert len(row["shares"]) == 201 and row["shares"][0] == 0.0 and row["shares"][-1] == 1.0
    assert 0 < min(row["shares"][1:]) and max(row["shares"][:-1]) < 1, "rounded to held nowhere, or everywhere"
    assert row["shares"][100] == 0.5


def test_no_shown_example_leaves_no_file(tmp_path, monkeypatch):
    FakeModel(monkeypatch)
    run(tmp_path, OPTIONS + ",show=0")
    assert not (tmp_path / "tokens.jsonl").exists()
    assert "not recorded" in (tmp_path / "report.html").read_text()


def test_a_kill_between_tokens_and_predictions_leaves_no_row_twice(tmp_path, monkeypatch):
    """Rows of tokens come first: what is computed again must not be written again."""
    FakeModel(monkeypatch)
    run(tmp_path / "whole", OPTIONS + ",show=3")
    expected = record.read_rows(tmp_path / "whole" / "tokens.jsonl")
    append = record.append_rows

    def killed(path, rows):
        if path.name == "predictions.jsonl" and path.exists():
            raise KeyboardInterrupt
        append(path, rows)

    folder = tmp_path / "killed"
    for _ in range(2):
        monkeypatch.setattr(record, "append_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            run(folder, OPTIONS + ",show=3")
        monkeypatch.setattr(record, "append_rows", append)
    lines = (folder / "tokens.jsonl").read_bytes()
    (folder / "tokens.jsonl").write_bytes(lines[: len(lines) - 30])  # and a torn line
    run(folder, OPTIONS + ",show=3")
    found = record.read_rows(folder / "tokens.jsonl")
    by_cell = lambda row: (row["task"], row["method"], row["budget"], row["index"])  # noqa: E731
    assert sorted(found, key=by_cell) == sorted(expected, key=by_cell)


@pytest.mark.parametrize("die_after", [0, 1, 4, 8])
def test_a_killed_run_continues_and_ends_like_an_uninterrupted_one(tmp_path, monkeypatch, die_after):
    """Results were written at the end only, and a rerun got a new folder: a kill lost everything (NVIDIA/kvpress)."""
    whole = FakeModel(monkeypatch)
    expected = run(tmp_path / "whole")
    killed = FakeModel(monkeypatch, die_after=die_after)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed")
    continued = FakeModel(monkeypatch)
    found = run(tmp_path / "killed")
    assert len(killed.calls) + len(continued.calls) == len(whole.calls)
    assert [_untimed(rows) for rows in found] == [_untimed(rows) for rows in expected]
    shown = [record.read_rows(tmp_path / name / "tokens.jsonl") for name in ("whole", "killed")]
    assert shown[0] == shown[1] and len(shown[0]) == 2 * 3
    runs = record.read_json(tmp_path / "killed" / "env.json")["runs"]
    assert [entry["wall_s"] is None for entry in runs] == [True, False]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ten_kills_at_random_moments_leave_the_same_rows(tmp_path, monkeypatch, seed):
    """Before, inside or after any line of any file; every other kill tears the line it meets."""
    FakeModel(monkeypatch)
    expected = run(tmp_path / "whole")
    rng, append, folder = random.Random(seed), record.append_rows, tmp_path / "killed"
    for number in range(10):
        left = [rng.randrange(1, 8)]

        def killed(path, rows, left=left, torn=number % 2):
            left[0] -= 1
            if left[0] > 0:
                return append(path, rows)
            if torn:
                append(path, rows)
                path.write_bytes(path.read_bytes()[: -rng.randrange(2, 40)])
            raise KeyboardInterrupt

        monkeypatch.setattr(record, "append_rows", killed)
        with contextlib.suppress(KeyboardInterrupt):  # the last kills may find nothing left to write
            run(folder)
    monkeypatch.setattr(record, "append_rows", append)
    found = run(folder)
    assert [_untimed(rows) for rows in found] == [_untimed(rows) for rows in expected]


def test_a_line_torn_by_the_kill_is_answered_again(tmp_path, monkeypatch):
    FakeModel(monkeypatch)
    expected = run(tmp_path)
    path = tmp_path / "predictions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:12]) + lines[12][:40])  # 12 of 30: cell 2 has 2 examples, and part of the third
    (tmp_path / "metrics.jsonl").write_bytes(b"".join((tmp_path / "metrics.jsonl").read_bytes().splitlines(True)[:2]))
    again = FakeModel(monkeypatch)
    found = run(tmp_path)
    assert [_untimed(rows) for rows in found] == [_untimed(rows) for rows in expected]
    assert len(again.calls) == 2 + 3 * 3  # two of three batches of the torn cell, three of each later cell


def test_a_finished_run_answers_nothing_again(tmp_path, monkeypatch):
    FakeModel(monkeypatch)
    expected = run(tmp_path)
    again = FakeModel(monkeypatch)
    assert run(tmp_path) == expected
    assert again.calls == []


def test_a_folder_of_another_config_is_refused(tmp_path, monkeypatch):
    FakeModel(monkeypatch)
    run(tmp_path)
    again = FakeModel(monkeypatch)
    with pytest.raises(ValueError, match=r"eval\.seed \(there 0, now 1\)"):
        run(tmp_path, OPTIONS + ",seed=1")
    assert again.calls == []


def test_below_the_floor_of_the_full_cache_nothing_else_is_run(tmp_path, monkeypatch):
    """A full cache of 13.8 lost to a cache of 20 % with 35.2: nothing was measured there (snu-mllab/KVzip#4)."""
    model = FakeModel(monkeypatch, right=("snapkv",))
    _, metrics = run(tmp_path)
    assert {row["method"] for row in metrics} == {"full"}
    assert {name for name, *_ in model.calls} == {"full"}
    report = (tmp_path / "report.md").read_text()
    assert "vt: not meaningful" in report and "snapkv" not in report and "unfinished" not in report


@pytest.mark.parametrize("task", ["qa_1", "qa_nexus_2", "babi_nexus_qa3", "babilong_qa1"])
def test_the_floor_holds_for_tasks_of_every_set(tmp_path, monkeypatch, task):
    """A set that went around the floor would compare methods where nothing can be lost."""
    FakeModel(monkeypatch, right=())
    _, metrics = run(tmp_path, f"length=1000,n=2,tasks={task},methods=full,snapkv,budgets=64")
    assert [(row["task"], row["method"]) for row in metrics] == [(task, "full")]


def test_tasks_that_need_files_are_looked_for_before_any_sample_is_made(tmp_path, monkeypatch):
    model, asked = FakeModel(monkeypatch), []

    def examples(name, request):
        asked.append(name)
        if name == "qa_1":
            raise ValueError("no file dev-v2.0.json")
        return model.examples(name, request)

    monkeypatch.setattr(evaluate.catalog, "examples", examples)
    with pytest.raises(plan.ConfigError, match=r"task qa_1 at length 1000: no file dev-v2\.0\.json"):
        run(tmp_path, "length=1000,n=2,tasks=vt,qa_1,methods=full,snapkv,budgets=64")
    assert asked == ["qa_1"] and not model.calls


def test_without_a_floor_everything_is_run(tmp_path, monkeypatch):
    FakeModel(monkeypatch, right=("snapkv",))
    _, metrics = run(tmp_path, OPTIONS + ",floor=0")
    assert len(metrics) == 6


def test_the_task_s_own_answer_limit_unless_the_config_sets_one(tmp_path, monkeypatch):
    """20 tokens on top of every limit made another benchmark of it (NVIDIA/kvpress)."""
    own = FakeModel(monkeypatch)
    run(tmp_path / "own", OPTIONS + ",max_new_tokens=0")
    assert {limit for *_, limit in own.calls} == {30}
    more = FakeModel(monkeypatch)
    run(tmp_path / "more", OPTIONS + ",max_new_tokens=1000")
    assert {limit for *_, limit in more.calls} == {30}
    seven = FakeModel(monkeypatch)
    run(tmp_path / "seven", OPTIONS + ",max_new_tokens=7")
    assert {limit for *_, limit in seven.calls} == {7}


@pytest.mark.parametrize(("mode", "seen", "later"), [("query_agnostic", ".", "?:"), ("query_aware", "?", ":")])
def test_the_evictor_sees_the_question_in_query_aware_runs_only(tmp_path, monkeypatch, mode, seen, later):
    """A cache built with the question in view was labelled question-agnostic; the prefix comes later in both."""
    model = FakeModel(monkeypatch)
    run(tmp_path, OPTIONS + f",question_mode={mode},floor=0")
    contexts, questions = model.prompts
    assert {chr(context[-1]) for context in contexts} == {seen}
    assert {"".join(map(chr, question)) for question in questions} == {later}


def test_a_length_beyond_the_model_is_refused_before_the_first_answer(tmp_path, monkeypatch):
    model = FakeModel(monkeypatch, max_position=999)
    with pytest.raises(plan.ConfigError, match="beyond the 999 positions"):
        run(tmp_path)
    assert model.calls == []
    assert not list(tmp_path.iterdir()), "a refused run would block the corrected one in the same folder"


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(plan.ConfigError, match="no-such-model"):
        run(tmp_path, OPTIONS + ",model=no-such-model")


def test_tiny_config_end_to_end(tmp_path):
    """The smoke run: config to report, nothing made up."""
    evaluate.run(tiny.get_config("n=1"), tmp_path)
    metrics = record.read_rows(tmp_path / "metrics.jsonl")
    assert {row["method"] for row in metrics} == {"full", "streaming_llm", "snapkv"}
    for row in metrics:
        budget = row["budget"]
        if row["method"] == "full":
            assert row["kept_fraction_mean"] == 1.0
        else:
            kept = [k for k in record.read_rows(tmp_path / "kept.jsonl") if k["method"] == row["method"]]
            assert np.mean(kept[0]["kept"]) == budget
    for row in record.read_rows(tmp_path / "tokens.jsonl"):
        assert row["tokens"][0] == "<|im_start|>" and row["question"].endswith(" is")
        total = sum(row["shares"])  # of L * K equal heads: so many tokens as one head holds
        assert total == pytest.approx(len(row["tokens"]) if row["method"] == "full" else row["budget"], rel=0.02)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"score-1024.png", "memory-1024.png", "speed-1024.png"} <= names
    assert "kept-1024.png" not in names  # these methods' heads are all equal


def test_files_of_different_sizes_are_read_cut_and_scored_end_to_end(tmp_path, capsys):
    """LongBench's tasks hold 150 to 500 records; the mean over tasks must not need the same number of each."""
    for task, answers, count in (("trec", ["City"], 3), ("lcc", ["x = 1"], 2)):
        record.append_rows(
            tmp_path / f"{task}.jsonl",
            [
                {"input": "Where?\nType:" if task == "trec" else "", "context": "word " * (40 + 200 * i), "length": 9,
                 "answers": answers, "dataset": task, "language": "en", "all_classes": ["City", "Food"], "_id": str(i)}
                for i in range(count)
            ],
        )  # fmt: skip
    config = tiny.get_config(f"length=512,n=9,tasks=trec,lcc,data_dir={tmp_path},methods=full,snapkv,batch=2")
    evaluate.run(config, tmp_path / "run")
    rows = {(row["task"], row["method"]): row for row in record.read_rows(tmp_path / "run" / "metrics.jsonl")}
    assert len(rows) == 4 and {row["variant"] for row in rows.values()} == {"longbench-nexus"}
    for (task, _), row in rows.items():
        assert (row["num_examples"], row["num_tasks"], row["num_tasks_published"]) == (
            3 if task == "trec" else 2,
            2,
            16,
        )
    assert rows["trec", "full"]["cut_share"] == 0.6667 and rows["lcc", "full"]["cut_share"] == 0.5
    predictions = record.read_rows(tmp_path / "run" / "predictions.jsonl")
    assert [row["cut_tokens"] > 0 for row in predictions[:3]] == [False, True, True]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "2 of 16 tasks" in report and "mean of 16" not in report
    assert "lcc: 50% of the prompts lost their middle to fit the length" in report
    assert "2 of 16 LongBench tasks: trec, lcc" in capsys.readouterr().out


def _untimed(rows):
    keep = [{k: v for k, v in row.items() if k not in TIMINGS and not k.endswith("_per_s")} for row in rows]
    return sorted(keep, key=lambda row: (row["method"], row["budget"], row["task"], row.get("index", 0)))


def test_methods_without_trained_parts_are_left_out_of_all_and_refused_by_name(capsys):
    """`all` must run for every model; a method that was asked for must not vanish from a table."""
    for options, every in (("methods=all", True), ("methods=full,snapkv,trimkv", False)):
        config = plan.resolve(tiny.get_config(options))
        model = evaluate.models.load(config)
        if every:
            able = [evaluate.models.runnable(config, model, plan.cells(config), every, told=t) for t in (True, False)]
            left, untold = ({cell.method for cell in cells} for cells in able)
            assert set(config.eval.methods) - left == {"trimkv", "global_retention", "judgeq"}
            assert left - untold == {"oracle"}
            printed = capsys.readouterr().out
            assert "left out: method 'trimkv': gates='trimkv' is no file" in printed
            assert "left out: method 'oracle': this experiment tells it no answers" in printed
        else:
            with pytest.raises(plan.ConfigError, match="method 'trimkv': gates='trimkv' is no file"):
                evaluate.models.runnable(config, model, plan.cells(config), every)
