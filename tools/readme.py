"""Writes the generated parts of README.md: the file tree and the method table. `make readme`; a test checks them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nexus import methods  # noqa: E402  (the line above makes it findable)

FOLDERS = ("configs", "experiments", "nexus", "tools")
WIDTH = 120


def tree() -> str:
    """One line per file: its name and the first sentence of its docstring."""
    lines = [_line("launch.py", 0, _about(ROOT / "launch.py"))]
    for folder in FOLDERS:
        lines += _folder(ROOT / folder, 0)
    lines.append(_line("tests/", 0, "mirrors the sources file by file; tests/parity compares with torch packages"))
    return "\n".join(["```", *lines, "```"])


def _folder(path: Path, depth: int) -> list[str]:
    init = path / "__init__.py"
    lines = [_line(path.name + "/", depth, _about(init) if init.exists() else "")]
    for file in sorted(path.glob("*.py")):
        if file.name != "__init__.py":
            lines.append(_line(file.name, depth + 1, _about(file)))
    for inner in sorted(p for p in path.iterdir() if p.is_dir() and any(p.glob("*.py"))):
        lines += _folder(inner, depth + 1)
    return lines


def _line(name: str, depth: int, about: str) -> str:
    text = f"{'  ' * depth + name:<30}{about}".rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 3].rsplit(" ", 1)[0] + " .."


def _about(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<=[.?!]) ", first)[0].rstrip(".")


def filled(text: str) -> str:
    """`text` with both generated parts renewed. Raises ValueError if a part's marks are missing."""
    for name, part in (("tree", tree()), ("methods", methods.table())):
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"README.md must have {start} and {end} once each")
        before, rest = text.split(start)
        text = f"{before}{start}\n{part}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text("utf-8")), "utf-8")
