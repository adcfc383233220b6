"""Writes what README.md and docs/files.md take from the sources: configs, folders, methods, files. `make readme`."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nexus import methods  # noqa: E402  (the line above makes it findable)

FOLDERS = ("configs", "experiments", "nexus", "tools")
DOCUMENTS = ("README.md", "docs/files.md")
WIDTH = 120


def folders() -> str:
    """One line per folder."""
    lines = [_line("launch.py", 0, _about(ROOT / "launch.py"))]
    for folder in FOLDERS:
        lines += _folder(ROOT / folder, 0, files=False)
    lines.append(_line("notebooks/", 0, "for Colab or here: from a first answer to a scorer of your own"))
    lines.append(_line("tests/", 0, "mirrors the sources file by file; tests/parity compares with torch packages"))
    return "\n".join(["```", *lines, "```"])


def tree() -> str:
    """One line per file: its name and the first sentence of its docstring."""
    lines = [_line("launch.py", 0, _about(ROOT / "launch.py"))]
    for folder in FOLDERS:
        lines += _folder(ROOT / folder, 0, files=True)
    return "\n".join(["```", *lines, "```"])


def configs() -> str:
    """One line per config that a person runs."""
    files = [file for file in sorted((ROOT / "configs").glob("*.py")) if file.stem not in ("__init__", "base")]
    return "\n".join(["| config | question |", "|---|---|", *(f"| `{f.stem}` | {_about(f)} |" for f in files)])


def _folder(path: Path, depth: int, files: bool) -> list[str]:
    init = path / "__init__.py"
    lines = [_line(path.name + "/", depth, _about(init) if init.exists() else "")]
    for file in sorted(path.glob("*.py")) if files else ():
        if file.name != "__init__.py":
            lines.append(_line(file.name, depth + 1, _about(file)))
    for inner in sorted(p for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))):
        lines += _folder(inner, depth + 1, files)
    return lines


def _line(name: str, depth: int, about: str) -> str:
    text = f"{'  ' * depth + name:<30}{about}".rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 3].rsplit(" ", 1)[0] + " .."


def _about(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<=[.?!]) ", first)[0].rstrip(".")


def filled(text: str) -> str:
    """`text` with every generated part it has marks for renewed. Raises ValueError if an end mark is missing."""
    for name, part in (("configs", configs), ("folders", folders), ("tree", tree), ("methods", methods.table)):
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if (text.count(start), text.count(end)) == (0, 0):
            continue
        if (text.count(start), text.count(end)) != (1, 1):
            raise ValueError(f"{start} and {end} must stand once each")
        before, rest = text.split(start)
        text = f"{before}{start}\n{part()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    for name in DOCUMENTS:
        document = ROOT / name
        document.write_text(filled(document.read_text("utf-8")), "utf-8")
