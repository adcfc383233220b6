"""The command line: what is wrong ends in one line before anything is loaded; every config has a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types

import pytest

import launch
from configs import llama_ruler, tiny
from experiments import plan
from nexus import record

TINY = "--config=configs/tiny.py"


def launched(*arguments, cwd=record.ROOT):
    environment = {**os.environ, "PYTHONPATH": str(record.ROOT)}
    command = [sys.executable, str(record.ROOT / "launch.py"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def refused(capsys, *arguments):
    """Parses in this process; returns the line that is printed."""
    with pytest.raises(SystemExit) as stop:
        launch.parse(["launch.py", *arguments])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("launch.py: ") and line.count("\n") == 1
    return line


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(record.ROOT)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TINY, "--config.eval.num_exampels=3"], "no 'num_exampels'; allowed here: batch_size, budgets,"),
        ([TINY, "--config.evil.seed=3"], "no 'evil'; allowed here: cache, eval, experiment, method, model"),
        ([TINY, "--config.eval.seed.x=3"], "no 'x'; allowed here: nothing"),
        ([TINY, "--config.method.snapkv.windw=3"], "no 'windw'; allowed here:"),
        (["--config", "configs/tiny.py", "--config.eval.sead=3"], "no 'sead'"),
        ([TINY + ":lenght=1"], "'lenght'; allowed after the colon: batch,"),
        ([TINY + ":n=x"], "eval.num_examples takes one int; got 'x'"),
        (
            ["--config=configs/tinny.py"],
            "no such file; configs here: configs/",
        ),
        (["--bad=1"], "bad"),
    ],
)
def test_wrong_keys_files_and_options_are_refused_with_the_allowed_ones(capsys, arguments, said):
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([TINY, "--config.eval.num_examples=3.5"], "--config.eval.num_examples=3.5"),
        ([TINY, "--config.eval.methods=full,snap"], "eval.methods='snap' is not known; allowed: full,"),
        ([TINY, "extra"], "unknown argument 'extra'"),
        ([TINY, "--config.experiment=evaluat"], "experiment 'evaluat' is not known; allowed: evaluate"),
        ([], "--config is missing"),
    ],
)
def test_wrong_values_end_in_one_line_and_exit_code_2(tmp_path, arguments, said):
    done = launched(*arguments, "--workdir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_smoke_command_runs_and_repeats_without_work(tmp_path):
    """An existing folder got a numeric suffix, so that "already done" never fired (NVIDIA/kvpress)."""
    arguments = [TINY + ":n=1,tasks=niah_single_1,methods=full,streaming_llm", "--config.eval.seed=3"]
    first = launched(*arguments, "--workdir", str(tmp_path))
    assert first.returncode == 0, first.stderr
    rows = record.read_rows(tmp_path / "metrics.jsonl")
    assert [row["method"] for row in rows] == ["full", "streaming_llm"] and {row["seed"] for row in rows} == {3}
    second = launched(*arguments, "--workdir", str(tmp_path))
    assert second.returncode == 0 and record.read_rows(tmp_path / "metrics.jsonl") == rows
    other = launched(TINY, "--workdir", str(tmp_path))
    assert other.returncode == 2 and "eval.seed (there 3, now 0)" in other.stderr


def test_configs_that_differ_in_any_field_have_different_folders():
    """0.875 and 0.88 shared a folder, as did runs that differed in the seed alone (NVIDIA/kvpress)."""
    options = ["", "ratios=0.875", "ratios=0.88", "seed=1", "sinks=0", "recent=0", "n=9", "tail=free", "chunk=64"]
    configs = [llama_ruler.get_config(text) for text in options]
    configs.append(llama_ruler.get_config())
    configs[-1].method.snapkv.window = 8
    folders = {launch.default_workdir("configs/llama_ruler.py:x=1", plan.resolve(config)) for config in configs}
    assert len(folders) == len(configs)
    for folder in folders:
        assert re.fullmatch(r"runs/llama_ruler-[0-9a-f]{12}", folder)


def test_the_same_settings_written_differently_share_a_folder():
    written = [llama_ruler.get_config(text) for text in ("length=512,1024", "length=512;1024,n=10")]
    assert len({launch.default_workdir("configs/llama_ruler.py", plan.resolve(config)) for config in written}) == 1


def test_help_of_a_config_and_of_the_program(capsys):
    said = launch.help_text([TINY + ":n=7", "--help"])
    assert "Smoke run" in said and "  eval.num_examples=7  [n]" in said
    said = launch.help_text(["--help"])
    assert "130 stopped by Ctrl-C" in said and "configs/llama_ruler.py" in said
    with pytest.raises(ValueError, match="no such file; configs here"):
        launch.help_text(["--config", "configs/tinny.py", "--help"])


def test_help_ends_well_and_help_of_a_wrong_config_does_not():
    done = launched(TINY, "--help")
    assert done.returncode == 0 and "Smoke run" in done.stdout
    assert launched(TINY + ":lenght=1", "--help").returncode == 2


def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    def run(config, workdir):
        raise KeyboardInterrupt

    experiment = types.SimpleNamespace(resolve=plan.resolve, run=run)
    monkeypatch.setattr(launch, "load_experiment", lambda name: experiment)
    monkeypatch.setattr(launch, "_CONFIG", types.SimpleNamespace(value=tiny.get_config()))
    monkeypatch.setattr(launch, "_WORKDIR", types.SimpleNamespace(value=str(tmp_path)))
    with pytest.raises(SystemExit) as stop:
        launch.main(["launch.py"])
    assert stop.value.code == 130
    assert f"kept in {tmp_path}, continue with the same command" in capsys.readouterr().err
