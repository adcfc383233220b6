"""The notebooks run from top to bottom in a clean kernel, with small settings in place of their own; and what is
committed is the output of such a run.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MAX_LINES = 25  # of a cell: one screen
QUICK: dict[str, str] = {  # in place of a notebook's settings; byte tokens, random weights
    "quickstart": "model, repeats = 'tiny-llama', 2",
    "needle_map": "model, methods, needles, runs = 'tiny-llama', 'full,streaming_llm,snapkv', 1, {runs!r}\n"
    "lengths, depths = '900,1024', '0,50,100'",
    "train_gates": "model, steps, row, aim, length, prompts, runs = 'tiny-llama', 3, 1024, 16, 1024, 2, {runs!r}",
    "your_own_scorer": "model, prompts = 'tiny-llama', 2",
}
QUICKLY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is nearly all of the time
NO_DOWNLOAD = """
import os
from nexus.training import rows, texts
from tests.training.conftest import PROSE
os.environ["NEXUS_CACHE"], rows.BLOCK, texts.library = {cache!r}, 4, lambda: (PROSE,)
"""
SAYS = {  # what the run must have come to
    "quickstart": ("full:", "streaming_llm:", "% of the full cache's bytes"),
    "needle_map": ("needle_map_50", "report:", "hidden:", "streaming_llm, score", "% of the text's entries"),
    "train_gates": ("0 of 3 steps are done", "report:", "global_retention:", "of 100"),
    "your_own_scorer": ("'weight': 1.0", "6 of 6 heads hold the same positions", "unusual, global:"),
}
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def name(path: Path) -> str:
    """The name without its number."""
    return re.sub(r"^\d+_", "", path.stem)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters(notebook: Any) -> int:
    """Place of the cell with the settings."""
    (at,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    return at


def assigned(source: str) -> set[str]:
    """Names that a source sets at its top."""
    targets = [target for node in ast.parse(source).body if isinstance(node, ast.Assign) for target in node.targets]
    return {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}


def text_of(notebook: Any) -> str:
    """All that was printed."""
    return "".join(out.get("text", "") for cell in code(notebook) for out in cell.outputs)


@by_name
def test_every_cell_runs(path, tmp_path):
    """Stale argument names in published examples fail at the first call (NVIDIA/kvpress#249)."""
    notebook = nbformat.read(path, as_version=4)
    quick = QUICK[name(path)].format(runs=str(tmp_path / "runs"))
    at = parameters(notebook)
    assert assigned(quick) <= assigned(notebook.cells[at].source), "a setting that the notebook does not have"
    if name(path) == "train_gates":
        quick += NO_DOWNLOAD.format(cache=str(tmp_path / "cache"))
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(quick))
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=400, kernel_name="python3", resources=where).execute(env=os.environ | QUICKLY)
    printed = text_of(notebook)
    assert "\x1b" not in printed, "a notebook is no terminal"
    assert [part for part in SAYS[name(path)] if part not in printed] == []


@by_name
def test_what_is_committed_was_run_in_order_and_says_nothing_of_the_machine(path):
    """An output that no run has made, or one of a half-edited notebook, misleads its readers."""
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [out for cell in code(notebook) for out in cell.outputs]
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", ()) for out in outputs)
    shown = [out.get("text", "") + str(out.get("data", {}).get("text/plain", "")) for out in outputs]
    assert not re.findall(r"\x1b|/(?:root|home|Users|tmp|work|content|usr)/\S*", "".join(shown))


@by_name
def test_cells_fit_a_screen_and_all_install_alike(path):
    """The first code cell makes the rest run on Colab; a mended one must be mended everywhere."""
    notebook = nbformat.read(path, as_version=4)
    assert max(len(cell.source.splitlines()) for cell in code(notebook)) <= MAX_LINES
    first = [code(nbformat.read(other, as_version=4))[0].source for other in NOTEBOOKS]
    assert len(set(first)) == 1 and "requirements.txt" in first[0]
    assert parameters(notebook) > notebook.cells.index(code(notebook)[0])
