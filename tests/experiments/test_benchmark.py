"""The whole benchmark on a preset, in seconds: rows, report, and what a second start does."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest
from matplotlib.image import imread

from configs import benchmark as configs_benchmark
from experiments import benchmark
from experiments.bench import layout, report, theirs, timing
from experiments.bench.timing import Measure, Ratio
from nexus import methods, record
from nexus.models.load import load_model

SMALL = (
    "model=tiny-llama,dtype=float32,task=niah_single_1,lengths=256,chunks=32,batches=1,budget=48,repeats=2,"
    "decode_steps=8,evict_every=8,cell_length=1024,cell_prompts=2,cell_batch=2"
)
CASES = [
    ("prefill", "256 tokens"), ("decode", "batch 1"), ("layout", "chunk of 32, batch 1"), ("layout", "decode, batch 1"),
    ("memory", "peak of prefill"), ("memory", "keys and values"), ("systems", "keydiff"), ("systems", "judgeq"),
]  # fmt: skip
MOST = ",parts=prefill+decode+layout+memory+systems,unequal=knorm,systems=keydiff+judgeq"


def config(options=""):
    made = configs_benchmark.get_config(SMALL + options)
    made.bench.spread = (5, 130)
    made.bench.memory_prompts = (512, 8192)
    made.bench.memory_full = (1024,)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark")
    benchmark.run(config(MOST), path)
    return path


def rows(path):
    return {(row["part"], row["case"]): row for row in record.read_rows(path / "results.jsonl")}


def ratio(row, top, bottom):
    return next(r for r in row["ratios"] if (r["top"], r["bottom"]) == (top, bottom))


def test_every_case_leaves_one_row_with_samples_and_where_they_were_made(folder):
    found = rows(folder)
    assert list(found) == CASES
    for row in found.values():
        if row["case"] != "judgeq":  # has no soft tokens for this model
            assert {len(samples) for samples in row["samples"].values()} == {1 if row["part"] == "memory" else 2}
        assert all(value > 0 for samples in row["samples"].values() for value in samples)
        assert row["environment"]["cpus"] and row["environment"]["machine"] and row["environment"]["git_commit"]
        assert row["environment"]["versions"]["jax"]
    prefill = found["prefill", "256 tokens"]
    assert {"full", "streaming_llm, chunk 32", "knorm global, chunk 32"} <= set(prefill["samples"])
    assert {"equal heads", "unequal heads"} == set(found["layout", "decode, batch 1"]["samples"])
    assert {"full", "streaming_llm", "knorm", "knorm global"} <= set(found["decode", "batch 1"]["samples"])


def test_a_method_costs_more_than_nothing_and_one_without_its_parts_says_so(folder):
    """Score and selection hidden in a step that is not timed would look free."""
    found = rows(folder)
    cost = found["systems", "keydiff"]
    assert cost["ratios"][0]["at_most"] == round(1 / 0.85, 3) and cost["ratios"][0]["median"] > 0.5
    peaks = cost["facts"]["peak bytes of the program"]
    assert set(peaks) == {"with the method", "the model alone"} and min(peaks.values()) > 0
    assert "train_judgeq" in found["systems", "judgeq"]["missing"]["with the method"]
    assert "keydiff" in (folder / "report.md").read_text()


def test_the_cache_is_full_when_decoding_is_timed(folder):
    (entries,) = rows(folder)["decode", "batch 1"]["facts"].values()
    assert set(entries.values()) == {48.0}


def test_memory_does_not_know_the_prompt_and_is_the_formula(folder):
    """Slots of a padded cache were counted as saved while the tensors kept their size (NVIDIA/kvpress)."""
    peak = rows(folder)["memory", "peak of prefill"]
    flat = ratio(peak, "streaming_llm, 8192 tokens", "streaming_llm, 512 tokens")["median"]
    assert 1.0 <= flat < 1.1  # the token ids are part of it
    held = rows(folder)["memory", "keys and values"]
    for name in ("knorm, table", "knorm global, table"):
        assert ratio(held, name, "budget * L * K * 2 * H * bytes")["median"] == 1.0


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="says what happens without torch")
def test_what_is_not_installed_is_said_in_plain_words(folder):
    found = rows(folder)
    assert found["prefill", "256 tokens"]["missing"] == {"transformers": "not installed: torch, transformers"}
    assert "not installed: torch" in (folder / "report.md").read_text()


def test_report_has_all_ratios_and_a_picture(folder):
    text = (folder / "report.md").read_text()
    for row in rows(folder).values():
        for found in row["ratios"]:
            assert f"{found['top']} / {found['bottom']}" in text
    assert re.search(r"unequal heads / equal heads .*<= 1.1: (met|missed)", text)
    assert "jaxlib" in text and "cores" in text and "commit" in text
    assert imread(folder / "figures" / "ratios.png")[..., :3].std() > 0.02


def test_a_cell_goes_from_prompts_to_scores(tmp_path):
    benchmark.run(config(",parts=cell"), tmp_path)
    (row,) = rows(tmp_path).values()
    assert row["case"] == "niah_single_1, 1024 tokens, 2 prompts"
    assert {"snapkv, streaming", "snapkv, oneshot"} <= set(row["samples"])
    assert all(len(samples) == 1 and samples[0] > 0 for samples in row["samples"].values())
    (scores,) = row["facts"].values()
    assert set(scores) == set(row["samples"])
    if importlib.util.find_spec("torch") is None:
        assert "kvpress" in row["missing"]["kvpress SnapKVPress"]


def test_a_second_start_measures_only_what_is_missing(folder, tmp_path, monkeypatch):
    made = record.read_rows(folder / "results.jsonl")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    record.append_rows(tmp_path / "results.jsonl", [row for row in made if row["part"] != "memory"])
    measured = []
    real = timing.take_turns
    monkeypatch.setattr(timing, "take_turns", lambda measure, tell: measured.append(measure) or real(measure, tell))
    benchmark.run(config(MOST), tmp_path)
    assert len(measured) == 2 and len(rows(tmp_path)) == len(made)
    benchmark.run(config(MOST), tmp_path)
    assert len(measured) == 2


def test_a_case_is_measured_again_once_its_package_is_installed():
    row = {"missing": {"transformers": "not installed: torch"}}
    assert benchmark._can_now(row, {"transformers": "", "kvpress": ""})
    assert not benchmark._can_now(row, {"transformers": "not installed: torch", "kvpress": ""})
    assert not benchmark._can_now({"missing": {"transformers": "not asked for"}}, {"transformers": "", "kvpress": ""})


def test_contenders_run_in_turn_after_a_warm_up():
    ran = []
    contenders = {name: lambda turn, name=name: ran.append((name, turn)) or float(turn + 1) for name in "ab"}
    samples = timing.take_turns(Measure(unit="s", contenders=contenders, turns=4, group=2), lambda line: None)
    assert ran == [("a", 0), ("b", 0)] + [(name, turn) for turn in range(4) for name in "ab"]
    assert samples == {"a": [3.0, 7.0], "b": [3.0, 7.0]}


def test_ratios_are_formed_turn_by_turn():
    measure = Measure(unit="s", contenders={}, ratios=[Ratio(top="a", bottom="b"), Ratio(top="a", bottom="gone")])
    (row,) = timing.ratio_rows(measure, {"a": [2.0, 9.0, 4.0], "b": [1.0, 3.0, 4.0]})
    assert (row["median"], row["min"], row["max"], row["n"]) == (2.0, 1.0, 3.0, 3)


@pytest.mark.parametrize(("owners", "budget", "low", "high"), [(90, 256, 15, 710), (6, 48, 5, 130), (4, 10, 9, 12)])
def test_the_prescribed_spread_is_exact(owners, budget, low, high):
    counts = layout.spread_counts(owners, budget, low, high)
    assert counts.sum() == owners * budget and (counts.min(), counts.max()) == (low, high)


def test_a_spread_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="3 heads of 1 to 100 rows cannot hold 99"):
        layout.spread_counts(3, 99, 1, 100)


def test_the_unequal_table_is_full_and_in_order():
    model = load_model("tiny-llama")
    bench = benchmark.shared.Bench(
        cfg=benchmark.resolve(config()).bench, model=model, theirs=None, why_not={}, examples=[]
    )
    method = methods.build("streaming_llm", budget=48, allocator="global")
    buffer = layout.filled(bench, method, method.layout(model.config, tail=8), 2)
    start, count, pos = (np.asarray(x) for x in (buffer.start, buffer.count, buffer.pos))
    for b in range(2):
        begins, rows_of = start[b].ravel(), count[b].ravel()
        assert begins[0] == 0 and (begins[1:] == begins[:-1] + rows_of[:-1]).all() and rows_of.sum() == pos.shape[1]
        for begin, n in zip(begins, rows_of, strict=True):
            np.testing.assert_array_equal(pos[b, begin : begin + n], np.arange(n))
    assert (count.min(), count.max()) == (5, 130)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (",parts=prefil", "bench.parts='prefil' is not known; allowed: prefill, decode,"),
        (",against=vllm", "bench.against='vllm' is not known; allowed: transformers, kvpress"),
        (",lengths=x", "bench.lengths takes whole numbers; got 'x'"),
        (",cell_prompts=3,cell_batch=2", "no multiple of cell_batch=2"),
        (",equal=full", "'full' does not"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(options, said):
    keep = ",".join(p for p in SMALL.split(",") if p.split("=")[0] not in options)
    made = configs_benchmark.get_config(keep + options)
    made.bench.spread = (5, 130)
    with pytest.raises(ValueError, match=re.escape(said)):
        benchmark.resolve(made)


def test_reasons_not_to_compare():
    cfg = load_model("tiny-qwen2").config
    assert theirs.why_not("kvpress", ("transformers",), cfg) == "not asked for"


def test_report_reads_half_a_run(folder, tmp_path):
    lines = (folder / "results.jsonl").read_text().splitlines()
    (tmp_path / "results.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    assert report.write(tmp_path).count("\n") > 3
    assert json.loads(lines[0])["part"] == "prefill"
