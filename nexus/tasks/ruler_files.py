"""RULER files made with NVIDIA's code: `<data_dir>/<task>/validation.jsonl`, one sample per line.

`input` is cut into context and question at the last sentence that asks (NVIDIA/RULER templates). Files made with a
chat template are refused: the wrapping is put around the parts here, once. The stored `index` is not used, because in
needle tasks it is overwritten by a character position; the line number counts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nexus.tasks import reading, ruler
from nexus.tasks.example import Example

VARIANT = "ruler-nvidia"
LIMITS = {name: (ruler.TASKS[name].max_new_tokens, ruler.TASKS[name].metric) for name in ruler.PUBLISHED} | {
    "qa_1": (32, "part"),
    "qa_2": (32, "part"),
}
FIELDS: dict[str, type] = {"input": str, "outputs": list, "length": int, "answer_prefix": str}
_NEEDLE_CUTS = ("What are all the special magic ", "What is the special magic ")
_QA_CUTS = ("Answer the question based on the given documents.",)
_CHAT_MARKS = ("<|begin_of_text|>", "<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]", "<bos>", "<s>")


def load(data_dir: str | Path, task: str, length: int, n: int | None = None) -> list[Example]:
    """The first n samples (default: all) of a task's file made for L = `length` tokens.

    `template_hash` is the sha256 of the file. Tokens are not counted again: the file's count is by the tokenizer it was
    made with. ValueError when the task is unknown, the file is missing or too short, a line is not as described or
    longer than L; it names the file and the line.
    """
    if task not in LIMITS:
        raise ValueError(f"unknown task {task!r}; allowed: {', '.join(LIMITS)}")
    if n is not None and n < 1:
        raise ValueError(f"n is {n}; expected at least 1 example of {task}")
    path = Path(data_dir) / task / "validation.jsonl"
    if not path.is_file():
        raise ValueError(f"no file {path}; expected one JSON object per line with {', '.join(FIELDS)}")
    content = path.read_bytes()
    lines = content.decode("utf-8").rstrip("\n").split("\n")
    if n is not None and len(lines) < n:
        raise ValueError(f"{path} has {len(lines)} samples; {n} were asked for")
    file_hash = hashlib.sha256(content).hexdigest()
    out = []
    for index, line in enumerate(lines[:n]):
        where = f"{path}, line {index + 1}"
        row = _row(line, length, where)
        context, question = _cut(task, row["input"], where)
        max_new_tokens, metric = LIMITS[task]
        out.append(
            Example(
                task=task,
                index=index,
                context=context,
                question=question,
                answer_prefix=row["answer_prefix"],
                references=tuple(map(str, row["outputs"])),
                max_new_tokens=max_new_tokens,
                metric=metric,
                length=length,
                variant=VARIANT,
                template_hash=file_hash,
            )
        )
    return out


def _row(line: str, length: int, where: str) -> dict[str, Any]:
    row = reading.parsed(line, where, dict)
    for name, kind in FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{where}: field {name!r} is {row.get(name)!r}; expected {kind.__name__}")
    if not row["outputs"] or not all(str(output) for output in row["outputs"]):
        raise ValueError(f"{where}: outputs are {row['outputs']!r}; expected at least one, and none empty")
    if row["length"] > length:
        raise ValueError(f"{where}: length is {row['length']}; the file was asked for as one of L={length}")
    for mark in _CHAT_MARKS:
        if mark in row["input"]:
            raise ValueError(f"{where}: input contains {mark!r}; make the file without a chat template (base)")
    return row


def _cut(task: str, text: str, where: str) -> tuple[str, str]:
    """Context and question; the question starts at the last occurrence of a sentence that asks."""
    cuts = _NEEDLE_CUTS if task.startswith("niah") else _QA_CUTS if task.startswith("qa") else ("Question:",)
    at = max(text.rfind(cut) for cut in cuts)
    if at <= 0:
        raise ValueError(f"{where}: no question found in input; looked for {' or '.join(map(repr, cuts))}")
    return text[:at], text[at:]
