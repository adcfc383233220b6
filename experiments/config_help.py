"""The help of a config: its docstring, and its keys with their defaults, other names and meaning.

Meanings are the comments beside the assignments, in the config's own file or else in configs/base.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from nexus import explain

KEYS = "keys, as --config.KEY=VALUE: defaults here, in brackets the short names after the colon, and the meaning"
METHODS = "method"  # the section with the options of all methods, which `python -m nexus.methods NAME` explains


def text(path: str, module: Mapping[str, Any], config: config_dict.ConfigDict) -> str:
    """The help of the config file `path`, whose globals are `module` and whose get_config gave `config`."""
    meaning = explain.notes(Path(path).read_text("utf-8"))
    base = module.get("base")
    if base is not None:
        meaning = explain.notes(Path(base.__file__).read_text("utf-8")) | meaning
    short = module.get("SHORT") or getattr(base, "SHORT", {})
    lines = [f"{path}", "", (module.get("__doc__") or "").strip(), "", KEYS]
    for key, value in _keys(config):
        others = [name for name, dotted in short.items() if dotted == key]
        names = f"  [{', '.join(others)}]" if others else ""
        lines.append(f"  {key}={_text(value)}{names}")
        lines += [f"      {meaning[f'config.{key}']}"] if f"config.{key}" in meaning else []
    if METHODS in config and isinstance(config[METHODS], config_dict.ConfigDict):
        lines.append(f"  {METHODS}.NAME.OPTION: what `python -m nexus.methods NAME` prints")
    name = next((name for name in ("n", "model", *short) if name in short), "")
    lines += [""] + ([f"short names: --config={path}:{name}=VALUE,..."] if name else [])
    lines.append("--workdir=FOLDER: of the run; default runs/<config>-<hash of all settings>")
    return "\n".join(lines)


def _keys(config: config_dict.ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values, in the order of the file; the methods' options are left out."""
    for key in config.keys():
        value = config[key]
        if not isinstance(value, config_dict.ConfigDict):
            yield f"{prefix}{key}", value
        elif prefix or key != METHODS:
            yield from _keys(value, f"{prefix}{key}.")


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
