"""Files of others: every complaint says where."""

from __future__ import annotations

import pytest

from nexus.tasks import reading


@pytest.mark.parametrize(
    ("record", "kind", "complaint"),
    [
        ({}, str, "here: field 'a' is missing"),
        ({"a": 1}, str, "here: field 'a' is 1; expected text"),
        ({"a": True}, int, "here: field 'a' is True; expected integer"),
        ({"a": None}, list, "here: field 'a' is None; expected list"),
        ({"a": ""}, str, "here: field 'a' is empty"),
        ({"a": []}, list, "here: field 'a' is empty"),
        ([], str, "here: expected object, got list"),
    ],
)
def test_a_wrong_field_is_named(record, kind, complaint):
    with pytest.raises(ValueError, match=complaint):
        reading.field(record, "a", kind, "here")


def test_zero_and_empty_are_values_where_they_may_be():
    assert reading.field({"a": 0}, "a", int, "here") == 0
    assert reading.field({"a": ""}, "a", str, "here", empty=True) == ""


def test_lines_are_counted_as_an_editor_does(tmp_path):
    path = tmp_path / "x.jsonl"
    assert [where for _, where in reading.json_lines('{"a": 1}\n\n{"a": 2}\n', path)] == [
        f"{path}, line 1",
        f"{path}, line 3",
    ]
    for text, complaint in (("{}\n{", "line 2: not JSON"), ("[]", "line 1: expected object, got list")):
        with pytest.raises(ValueError, match=complaint):
            list(reading.json_lines(text, path))


def test_files_that_are_not_there_or_not_text(tmp_path):
    with pytest.raises(ValueError, match="no file .*; expected lines"):
        reading.content(tmp_path / "x", "lines")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        reading.content(tmp_path / "x", "lines")
