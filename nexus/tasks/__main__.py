"""Prints the table of tasks: `python -m nexus.tasks`."""

from __future__ import annotations

from nexus.tasks import catalog


def table() -> str:
    """The sets with their tasks, and what must lie in `eval.data_dir` for those that are read from files."""
    lines = []
    for name, suite in catalog.SUITES.items():
        rows = [task for task in catalog.TASKS.values() if task.suite == name]
        count = f"{len(rows)} of {suite.size}" if suite.size else f"{len(rows)}"
        lines += [f"{name}: {suite.title}, {count} tasks; {suite.about}"]
        for task in rows:
            needs = f"; from eval.data_dir: {task.files}" if task.files else ""
            lines.append(f"  {task.name:24s} answers of at most {task.max_new_tokens} tokens{needs}")
        lines.append("")
    lines.append("eval.tasks takes task names, names of sets, or all (every task that needs no files).")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
