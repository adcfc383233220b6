import json

import pytest

from nexus.tasks import ruler_files

ROW = {
    "index": 831,  # upstream overwrites it with a character position in needle tasks
    "input": "Some text. What is the special magic number for a? no.\n"
    "What is the special magic number for b-c mentioned in the provided text?",
    "outputs": ["1234567"],
    "length": 400,
    "answer_prefix": " The special magic number for b-c mentioned in the provided text is",
}


@pytest.fixture
def write(tmp_path):
    def write_rows(task, *lines):
        (tmp_path / task).mkdir(exist_ok=True)
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / task / "validation.jsonl").write_text(text + "\n")
        return tmp_path

    return write_rows


def test_a_needle_row_is_cut_at_its_last_question(write):
    first, second = ruler_files.load(write("niah_single_1", ROW, ROW), "niah_single_1", 512)
    assert (first.index, second.index) == (0, 1)
    assert first.context + first.question == ROW["input"]
    assert first.question.startswith("What is the special magic number for b-c")
    assert (first.references, first.max_new_tokens, first.metric) == (("1234567",), 128, "all")
    assert (first.variant, first.length) == ("ruler-nvidia", 512)


def test_question_answering_rows_have_the_second_instruction_in_the_question(write):
    instruction = "Answer the question based on the given documents. Only the answer."
    text = f"{instruction}\n\nDocument 1:\nx\n\n{instruction}\n\nQuestion: who?"
    row = ROW | {"input": text, "outputs": ["A", "B"], "answer_prefix": " Answer:"}
    (example,) = ruler_files.load(write("qa_1", row), "qa_1", 512)
    assert example.question == f"{instruction}\n\nQuestion: who?"
    assert (example.metric, example.max_new_tokens) == ("part", 32)


def test_the_first_rows_are_taken_and_too_few_are_an_error(write):
    folder = write("niah_single_1", ROW, ROW)
    assert len(ruler_files.load(folder, "niah_single_1", 512, n=1)) == 1
    with pytest.raises(ValueError, match="has 2 samples; 3 were asked for"):
        ruler_files.load(folder, "niah_single_1", 512, n=3)
    with pytest.raises(ValueError, match="n is 0"):
        ruler_files.load(folder, "niah_single_1", 512, n=0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{not json", "not JSON"),
        ("[1]", "expected object, got list"),
        ({k: v for k, v in ROW.items() if k != "answer_prefix"}, "field 'answer_prefix' is None; expected str"),
        (ROW | {"outputs": []}, "outputs are"),
        (ROW | {"input": "nothing is asked"}, "no question found"),
        (ROW | {"length": 513}, "length is 513; the file was asked for as one of L=512"),
        (ROW | {"input": "<|im_start|>user\n" + ROW["input"]}, "contains '<|im_start|>'"),
    ],
)
def test_a_bad_line_is_named(write, bad, message):
    """Text that already holds chat markers would be wrapped twice (huggingface/open-r1#462)."""
    folder = write("niah_single_1", ROW, bad)
    with pytest.raises(ValueError, match=r"validation\.jsonl, line 2: ") as error:
        ruler_files.load(folder, "niah_single_1", 512)
    assert message in str(error.value)


def test_missing_files_and_unknown_tasks_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*vt.validation\.jsonl"):
        ruler_files.load(tmp_path, "vt", 512)
    with pytest.raises(ValueError, match="unknown task 'qa_3'; allowed: .*qa_2"):
        ruler_files.load(tmp_path, "qa_3", 512)
