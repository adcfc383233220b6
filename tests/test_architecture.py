"""The rooms of the house and the doors between them, by parsing the sources: nothing is imported here."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OWN = ("nexus", "experiments", "configs", "tools", "launch", "tests")
ROOMS = ("nexus", "experiments", "configs", "tools")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py")) + [ROOT / "launch.py"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 350

# Who may not import whom; a name stands for itself and everything below it.
CORE = ["nexus.shapes", "nexus.rope", "nexus.attention", "nexus.buffer"]
PARTS = ["nexus.scorers", "nexus.allocators", "nexus.samplers", "nexus.compensators"]
COMPOSED = ["nexus.methods", "nexus.evict", "nexus.decode", "nexus.programs", "nexus.generate", "nexus.answers"]
LOADING = ["nexus.models.load", "nexus.models.tokenizer", "nexus.models.chat"]
OUTSIDE = ["experiments", "configs", "launch", "ml_collections"]
CLOSED = [
    ("nexus", OUTSIDE),
    *[(room, [*PARTS, *COMPOSED, "nexus.models", "nexus.tasks"]) for room in CORE],
    *[(room, [*COMPOSED, *LOADING, "nexus.tasks"]) for room in PARTS],
    (
        "nexus.methods",
        ["nexus.evict", "nexus.decode", "nexus.programs", "nexus.generate", "nexus.models", "nexus.tasks"],
    ),
    ("nexus.models", ["nexus.buffer", "nexus.attention", *PARTS, *COMPOSED, "nexus.tasks"]),
    ("nexus.tasks", [*CORE, *PARTS, *COMPOSED, "nexus.models"]),
    ("nexus.metrics", [*CORE, *PARTS, *COMPOSED, "nexus.models", "jax"]),
    ("nexus.record", [*CORE, *PARTS, *COMPOSED, "nexus.models", "nexus.tasks"]),
    *[
        (room, ["nexus.models", "nexus.tasks", *CORE, *PARTS, *COMPOSED, "jax", "ml_collections", "experiments.plan"])
        for room in (
            "experiments.report",
            "experiments.summary",
            "experiments.figures",
            "experiments.joined",
            "experiments.paired",
            "experiments.boards",
            "experiments.sections",
            "experiments.sheet",
            "experiments.page",
        )
    ],
    ("experiments", ["launch", "configs"]),
    ("configs", ["launch", "experiments", "nexus.models", "nexus.tasks"]),
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports; `from a import b` gives a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def below(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_one_way(path):
    own = module_name(path)
    crossed = [
        f"{own} imports {name}"
        for room, closed in CLOSED
        if below(own, room)
        for name in imports(path)
        for other in closed
        if below(name, other) and name not in TYPES_ONLY.get(own, ())
    ]
    assert not crossed


TYPES_ONLY = {"nexus.metrics": ("nexus.tasks.example", "nexus.tasks.example.Example")}


def test_scorers_do_not_know_each_other():
    """Varying one scorer by importing another ties their defaults together: hold it as a field instead."""
    shared = [f"nexus.scorers.{name}" for name in SHARED_BY_SCORERS]
    for path in (ROOT / "nexus" / "scorers").glob("*.py"):
        if path.stem != "__init__" and path.stem not in SHARED_BY_SCORERS:
            others = {name for name in imports(path) if below(name, "nexus.scorers")} - {"nexus.scorers"}
            assert all(any(below(name, file) for file in shared) for name in others), path


SHARED_BY_SCORERS = ("base", "ring", "redundancy")  # hold no scorer, or only the base class


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=module_name)
def test_nothing_private_of_another_package_is_used(path):
    """`jax._src` moves with every release."""
    tree = ast.parse(path.read_text("utf-8"))
    foreign = {name for name in imports(path) if name.split(".")[0] not in OWN and name != "__future__"}
    private = {name for name in foreign if any(re.match(r"_(?!_)", part) for part in name.split("."))}
    aliases = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] not in OWN
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
            base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in aliases:
                private.add(f"{base.id}...{node.attr}")
    assert not private


MUTATING = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove", "discard"}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_no_module_global_changes(path):
    tree = ast.parse(path.read_text("utf-8"))
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    changed = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        local = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        local |= {node.arg for node in inside if isinstance(node, ast.arg)}
        shared = assigned - local
        for node in inside:
            if isinstance(node, ast.Global):
                changed += node.names
            elif isinstance(node, ast.Attribute) and node.attr in MUTATING and _name(node.value) in shared:
                changed.append(f"{_name(node.value)}.{node.attr}")
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _name(node.value) in shared:
                changed.append(f"{_name(node.value)}[...] = ...")
    assert not changed


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=module_name)
def test_nothing_is_left_for_later(path):
    marks = re.findall(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b", path.read_text("utf-8"))
    assert not marks


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_file_holds_one_idea(path):
    """More than this many lines hold a second one."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "says what it is"
    assert path.stem not in ("utils", "util", "helpers", "misc", "common")


def test_tests_stand_where_their_source_does():
    """tests/tasks/test_fit.py is the test of nexus/tasks/fit.py. Tests of the whole stand at the top."""
    names = ("adding_a_method", "architecture", "configs", "contracts", "launch", "notebooks", "readme")
    whole = {f"test_{name}.py" for name in names}
    for path in TESTS:
        inside = path.relative_to(ROOT / "tests")
        if path.name.startswith("test_") and inside.parts[0] != "parity" and str(inside) not in whole:
            source = inside.with_name(path.name.removeprefix("test_"))
            tops = [ROOT, ROOT / "nexus"]
            found = [top / form for top in tops for form in (source, source.with_suffix("")) if (top / form).exists()]
            assert found, f"{path.relative_to(ROOT)} has no source file"


def test_the_standard_library_is_not_shadowed():
    names = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert not names & sys.stdlib_module_names
