"""Files of others: the user's folder, the hub, or an error that says what is missing."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from nexus.tasks import sources

LAYOUT = "one object per line"


def locate(folder):
    return sources.locate(folder, "a.json", LAYOUT, repo="owner/data", hub_file="x/a.parquet")


def test_a_folder_is_used_alone(tmp_path, monkeypatch):
    """A file missing in the user's folder must not be replaced by another one from the hub."""
    monkeypatch.setattr(sources.huggingface_hub, "hf_hub_download", lambda *a, **k: pytest.fail("the hub was asked"))
    with pytest.raises(ValueError, match=r"no file .*a\.json; expected one object per line"):
        locate(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    assert locate(tmp_path) == tmp_path / "a.json"


def test_without_a_folder_the_hub_is_asked(monkeypatch):
    monkeypatch.setattr(
        sources.huggingface_hub, "hf_hub_download", lambda repo, name, repo_type: f"/hub/{repo_type}/{repo}/{name}"
    )
    assert str(locate("")) == "/hub/dataset/owner/data/x/a.parquet"


def test_without_the_hub_the_error_says_what_to_put_where(monkeypatch):
    def no_network(*arguments, **named):
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(sources.huggingface_hub, "hf_hub_download", no_network)
    expected = r"owner/data could not be had from the hub \(no route to host\).*a folder that holds a\.json: one object"
    with pytest.raises(ValueError, match=expected):
        locate("")


def test_json_lines_a_json_list_and_parquet_hold_the_same(tmp_path):
    rows = [{"a": "x", "b": ["1", "2"]}, {"a": "ü\n", "b": []}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.parquet"):
        assert [row for row, _ in sources.records(tmp_path / name, LAYOUT)] == rows, name


def test_a_list_of_other_things_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="record 1: expected an object, got int"):
        list(sources.records(tmp_path / "a.json", LAYOUT))
