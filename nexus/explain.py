"""What a setting means, from where it is defined: the comment at the end of its line."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize


def notes(source: str) -> dict[str, str]:
    """Target of each assignment of a source text, as it is written there, -> the comment at the end of its last line.

    Targets without a comment are left out; of several assignments to one target the first counts, outer ones before
    those inside a branch.
    """
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {word.start[0]: word.string.lstrip("# ").strip() for word in words if word.type == tokenize.COMMENT}
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            comment = comments.get(node.end_lineno or 0, "")
            if comment.startswith(("type:", "fmt:", "noqa")):
                comment = ""
            for target in targets:
                found.setdefault(ast.unparse(target), comment)
    return {target: comment for target, comment in found.items() if comment}


def field_notes(part: object) -> dict[str, str]:
    """Field of a dataclass instance -> the comment beside its definition, in its class or the nearest base."""
    found: dict[str, str] = {}
    names = {field.name for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    for kind in type(part).__mro__:
        if dataclasses.is_dataclass(kind):
            own = notes(textwrap.dedent(inspect.getsource(kind)))
            found |= {name: text for name, text in own.items() if name in names and name not in found}
    return found
