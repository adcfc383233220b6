"""The table of dialogue tasks: files are asked for before anything is loaded."""

from __future__ import annotations

import json

import pytest

from nexus.tasks.dialogue import catalog, made, scbench
from nexus.tasks.dialogue.script import MULTI_TURN


def test_every_task_is_there_once():
    assert {*made.ROWS, *scbench.TASKS, "longmemeval", "mt_bench_101"} == set(catalog.TASKS)
    assert all(name == row.name for name, row in catalog.TASKS.items())
    assert catalog.TASKS["mt_bench_101"].modes == (MULTI_TURN,)


@pytest.mark.parametrize("task", [name for name, row in catalog.TASKS.items() if row.files])
def test_tasks_of_files_say_which(task, tmp_path):
    with pytest.raises(ValueError, match=rf"task {task} is read from files: set eval.data_dir to a folder with \S+"):
        catalog.check((task,), "")
    with pytest.raises(ValueError, match=r"eval.data_dir='.*nowhere' is no folder"):
        catalog.check((task,), str(tmp_path / "nowhere"))
    catalog.check((task,), str(tmp_path))


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown task 'scb'; allowed: facts_told"):
        catalog.check(("scb",), "")


def test_contexts_of_files_are_cut_to_the_length(tmp_path, bytes_tokenizer):
    record = {"context": "begin " + "x" * 900 + " end", "multi_turns": [{"input": "?", "answer": "a"}] * 2}
    (tmp_path / "scbench_mf.jsonl").write_text(json.dumps(record) + "\n")
    request = catalog.Request(tokenizer=bytes_tokenizer, length=500, n=3, seed=0, data_dir=str(tmp_path))
    (one,) = catalog.task_named("scbench_mf").load(request)
    assert one.context.startswith("begin") and one.context.endswith("end\n\n") and 0.4 < one.cut_share < 0.8


def test_the_first_n_of_made_tasks_do_not_depend_on_n(bytes_tokenizer):
    """Sample i is the same whether generated alone or in a set (NVIDIA/RULER)."""
    load = catalog.task_named("scb_mf").load
    request = {"tokenizer": bytes_tokenizer, "length": 1200, "seed": 0, "questions": 3}
    assert load(catalog.Request(n=1, **request)) == load(catalog.Request(n=2, **request))[:1]
