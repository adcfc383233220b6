"""Prints the table of eviction methods, or everything about one of them: its scorer, its parts and its options.

Options are given as --config.method.<name>.<option>=value to launch.py, or as keyword arguments to the library's calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from nexus import cli, explain, methods
from nexus.allocators import ALLOCATORS
from nexus.samplers import SAMPLERS


def page(name: str) -> str:
    """Everything about a method. Raises KeyError with close names for an unknown one."""
    row = methods.row(name)
    scorer = inspect.getdoc(inspect.getmodule(type(row.scorer)))
    parts = f"allocator {row.allocator.name}, sampler {row.sampler.name}, {row.num_sinks} first tokens always stay"
    lines = [f"{name}: {row.title}" + (f", arXiv {row.paper}" if row.paper != "-" else ""), parts]
    lines += [f"differs from the paper: {row.differs}"] if row.differs else []
    if name != "full":
        lines += ["", f"scorer {type(row.scorer).__name__}", "", scorer or ""]
    lines += ["", "options (default, meaning):" if methods.options(name) else "no options", *options(name)]
    if methods.options(name):
        option = next(iter(methods.options(name)))
        lines += ["", f"example: python launch.py --config=configs/llama_ruler.py:methods=full,{name} "
                  f"--config.method.{name}.{option}={methods.options(name)[option]}"]  # fmt: skip
    return "\n".join(lines)


def options(name: str) -> list[str]:
    """A line per option of a method: name, default, meaning."""
    row = methods.row(name)
    meaning = {
        "allocator": f"how the budget is divided: {', '.join(a for a in ALLOCATORS if a != 'everything')}",
        "sampler": f"how the ranking is used: {', '.join(SAMPLERS)}",
        "positions": f"positions that attention sees: {', '.join(row.positions)}",
    }
    for part in (row.scorer, row.allocator, row.sampler, row.compensator):
        meaning = explain.field_notes(part) | meaning
    found = methods.options(name)
    width = max((len(f"{option}={value}") for option, value in found.items()), default=0)
    return [f"  {f'{option}={value}':<{width}}  {meaning.get(option, '')}".rstrip() for option, value in found.items()]


def main(arguments: Sequence[str]) -> int:
    """Prints the table, or the pages of the named methods."""
    parser = cli.Parser("python -m nexus.methods", __doc__, "python -m nexus.methods snapkv keydiff")
    parser.add_argument("names", nargs="*", metavar="METHOD", help="without one: the table of all methods")
    names = parser.parse_args(list(arguments)).names
    for name in names:
        if name not in methods.names():
            parser.error(f"no method {name!r}; allowed: {', '.join(methods.names())}")
    print("\n\n\n".join(map(page, names)) if names else methods.table())
    return cli.DONE
