"""The report as one HTML page that needs nothing else: style, script and figures lie inside it.

Everything that is not this folder's own goes through jinja2's autoescape; a content security policy, which allows the
two inline blocks by their hashes and nothing from anywhere, stands behind it. Without JavaScript the page lacks
only the sorting of tables.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from experiments import boards, paired
from experiments.page import examples
from experiments.paired import Pair
from experiments.sections import Picture, Section

HERE = Path(__file__).resolve().parent
DOTS = 96 / 150  # CSS pixels per pixel of a figure
WIDE = 560  # CSS pixels: a figure wider than this stays readable on a phone by scrolling, not by shrinking


def html(found: Sequence[Section], pairs: Sequence[Pair], folder: Path) -> str:
    """The page. folder: where the pictures of the sections lie."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"inline": inline, "picture": functools.partial(_picture, folder)}
    style, script = ((HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return environment.get_template("page.html").render(
        sections=found,
        shown=[examples.of(section.results) for section in found],
        pairs=[(pair, paired.remarks(pair), boards.paired(pair)) for pair in pairs],
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        scores_note=boards.SCORES_NOTE,
        costs_note=boards.COSTS_NOTE,
        paired_note=paired.NOTE,
        levels=examples.LEVELS,
        not_recorded=examples.NOT_RECORDED,
        least=examples.LEAST,
        not_meaningful=boards.NOT_MEANINGFUL,
    )


def inline(text: str) -> Markup:
    """`code` and **bold** of a Markdown line; all else as it is written."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", marked))


def _picture(folder: Path, picture: Picture) -> dict[str, str | int | bool]:
    """What an img element of a PNG needs. Raises ValueError for a file that is none."""
    data = (folder / picture.path).read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        raise ValueError(f"{folder / picture.path} is not a PNG picture")
    width, height = (round(size * DOTS) for size in struct.unpack(">II", data[16:24]))
    source = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
    return {"source": source, "width": width, "height": height, "wide": width > WIDE}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
