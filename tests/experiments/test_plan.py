"""From config to cells: what is refused, what a ratio becomes, in which order cells run."""

from __future__ import annotations

import re

import pytest

from configs import base, llama_ruler, tiny
from experiments import plan
from nexus import methods, record
from nexus.tasks import catalog


def resolved(options: str = ""):
    return plan.resolve(llama_ruler.get_config(options))


def test_the_full_cache_runs_first_and_task_by_task():
    cells = plan.cells(resolved("methods=snapkv,full,h2o,tasks=niah_single_1,vt"))
    order = list(dict.fromkeys((cell.method, cell.ratio) for cell in cells))
    assert order == [("full", None), ("snapkv", 0.1), ("snapkv", 0.25), ("h2o", 0.1), ("h2o", 0.25)]
    assert [cell.task for cell in cells[:4]] == ["niah_single_1", "vt", "niah_single_1", "vt"]


def test_a_ratio_becomes_the_nearest_integer_budget_of_each_length_and_both_are_said():
    config = resolved("length=1024,4096,ratios=0.1")
    budgets = {cell.length: cell.budget for cell in plan.cells(config) if cell.method != "full"}
    assert budgets == {1024: 102, 4096: 410}
    said = "\n".join(plan.describe(config))
    assert "102 entries (ratio 0.1)" in said and "410 entries (ratio 0.1)" in said


def test_the_full_cache_has_room_for_prompt_and_answer():
    """A context cut to fit is no full cache: the length counts the answer, unless the config sets its own limit."""
    assert plan.full_budget(resolved(), 1000) >= 1000
    for cell in plan.cells(resolved("chunk=96")):
        assert cell.method != "full" or cell.budget >= cell.length and cell.budget % 96 == 0


def test_all_means_every_name():
    config = resolved("methods=all,tasks=all,budgets=256")
    assert config.eval.methods == tuple(methods.names())
    assert config.eval.tasks == tuple(name for name, task in catalog.TASKS.items() if not task.files)
    assert "vt" in config.eval.tasks and "qa_1" not in config.eval.tasks


def test_a_set_is_all_its_tasks_and_says_how_many_of_the_published_ones():
    config = resolved("tasks=ruler,budgets=256")
    assert len(config.eval.tasks) == 13 and {"qa_1", "qa_2"} < set(config.eval.tasks)
    assert plan.suite_counts(config, "vt") == (13, 13)
    assert "13 of 13 RULER tasks: niah_single_1" in "\n".join(plan.describe(config))
    few = resolved("tasks=vt,qa_nexus_1,babi_nexus_qa1,budgets=256")
    assert [plan.suite_counts(few, task) for task in few.eval.tasks] == [(1, 13), (1, 0), (1, 0)]


def test_lists_are_typed_wherever_they_were_written():
    config = base.get_config()
    config.eval.lengths, config.eval.budgets, config.eval.methods = ("512, 1024",), (64,), ("full,snapkv",)
    config = plan.resolve(config)
    assert (config.eval.lengths, config.eval.budgets) == ((512, 1024), (64,))
    assert config.eval.methods == ("full", "snapkv")


def both():
    config = base.get_config()
    config.eval.budgets, config.eval.ratios = (64,), (0.1,)
    return config


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (both, "exclude each other"),
        (lambda: base.get_config(), "both empty"),
        (lambda: llama_ruler.get_config("methods=full,snap"), "eval.methods='snap' is not known; allowed: full,"),
        (lambda: llama_ruler.get_config("tasks=niah_9"), "eval.tasks='niah_9' is not known; allowed: niah_single_1,"),
        (lambda: llama_ruler.get_config("tasks="), "eval.tasks is empty"),
        (lambda: llama_ruler.get_config("tasks=vt,vt"), "twice"),
        (lambda: llama_ruler.get_config("ratios=0.1,0.0999"), "same budget twice"),
        (lambda: llama_ruler.get_config("ratios=1.5"), "eval.ratios=1.5 is out of range: 0.0 to 1.0"),
        (lambda: llama_ruler.get_config("ratios=0"), "eval.ratios=0 keeps nothing"),
        (lambda: llama_ruler.get_config("budgets=0"), "budget"),
        (lambda: llama_ruler.get_config("length=1k"), "eval.lengths takes numbers (int); got '1k'"),
        (lambda: llama_ruler.get_config("methods=snapkv"), "lacks it: add full"),
        (lambda: llama_ruler.get_config("protocol=stream"), "streaming"),
        (lambda: llama_ruler.get_config("question_mode=x"), "allowed: query_agnostic, query_aware"),
        (lambda: llama_ruler.get_config("tail=x"), "counted"),
        (lambda: llama_ruler.get_config("dtype=float16"), "model.dtype='float16'"),
        (lambda: llama_ruler.get_config("budgets=8,sinks=9"), "method 'streaming_llm' at budget 8 (length 1024)"),
        (lambda: llama_ruler.get_config("seed=-1"), "eval.seed=-1"),
        (lambda: llama_ruler.get_config("floor=101"), "eval.full_floor=101.0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(config, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        plan.resolve(config())


def test_an_option_of_a_method_reaches_it():
    config = tiny.get_config()
    config.method.snapkv.window = 16
    config = plan.resolve(config)
    cell = next(cell for cell in plan.cells(config) if cell.method == "snapkv")
    assert plan.build(config, cell).scorer.window == 16


def test_a_limit_cuts_the_examples_is_said_and_makes_another_run():
    """A quick try must not be continued as the whole run, nor look like it."""
    whole, some = (plan.resolve(tiny.get_config(f"n=5{limit}")) for limit in ("", ",limit=2"))
    assert (plan.num_examples(whole.eval), plan.num_examples(some.eval)) == (5, 2)
    assert "2 examples per task (of 5: eval.limit=2)" in plan.describe(some)[0]
    assert "limit" not in plan.describe(whole)[0]
    assert record.config_hash(whole.to_dict()) != record.config_hash(some.to_dict())
    assert plan.num_examples(plan.resolve(tiny.get_config("n=5,limit=9")).eval) == 5
    with pytest.raises(ValueError, match="eval.limit=-1 is out of range"):
        plan.resolve(tiny.get_config("limit=-1"))
