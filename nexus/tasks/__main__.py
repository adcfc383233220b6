"""Prints the table of tasks, or the rows of the named tasks and sets, as eval.tasks takes them."""

from __future__ import annotations

from collections.abc import Sequence

from nexus import cli
from nexus.tasks import catalog


def table(names: Sequence[str] = ()) -> str:
    """The sets with their tasks, and what must lie in `eval.data_dir` for those that are read from files.

    names: of sets; all of them by default.
    """
    lines = []
    for name in names or catalog.SUITES:
        suite = catalog.SUITES[name]
        rows = [task for task in catalog.TASKS.values() if task.suite == name]
        count = f"{len(rows)} of {suite.size}" if suite.size else f"{len(rows)}"
        lines += [f"{name}: {suite.title}, {count} tasks; {suite.about}"]
        lines += [*map(_line, rows), ""]
    if not names:
        lines.append("eval.tasks takes task names, names of sets, or all (every task that needs no files).")
    return "\n".join(lines).rstrip("\n")


def page(name: str) -> str:
    """A set with its tasks, or a task with its set. Raises ValueError for an unknown name."""
    if name in catalog.SUITES:
        return table([name])
    task = catalog.task_named(name)
    suite = catalog.SUITES[task.suite]
    example = f"example: python launch.py --config=configs/llama_ruler.py:tasks={name},limit=2"
    return "\n".join([_line(task).strip(), f"  of the set {task.suite}: {suite.title}; {suite.about}", f"  {example}"])


def _line(task: catalog.Task) -> str:
    hub = f", or else from the hub: {task.hub}" if task.hub else ""
    needs = f"; from eval.data_dir: {task.files}{hub}" if task.files else ""
    return f"  {task.name:24s} answers of at most {task.max_new_tokens} tokens{needs}"


def main(arguments: Sequence[str]) -> int:
    """Prints the table, or what the names stand for."""
    parser = cli.Parser("python -m nexus.tasks", __doc__, "python -m nexus.tasks ruler niah_single_2")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a task or a set; without one: the whole table")
    names = parser.parse_args(list(arguments)).names
    for name in names:
        if name not in catalog.SUITES and not catalog.known(name):
            parser.error(f"no task or set {name!r}; allowed: {', '.join([*catalog.SUITES, *catalog.TASKS])}")
    print("\n\n".join(map(page, names)) if names else table())
    return cli.DONE


if __name__ == "__main__":
    cli.run(main)
