"""Rows in plain lines where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from experiments.progress import HEADER, Progress

ROW = {
    "length": 1024, "method": "snapkv", "budget": 102, "task": "niah_single_1", "score": 80.0, "score_low": 60.0,
    "score_high": 95.0, "num_examples": 10, "kept_fraction_mean": 0.118, "prefill_tokens_per_s": 812.4,
    "decode_tokens_per_s": None,
}  # fmt: skip


def test_rows_are_whole_plain_lines_without_a_terminal():
    out = io.StringIO()
    with Progress(total=20, console=Console(file=out, force_terminal=False, width=40)) as progress:
        progress.advance(10)
        progress.row(ROW)
        progress.row(ROW | {"score_low": None, "score_high": None})
    header, first, second = out.getvalue().splitlines()
    assert header == HEADER and "\x1b" not in out.getvalue()
    assert first.split()[:5] == ["1024", "snapkv", "102", "niah_single_1", "80.0"]
    assert "[60, 95]" in first and "812 t/s" in first and "11.8%" in first
    assert "[" not in second


def test_time_left_goes_by_what_this_process_did(monkeypatch):
    """Examples an earlier run answered took this one no time: they say nothing about its pace."""
    clock = {"now": 0.0}
    monkeypatch.setattr("experiments.progress.time.monotonic", lambda: clock["now"])
    progress = Progress(total=100, console=Console(file=io.StringIO()))
    progress.skip(50)
    assert progress.left() == "?"
    clock["now"] = 10.0
    progress.advance(10)
    assert progress.left() == "0m40s"
    progress.skip(40)
    assert progress.left() == "0m00s"
