"""MT-Bench-101 from its file: <data_dir>/mtbench101.jsonl, short dialogues of 13 kinds.

Bai et al., arXiv 2402.14762; code and data mtbench101/mt-bench-101 (data/subjective/mtbench101.jsonl). A line is
{"task": text, "id": integer, "history": [{"user": text, "bot": text}, ...]}; `bot` is the reference reply and serves as
golden history. Its score is a judge's; here replies are written for one (`reply`), and what can be said without is how
far they agree with the full cache's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nexus.tasks import reading
from nexus.tasks.dialogue.schema import Conversation, Turn, wording_hash

TASK = "mt_bench_101"
VARIANT = "mt-bench-101-agreement"
FILE = "mtbench101.jsonl"
MAX_NEW_TOKENS = 128
KINDS = ("AR", "CC", "CM", "CR", "FR", "GR", "IC", "MR", "PI", "SA", "SC", "SI", "TS")


def load(data_dir: str | Path, length: int, n: int) -> list[Conversation]:
    """The first n dialogues of the file, or all it has. ValueError names file, line and field."""
    path = Path(data_dir) / FILE
    text, file_hash = reading.content(path, 'one JSON object per line with "task", "id" and "history"')
    template, found = wording_hash({"file": file_hash}), []
    for index, (record, where) in enumerate(reading.json_lines(text, path)):
        if index == n:
            break
        kind = reading.field(record, "task", str, where)
        if kind not in KINDS:
            raise ValueError(f"{where}: field 'task' is {kind!r}; allowed: {', '.join(KINDS)}")
        number = reading.field(record, "id", int, where)
        history = reading.field(record, "history", list, where)
        found.append(
            Conversation(
                task=TASK, index=index, context="", length=length, variant=VARIANT, template_hash=template,
                turns=tuple(_turn(turn, f"{where}, history[{i}]") for i, turn in enumerate(history)),
                source_id=f"{kind}-{number}", kind=kind,
            )
        )  # fmt: skip
    if not found:
        raise ValueError(f"{path} is empty; expected one JSON object per line")
    return found


def reply(source_id: str, turn: int, prediction: str) -> dict[str, Any]:
    """A line for a judge. turn: counted from 1."""
    kind, _, number = source_id.partition("-")
    return {"task": kind, "id": int(number), "turn": turn, "reply": prediction}


def _turn(turn: Any, where: str) -> Turn:
    return Turn(
        user=reading.field(turn, "user", str, where), reply=reading.field(turn, "bot", str, where, empty=True),
        metric="agreement", max_new_tokens=MAX_NEW_TOKENS,
    )  # fmt: skip
