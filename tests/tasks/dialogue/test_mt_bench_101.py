"""Files in the schema of MT-Bench-101, made by hand."""

from __future__ import annotations

import json

import pytest

from nexus.tasks.dialogue import mt_bench_101


def load(folder, *records):
    (folder / "mtbench101.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return mt_bench_101.load(folder, 2048, 99)


def test_every_turn_is_asked_and_the_reference_is_the_history(tmp_path):
    history = [{"user": "Hi", "bot": "Hello."}, {"user": "More?", "bot": "Yes."}]
    (one,) = load(tmp_path, {"task": "CM", "id": 12, "history": history})
    assert [(t.user, t.reply, t.asked, t.metric) for t in one.turns] == [
        ("Hi", "Hello.", True, "agreement"),
        ("More?", "Yes.", True, "agreement"),
    ]
    assert (one.source_id, one.kind) == ("CM-12", "CM")
    assert mt_bench_101.reply("CM-12", 2, "Sure") == {"task": "CM", "id": 12, "turn": 2, "reply": "Sure"}


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"task": "XX", "id": 1, "history": []}, "line 1: field 'task' is 'XX'; allowed: AR"),
        ({"task": "CM", "id": "1", "history": []}, "line 1: field 'id' is '1'; expected integer"),
        ({"task": "CM", "id": 1, "history": []}, "line 1: field 'history' is empty"),
        ({"task": "CM", "id": 1, "history": [{"user": "a"}]}, r"line 1, history\[0\]: field 'bot' is missing"),
    ],
)
def test_a_malformed_file_is_refused_with_file_line_and_field(tmp_path, record, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        load(tmp_path, record)
    assert "mtbench101.jsonl" in str(error.value)
