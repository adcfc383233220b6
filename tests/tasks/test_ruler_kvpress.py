"""The RULER variant of kvpress: rows of all tasks in one file."""

import json

import pytest

from nexus.tasks import catalog, ruler_kvpress

ROW = {
    "context": "Some text with a number.\n",
    "question": "What is the number?",
    "answer_prefix": " The number is",
    "answer": ["1234567"],
    "task": "niah_single_1",
    "max_new_tokens": 128,
}


@pytest.fixture
def folder(tmp_path):
    rows = [ROW, ROW | {"task": "qa_1", "answer": ["A", "B"], "max_new_tokens": 32}, ROW | {"answer": ["7654321"]}]
    (tmp_path / "4096.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def test_rows_of_a_task_are_taken_in_order(folder, tokenizer):
    first, second = ruler_kvpress.load("niah_single_1", tokenizer, 4096, 2, folder)
    assert (first.context, first.question, first.answer_prefix) == tuple(ROW[k] for k in list(ROW)[:3])
    assert (first.references, second.references) == (("1234567",), ("7654321",))
    assert (first.variant, first.metric, first.max_new_tokens) == ("ruler-kvpress", "all", 128)
    (asked,) = ruler_kvpress.load("qa_1", tokenizer, 4096, 1, folder)
    assert (asked.metric, asked.references, asked.max_new_tokens) == ("part", ("A", "B"), 32)


def test_the_config_reaches_it(folder, tokenizer):
    catalog.check(("vt", "qa_1"), str(folder), "kvpress")
    request = catalog.Request(
        tokenizer=tokenizer, length=5000, n=1, seed=0, data_dir=str(folder), ruler_source="kvpress"
    )
    assert catalog.examples("qa_1", request)[0].variant == "ruler-kvpress"


@pytest.mark.parametrize(
    ("task", "length", "n", "message"),
    [
        ("qa_3", 4096, 1, "unknown task 'qa_3'"),
        ("vt", 4095, 1, "lengths 4096, 8192, 16384; L=4095 is below all"),
        ("vt", 4096, 1, "has 0 samples of vt; 1 were asked for"),
        ("vt", 8192, 1, r"no file .*8192\.jsonl; expected one JSON object per line with context"),
    ],
)
def test_what_is_not_there_is_named(folder, tokenizer, task, length, n, message):
    with pytest.raises(ValueError, match=message):
        ruler_kvpress.load(task, tokenizer, length, n, folder)


def test_a_sample_too_long_for_this_tokenizer_says_what_it_needs(folder, tokenizer):
    """Its lengths were counted with another tokenizer."""
    row = ROW | {"context": "one two " * 2100}
    (folder / "4096.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match="do not fit into L=4096 with this model's tokenizer; set eval.lengths to at"):
        ruler_kvpress.load("niah_single_1", tokenizer, 4096, 1, folder)
    longer = ruler_kvpress.load("niah_single_1", tokenizer, 5000, 1, folder)
    assert longer[0].length == 5000


def test_a_broken_line_is_named(folder, tokenizer):
    (folder / "4096.jsonl").write_text(json.dumps(ROW | {"answer": "1"}))
    with pytest.raises(ValueError, match=r"4096\.jsonl, line 1: field 'answer' is '1'"):
        ruler_kvpress.load("niah_single_1", tokenizer, 4096, 1, folder)
