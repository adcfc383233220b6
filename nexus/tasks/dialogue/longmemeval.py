"""LongMemEval from its file: <data_dir>/longmemeval.json, chat sessions over months and one question about them.

Wu et al., arXiv 2410.10813; code and data xiaowu0162/LongMemEval, a JSON array of objects with the fields of `FIELDS`.
The sessions are fed as chat turns, one by one, each headed by number and date; then come the current date and the
question. The official score is a judge's, which needs `{"question_id", "hypothesis"}` lines (`hypothesis`); beside it
stand measures called proxy_*. Preference and abstention questions have no proxy: missing, not 0. Distance is counted
from the first message that is marked `has_answer`. Wording ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nexus.tasks import reading
from nexus.tasks.dialogue.schema import Conversation, Turn, wording_hash

TASK = "longmemeval"
VARIANT = "longmemeval-streaming"
MAX_NEW_TOKENS = 64
TYPES = (
    "single-session-user", "single-session-assistant", "single-session-preference", "temporal-reasoning",
    "knowledge-update", "multi-session",
)  # fmt: skip
FIELDS: dict[str, type | tuple[type, ...]] = {
    "question_id": str, "question_type": str, "question": str, "answer": (str, int, float), "question_date": str,
    "haystack_session_ids": list, "haystack_dates": list, "haystack_sessions": list, "answer_session_ids": list,
}  # fmt: skip
ROLES = ("user", "assistant")
ABSTENTION = "_abs"
WORDING = dict(
    session="[Chat {number} of {count}, {date}]\n",
    ask="Today is {date}. Think of all our earlier chats and answer shortly: {question}",
    answer_prefix="",
)


def load(data_dir: str | Path, length: int, n: int, file: str = f"{TASK}.json") -> list[Conversation]:
    """The first n questions of the file, or all it has. ValueError names file, record and field."""
    path = Path(data_dir) / file
    text, file_hash = reading.content(path, f"a JSON list of objects with {', '.join(FIELDS)}")
    records = reading.parsed(text, str(path), list)
    if not records:
        raise ValueError(f"{path} holds no question")
    template = wording_hash(WORDING | {"file": file_hash})
    return [
        _conversation(record, index, f"{path}, record {index + 1}", length, template)
        for index, record in enumerate(records[:n])
    ]


def hypothesis(question_id: str, prediction: str) -> dict[str, str]:
    """The line that the official scorer reads."""
    return {"question_id": question_id, "hypothesis": prediction}


def _conversation(record: Any, index: int, where: str, length: int, template: str) -> Conversation:
    found = {name: reading.field(record, name, kind, where, empty=name.startswith("answer_")) 
             for name, kind in FIELDS.items()}  # fmt: skip
    kind = found["question_type"]
    if kind not in TYPES:
        raise ValueError(f"{where}: field 'question_type' is {kind!r}; allowed: {', '.join(TYPES)}")
    sessions = found["haystack_sessions"]
    for name in ("haystack_session_ids", "haystack_dates"):
        if len(found[name]) != len(sessions) or not all(isinstance(item, str) for item in found[name]):
            raise ValueError(f"{where}: field {name!r} does not give one text for each of {len(sessions)} sessions")
    turns: list[Turn] = []
    for number, (session, date) in enumerate(zip(sessions, found["haystack_dates"], strict=True), 1):
        head = WORDING["session"].format(number=number, count=len(sessions), date=date)
        turns += _told(session, head, f"{where}, haystack_sessions[{number - 1}]")
    marked = (m["content"].strip() for session in sessions for m in session if m.get("has_answer") is True)
    unscored = kind == "single-session-preference" or found["question_id"].endswith(ABSTENTION)
    asked = Turn(
        user=WORDING["ask"].format(date=found["question_date"], question=found["question"]),
        reply=str(found["answer"]), references=(str(found["answer"]),), metric="none" if unscored else "proxy",
        max_new_tokens=MAX_NEW_TOKENS, evidence=next(marked, ""),
    )  # fmt: skip
    return Conversation(
        task=TASK, index=index, context="", turns=(*turns, asked), length=length, variant=VARIANT,
        template_hash=template, source_id=found["question_id"],
        kind="abstention" if found["question_id"].endswith(ABSTENTION) else kind,
    )  # fmt: skip


def _told(session: Any, head: str, where: str) -> list[Turn]:
    """A session as turns of user and assistant; what one says several times in a row is joined."""
    if not isinstance(session, list) or not session:
        raise ValueError(f"{where}: expected a list of messages, got {session!r:.60}")
    said: list[list[str]] = [[head, ""]]  # user, assistant
    for i, message in enumerate(session):
        role = reading.field(message, "role", str, f"{where}[{i}]")
        text = reading.field(message, "content", str, f"{where}[{i}]", empty=True)
        if role not in ROLES:
            raise ValueError(f"{where}[{i}]: field 'role' is {role!r}; allowed: {', '.join(ROLES)}")
        if role == "user" and said[-1][1]:
            said.append(["", ""])
        at = ROLES.index(role)
        between = "\n\n" if said[-1][at] and said[-1][at] != head else ""
        said[-1][at] += between + text
    return [Turn(user=user, reply=reply, asked=False) for user, reply in said]
