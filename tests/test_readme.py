"""The README's generated parts are current and its commands name files that exist."""

from __future__ import annotations

import re

import pytest

from nexus import record
from tools import readme

TEXT = (record.ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", readme.DOCUMENTS)
def test_generated_parts_are_current(name):
    text = (record.ROOT / name).read_text("utf-8")
    assert "<!-- end of" in text and readme.filled(text) == text, "run: make readme"


def test_the_two_commands_come_first_and_name_real_files():
    block = re.search(r"```(?:bash)?\n(.*?)```", TEXT, re.S)
    run, test = (line for line in block[1].splitlines() if line and not line.startswith("#"))
    assert "launch.py --config=configs/llama_ruler.py" in run and run.startswith("python3 -m venv .venv && ")
    assert test.endswith("-m pytest")
    for name in re.findall(r"-r (\S+)", block[1]) + re.findall(r"config=(\S+)", block[1]):
        assert (record.ROOT / name).is_file()


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (record.ROOT / target).exists(), target


def test_first_paragraph_says_that_eviction_is_lossy():
    """Users asked whether it is lossy (NVIDIA/kvpress#130)."""
    paragraphs = [part for part in TEXT.split("\n\n") if part.strip() and not part.startswith(("#", "```"))]
    assert "lossy" in paragraphs[0] and "serving engine" in paragraphs[0]
