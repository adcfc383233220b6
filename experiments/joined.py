"""Several run folders as one result: cells of different runs in one table where they answer the same question.

Runs share a table when their model, precision, protocol, question mode, tail, seed, tokenizer and answer limit are the
same, and where both have a task, its samples are the same; any other run gets a table of its own. In a table a cell is
(length, method, budget, task). A method that a later run used with other options is another method there, named with
what differs: `snapkv (window=16)`. A cell that an earlier run has already filled is left out, and named: a table never
holds two numbers for one thing. `experiments.paired` compares such cells example by example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.summary import FULL, CellKey, Results, Row, key, load

Sample = tuple[Any, ...]
SETTING = (  # of every row
    "model", "dtype", "protocol", "question_mode", "tail", "seed", "tokenizer_hash", "weights_hash",
)  # fmt: skip
LIMITS = ("num_examples", "limit", "max_new_tokens")  # of config.eval
CACHE = ("chunk", "evict_every", "num_sinks", "recent", "min_per_head")


def load_all(workdirs: Sequence[Path]) -> list[Results]:
    """The runs under names that tell them apart. Raises ValueError for a folder given twice and for a broken one."""
    resolved = [workdir.resolve() for workdir in workdirs]
    for i, workdir in enumerate(resolved):
        if workdir in resolved[:i]:
            raise ValueError(f"run folder {workdirs[i]} is given twice")
    return [load(workdir, name) for workdir, name in zip(workdirs, _names(resolved), strict=True)]


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other."""
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def setting(run: Results) -> Row:
    """What all rows of a table have in common."""
    return {name: run.rows[0].get(name) for name in SETTING} | {
        name: run.config["eval"].get(name, 0)
        for name in LIMITS  # older runs know no eval.limit
    }


def samples(run: Results) -> dict[tuple[str, int], dict[int, Sample]]:
    """(task, length) -> index -> what tells one sample from another."""
    found: dict[tuple[str, int], dict[int, Sample]] = {}
    for row in run.predictions:
        sample = (*row["references"], row.get("variant"), row.get("template_hash"), row.get("tokenizer_hash"))
        found.setdefault((row["task"], row["length"]), {})[row["index"]] = sample
    return found


def join(runs: Sequence[Results]) -> list[Results]:
    """One `Results` per table, in the order of the runs; rows carry the field `run`."""
    groups: list[list[Results]] = []
    for run in runs:
        fitting = next((group for group in groups if all(_fit(other, run) for other in group)), None)
        if fitting is None:
            groups.append([run])
        else:
            fitting.append(run)
    return [_one(group) for group in groups]


def apart(first: Results, other: Results) -> list[str]:
    """Why two runs do not share a table: name (there, here) of what differs."""
    a, b = setting(first), setting(other)
    return [f"{name} ({_short(a[name])}, here {_short(b[name])})" for name in a if a[name] != b[name]] or ["samples"]


def _fit(one: Results, other: Results) -> bool:
    if setting(one) != setting(other):
        return False
    a, b = samples(one), samples(other)
    return all(a[task] == b[task] for task in a.keys() & b.keys())


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:12]}.."


# --- one table --------------------------------------------------------------------------------------------------------
def _one(group: Sequence[Results]) -> Results:
    """The runs of a group as one: cells in the order of the runs, methods with other options under other names."""
    options: dict[str, list[tuple[Row, str]]] = {}  # method -> [(options, the name they go by)]
    filled: dict[CellKey, str] = {}  # cell -> the run that fills it
    methods: dict[str, None] = {}
    again: dict[tuple[str, str], list[Row]] = {}  # (run, the earlier run) -> rows
    rows: list[Row] = []
    predictions: list[Row] = []
    kept: list[Row] = []
    tokens: list[Row] = []
    for run in group:
        names = {method: _named(run, method, options) for method in dict.fromkeys(r["method"] for r in run.rows)}
        methods |= dict.fromkeys(names.get(m, m) for m in run.config["eval"]["methods"])
        for row in run.rows:
            own = {**row, "method": names[row["method"]], "run": run.name}
            if key(own) in filled:
                again.setdefault((run.name, filled[key(own)]), []).append(own)
            else:
                filled[key(own)] = run.name
                rows.append(own)
        for found, target in ((run.predictions, predictions), (run.kept, kept), (run.tokens, tokens)):
            renamed = ({**row, "method": names.get(row["method"], ""), "run": run.name} for row in found)
            target += [row for row in renamed if filled.get(key(row)) == run.name]
    return Results(
        name=" + ".join(run.name for run in group),
        folders=tuple(folder for run in group for folder in run.folders),
        config=_config(group, list(methods)),
        env={"runs": [entry | {"run": run.name} for run in group for entry in run.env["runs"]]},
        rows=rows,
        predictions=predictions,
        kept=kept,
        tokens=tokens,
        missing=sum(run.missing for run in group),
        left_out=sorted({name for run in group for name in run.left_out} - {row["method"] for row in rows}),
        repeated=[row for found in again.values() for row in found],
        remarks=[*_repeated(again), *_different_machines(group)],
    )


def _named(run: Results, method: str, options: dict[str, list[tuple[Row, str]]]) -> str:
    """The method's name in the table: its own for the first options that come, with what differs for others."""
    own = {} if method == FULL else run.config["method"].get(method, {}) | {c: run.config["cache"][c] for c in CACHE}
    known = options.setdefault(method, [])
    for other, name in known:
        if other == own:
            return name
    first = known[0][0] if known else own
    differing = [name for name in {**first, **own} if _differ(first, own, name)]
    text = ", ".join(f"{name}={own[name]}" if name in own else f"no {name}" for name in differing)
    known.append((own, f"{method} ({text})" if text else method))
    return known[-1][1]


def _differ(first: Row, other: Row, name: str) -> bool:
    return (name in first) != (name in other) or first.get(name) != other.get(name)


def _config(group: Sequence[Results], methods: list[str]) -> Row:
    """The first run's config with what the runs have together; the highest floor counts."""
    configs = [run.config for run in group]
    together = lambda name: list(dict.fromkeys(item for c in configs for item in c["eval"][name]))  # noqa: E731
    ev = configs[0]["eval"] | {
        "tasks": together("tasks"),
        "lengths": sorted(together("lengths")),
        "methods": methods,
        "full_floor": max(config["eval"]["full_floor"] for config in configs),
    }
    known = {name: options for config in reversed(configs) for name, options in config["method"].items()}
    return configs[0] | {"eval": ev, "method": known}


def _repeated(repeated: dict[tuple[str, str], list[Row]]) -> list[str]:
    """Names the cells of later runs that stand in no table."""
    return [
        f"{later} holds {len(rows)} cells that {first} holds too ({_cells(rows)}): the tables show those of {first}, "
        "the paired table shows both"
        for (later, first), rows in repeated.items()
    ]


def _cells(rows: Iterable[Row]) -> str:
    names = list(dict.fromkeys(r["method"] if r["method"] == FULL else f"{r['method']} @ {r['budget']}" for r in rows))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _different_machines(group: Sequence[Results]) -> list[str]:
    """Speeds of runs on other devices, or with other batches, stand in one table but say nothing side by side."""
    runs = [entry for run in group for entry in run.env["runs"]]
    facts = {
        "device": {str(entry.get("device")) for entry in runs},
        "CPU cores": {str(entry.get("cpus")) for entry in runs},
        "batch size": {str(run.config["eval"]["batch_size"]) for run in group},
    }
    several = [f"{name} ({', '.join(sorted(found))})" for name, found in facts.items() if len(found) > 1]
    return [f"do not compare speeds across the runs: they differ in {', '.join(several)}"] if several else []
