"""Exit codes of the commands, and that wrong input is one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import report
from nexus import cli, fetch, manual
from nexus.tasks import __main__ as tasks

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"methods": manual.main, "tasks": tasks.main, "fetch": fetch.main}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_with_an_example_and_ends_well(name, capsys):
    with pytest.raises(SystemExit) as end:
        COMMANDS[name](["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: python -m nexus.{name}" in said and f"example: python -m nexus.{name} " in said


def test_help_of_the_report(capsys):
    assert report.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "usage: python -m experiments.report" in said and "example: " in said and "--out FOLDER" in said


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (manual.main, ["snapvk"], "no method 'snapvk'; allowed: full, "),
        (tasks.main, ["needle_map_101"], "no task or set 'needle_map_101'; allowed: ruler, "),
        (fetch.main, ["--all"], "unrecognized arguments: --all"),
        (report.main, [], "the following arguments are required"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(main, arguments, said, capsys):
    """argparse alone prints its usage, over several lines, before what is wrong."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    line = capsys.readouterr().err
    assert code == 2 and said in line and line.count("\n") == 1


def test_ctrl_c_is_130_without_a_traceback(monkeypatch, capsys):
    def stopped(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(SystemExit) as end:
        cli.run(stopped, "the same command goes on")
    assert end.value.code == 130 and capsys.readouterr().err == "stopped; the same command goes on\n"


def test_a_crash_is_not_hidden(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(ZeroDivisionError):
        cli.run(lambda arguments: 1 // 0)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["ruler"], "niah_multikey_3 "),
        (["vt"], "of the set ruler"),
        (["needle_map_33"], "example: python launch.py --config=configs/llama_ruler.py:tasks=needle_map_33,limit=2"),
    ],
)
def test_a_task_or_set_by_name(names, said, capsys):
    assert tasks.main(names) == 0
    assert said in capsys.readouterr().out


def test_a_reader_that_stops_is_no_error():
    """`python -m nexus.tasks | head` ended in a traceback; here the reader is gone before the first line."""
    command = f"{sys.executable} -m nexus.tasks | true"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
