"""Files of a run: kill-safe lines, whole writes, hashes over every field."""

from __future__ import annotations

import json
import subprocess

import pytest

from nexus import record


def test_rows_come_back_in_order(tmp_path):
    path = tmp_path / "rows.jsonl"
    record.append_rows(path, [{"a": 1}, {"a": "zwölf\n"}])
    record.append_rows(path, [{"a": None}])
    assert record.read_rows(path) == [{"a": 1}, {"a": "zwölf\n"}, {"a": None}]
    assert path.read_text("utf-8").count("\n") == 3


def test_missing_and_empty_files_hold_no_rows(tmp_path):
    assert record.read_rows(tmp_path / "no.jsonl") == []
    (tmp_path / "empty.jsonl").touch()
    assert record.read_rows(tmp_path / "empty.jsonl") == []


@pytest.mark.parametrize("torn", ['{"a": 3, "b', '{"a": 3}', "ü"[:1]])
def test_a_torn_last_line_is_ignored_and_replaced(tmp_path, torn):
    """A kill in the middle of a write left half a line, and the next line was glued to it (NVIDIA/kvpress, resume)."""
    path = tmp_path / "rows.jsonl"
    record.append_rows(path, [{"a": 1}, {"a": 2}])
    with open(path, "a", encoding="utf-8") as file:
        file.write(torn)
    assert record.read_rows(path) == [{"a": 1}, {"a": 2}]
    record.append_rows(path, [{"a": 4}])
    assert record.read_rows(path) == [{"a": 1}, {"a": 2}, {"a": 4}]


def test_a_file_that_is_one_torn_line_starts_over(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a"')
    assert record.read_rows(path) == []
    record.append_rows(path, [{"a": 1}])
    assert record.read_rows(path) == [{"a": 1}]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        record.read_rows(path)


def test_not_a_number_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(ValueError):
        record.append_rows(path, [{"a": 1.0}, {"a": float("nan")}])
    assert not path.exists()


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "deep" / "config.json"
    record.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        record.write_json(path, {"a": object()})
    assert record.read_json(path) == {"a": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["config.json"]


def test_hash_sees_every_field_and_not_the_order():
    """A run folder named by a ratio with two decimals mixed 0.875 and 0.88 (NVIDIA/kvpress, result folders)."""
    config = {"eval": {"ratios": (0.875,), "seed": 0}, "cache": {"recent": None}}
    same = {"cache": {"recent": None}, "eval": {"seed": 0, "ratios": [0.875]}}
    assert record.config_hash(config) == record.config_hash(same)
    others = [
        {"eval": {"ratios": (0.88,), "seed": 0}, "cache": {"recent": None}},
        {"eval": {"ratios": (0.875,), "seed": 1}, "cache": {"recent": None}},
        {"eval": {"ratios": (0.875,), "seed": 0}, "cache": {"recent": 0}},
        {"eval": {"ratios": (0.875,), "seed": 0}, "cache": {}},
    ]
    assert len({record.config_hash(other) for other in [config, *others]}) == 5


def test_workdir_of_another_config_is_refused_with_the_differing_fields(tmp_path):
    config = {"eval": {"seed": 0, "tasks": ("vt",)}, "model": {"name": "a"}}
    record.open_workdir(tmp_path, config)
    record.open_workdir(tmp_path, config)
    with pytest.raises(ValueError, match=r"eval\.seed \(there 0, now 1\)") as error:
        record.open_workdir(tmp_path, {"eval": {"seed": 1, "tasks": ("vt",)}, "model": {"name": "a"}})
    assert "model.name" not in str(error.value)
    assert json.loads((tmp_path / "config.json").read_text()) == record.plain(config)


def test_commit_says_when_the_code_is_not_the_commit(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert record.git_commit(tmp_path) == "unknown"
    git("init")
    (tmp_path / "a.txt").write_text("a")
    git("add", ".")
    git("commit", "-m", "a")
    clean = record.git_commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "a.txt").write_text("b")
    assert record.git_commit(tmp_path) == clean + "-dirty"


def test_environment_can_be_written(tmp_path):
    environment = record.environment()
    record.write_json(tmp_path / "env.json", environment)
    assert {"git_commit", "device", "versions", "python", "started"} <= environment.keys()
    assert "jax" in environment["versions"]
