import json
import zipfile

import pytest

from nexus.tasks import longbench_files, sources

ROW = {
    "input": "Where?",
    "context": "text",
    "answers": ["here"],
    "length": 3,
    "dataset": "qasper",
    "language": "en",
    "all_classes": None,
    "_id": "1",
}


def write(folder, *rows, file="qasper"):
    path = folder / f"{file}.jsonl"
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows))
    return str(folder)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{not json", "not JSON"),
        (b"[1]", "expected object, got list"),
        ({k: v for k, v in ROW.items() if k != "_id"}, "field '_id' is missing"),
        (ROW | {"context": None}, "field 'context' is None"),
        (ROW | {"length": "3"}, "field 'length' is '3'"),
        (ROW | {"length": True}, "field 'length' is True"),
        (ROW | {"answers": "here"}, "field 'answers' is 'here'"),
        (ROW | {"answers": []}, "field 'answers' is empty"),
        (ROW | {"answers": ["here", ""]}, "field 'answers' is ['here', '']; expected texts, none empty"),
        (ROW | {"answers": [3]}, "field 'answers' is [3]"),
        (ROW | {"all_classes": "City"}, "field 'all_classes' is 'City'"),
        (ROW | {"all_classes": [1]}, "field 'all_classes' is [1]"),
        (ROW | {"dataset": "trec"}, "field 'dataset' is 'trec'; expected 'qasper'"),
    ],
)
def test_a_bad_record_is_named_with_file_line_and_field(tmp_path, bad, message):
    folder = write(tmp_path, ROW, bad)
    with pytest.raises(ValueError, match=r"qasper\.jsonl, line 2: ") as error:
        longbench_files.read("qasper", "qasper", 5, folder)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("task", "answers", "classes", "message"),
    [
        ("passage_count", ["three"], None, "expected a number"),
        ("passage_retrieval_en", ["7"], None, "expected 'Paragraph' and a number"),
        ("trec", ["City"], ["Country"], "expected names of field 'all_classes'"),
        ("trec", ["City"], None, "expected names of field 'all_classes'"),
    ],
)
def test_an_answer_that_no_prediction_could_match_is_refused(tmp_path, task, answers, classes, message):
    folder = write(tmp_path, ROW | {"answers": answers, "all_classes": classes, "dataset": task}, file=task)
    with pytest.raises(ValueError, match=f"line 1: field 'answers' is .*{message}"):
        longbench_files.read(task, task, 5, folder)


def test_a_missing_file_is_named_with_its_layout(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*qasper\.jsonl; expected one JSON object per line with input, "):
        longbench_files.read("qasper", "qasper", 5, str(tmp_path))


def test_other_encodings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not UTF-8"):
        longbench_files.read("qasper", "qasper", 5, write(tmp_path, b"\xff\xfe"))


def test_line_separators_inside_texts_do_not_end_a_record(tmp_path):
    row = json.dumps(ROW | {"context": "a\u2028b\x85c"}, ensure_ascii=False).encode()
    ((_, found),) = longbench_files.read("qasper", "qasper", 5, write(tmp_path, row))
    assert found["context"] == "a\u2028b\x85c"


def test_without_a_folder_the_archive_of_the_hub_is_read(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/qasper.jsonl", json.dumps(ROW | {"context": "é"}))
        archive.writestr("data/qasper_e.jsonl", json.dumps(ROW))

    def download(repo, file, repo_type):
        assert (repo, file, repo_type) == ("THUDM/LongBench", "data.zip", "dataset")
        return str(tmp_path / file)

    monkeypatch.setattr(sources.huggingface_hub, "hf_hub_download", download)
    ((index, found),) = longbench_files.read("qasper", "qasper", 5)
    assert (index, found["context"]) == (0, "é")
    with pytest.raises(ValueError, match=r"data\.zip holds 0 files trec\.jsonl; expected one"):
        longbench_files.read("trec", "trec", 5)


def test_without_folder_and_hub_the_error_names_the_file_to_give(monkeypatch):
    def refuse(*arguments, **options):
        raise ConnectionError("no network")

    monkeypatch.setattr(sources.huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ValueError, match=r"no network.*eval\.data_dir to a folder that holds qasper\.jsonl"):
        longbench_files.read("qasper", "qasper", 5)
