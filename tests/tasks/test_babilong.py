"""BABILong's own files: layout, size of the file at a length, refusals."""

import json

import pytest

from nexus import metrics
from nexus.tasks import babilong, catalog

ROWS = [
    {"input": "Mary went to the kitchen. It rained. John moved to the office.", "question": "Where is Mary? ",
     "target": "kitchen"},
    {"input": "Daniel travelled to the garden.", "question": "Where is Daniel?", "target": "garden"},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for task in ("qa1", "qa5"):
        path = tmp_path / "data" / task / "0k.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(ROWS))
    return tmp_path


def test_rows_become_examples_in_the_order_of_the_file(folder, tokenizer):
    first, second = babilong.load("babilong_qa1", tokenizer, 600, 2, folder)
    assert first.context.endswith(f"<context>\n{ROWS[0]['input']}\n</context>\n")
    assert (first.question, first.references, first.metric) == ("Question: Where is Mary?", ("kitchen",), "babi")
    assert first.choices == ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
    assert (first.variant, second.references, second.index) == ("babilong-0k", ("garden",), 1)
    assert first.prompt_tokens and first.prompt_tokens + first.max_new_tokens <= 600
    assert metrics.score(first, "Mary is in the kitchen. The office is empty.") == 100


SIZES = [(512, 0), (1535, 0), (1536, 1), (4096, 2), (4608, 4), (8192, 4), (10**6, 128)]


@pytest.mark.parametrize(("length", "size"), SIZES)
def test_the_largest_file_with_room_for_the_prompt_is_read(length, size):
    assert babilong.size_at(length) == size


def test_too_short_a_length_is_refused():
    with pytest.raises(ValueError, match="at least 512; got 511"):
        babilong.size_at(511)


def test_a_sample_longer_than_the_length_says_what_it_needs(folder, tokenizer):
    path = folder / "data" / "qa1" / "0k.json"
    path.write_text(json.dumps([ROWS[0] | {"input": "The rain fell. " * 200}]))
    with pytest.raises(ValueError, match=r"record 1: \d+ tokens of prompt and 20 of answer do not fit into L=600; set"):
        babilong.load("babilong_qa1", tokenizer, 600, 1, folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "has 1 samples; 2 were asked for"),
        ([ROWS[0], {"input": "x", "question": "y"}], "record 2: field 'target' is missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(folder, tokenizer, rows, message):
    (folder / "data" / "qa1" / "0k.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=message):
        babilong.load("babilong_qa1", tokenizer, 600, 2, folder)


def test_a_missing_file_names_its_place_and_layout(folder, tokenizer):
    with pytest.raises(ValueError, match=r"no file .*qa2.0k\.json; expected BABILong's JSON: a list of objects with"):
        babilong.load("babilong_qa2", tokenizer, 600, 1, folder)


def test_all_five_are_in_the_catalog_with_a_frame(folder, tokenizer):
    assert set(babilong.FRAMES) == set(babilong.LABELS)
    assert sum(task.suite == "babilong" for task in catalog.TASKS.values()) == catalog.SUITES["babilong"].size
    request = catalog.Request(tokenizer=tokenizer, length=600, n=1, seed=0, data_dir=str(folder))
    assert catalog.examples("babilong_qa5", request)[0].choices == babilong.LABELS["babilong_qa5"]
    for frame in babilong.FRAMES.values():
        assert frame.head.count("<example>") == 2 and frame.begun == ""
