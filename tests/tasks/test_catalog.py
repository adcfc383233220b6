"""The catalog: one table for all tasks, whether made or read."""

import pytest

from nexus import metrics
from nexus.tasks import __main__ as printed
from nexus.tasks import catalog, example


def test_every_row_belongs_to_a_known_set_and_no_set_has_more_than_published():
    for task in catalog.TASKS.values():
        assert task.suite in catalog.SUITES
    for name, suite in catalog.SUITES.items():
        size = sum(task.suite == name for task in catalog.TASKS.values())
        assert size and (not suite.size or size <= suite.size), name


def test_names_of_sets_are_not_names_of_tasks():
    """eval.tasks takes both."""
    assert not set(catalog.TASKS) & {*catalog.SUITES, "all"}


def test_every_metric_that_an_example_may_name_is_a_rule():
    assert set(example.METRICS) == set(metrics.RULES)


def test_an_unknown_task_is_an_error_that_names_the_known_ones(tokenizer):
    request = catalog.Request(tokenizer=tokenizer, length=512, n=1, seed=0)
    with pytest.raises(
        ValueError, match="unknown task 'niah_single_4'; did you mean .*allowed: niah_single_1, .*, fwe, "
    ):
        catalog.examples("niah_single_4", request)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("vt",), "", "hub"), "eval.ruler_source='hub' is not known; allowed: generated, files"),
        ((("vt",), "", "files"), "set eval.data_dir to a folder with vt/validation.jsonl"),
        ((("vt",), "/nowhere", "files"), "eval.data_dir='/nowhere' is no folder"),
        ((("nope",), "", "generated"), "unknown task 'nope'"),
    ],
)
def test_what_cannot_be_had_is_refused_before_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        catalog.check(*arguments)


def test_ruler_can_be_read_from_files_instead_of_made(tokenizer, tmp_path):
    folder = tmp_path / "vt"
    folder.mkdir()
    text = "VAR ABCDE = 12345 Question: Find all variables"
    line = f'{{"index": 0, "input": "{text}", "outputs": ["ABCDE"], "length": 100, "answer_prefix": " Answer:"}}'
    (folder / "validation.jsonl").write_text(line + "\n")
    request = catalog.Request(
        tokenizer=tokenizer, length=512, n=1, seed=0, data_dir=str(tmp_path), ruler_source="files"
    )
    assert catalog.examples("vt", request)[0].variant == "ruler-nvidia"


def test_the_printed_table_names_every_task():
    text = printed.table()
    assert all(f"  {name} " in text for name in catalog.TASKS)
