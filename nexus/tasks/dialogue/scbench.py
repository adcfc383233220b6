"""SCBench from its files: <data_dir>/<task>.jsonl, one conversation per line.

Li et al., arXiv 2412.10319; code microsoft/MInference (folder scbench), data microsoft/SCBench. A line is
{"context": text, "multi_turns": [{"input": text, "answer": text | number | list of these, "options"?: [4 texts],
"task"?: text}, ...]}; shortened data of the same schema load alike. Limits of generation and rules are upstream's, the
few words around a context are ours, so the variant is `scbench-nexus`. repoqa (function similarity), summary
(ROUGE-Lsum) and qa_chn (character F1) have no rule here: their answers are written and their scores are missing, not 0.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nexus.tasks import reading
from nexus.tasks.dialogue.schema import Conversation, Turn, wording_hash

VARIANT = "scbench-nexus"
LETTERS = "ABCD"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """How turns of one name are asked and scored. ask: form of the user's text, with {input} and {options}."""

    max_new_tokens: int
    metric: str
    ask: str = "{input}"
    answer_prefix: str = ""


_PLAIN = {
    "scbench_kv": Kind(max_new_tokens=150, metric="contains"),
    "scbench_prefix_suffix": Kind(max_new_tokens=150, metric="contains"),
    "scbench_vt": Kind(max_new_tokens=30, metric="all"),
    "scbench_repoqa": Kind(max_new_tokens=1024, metric="none"),
    "scbench_qa_eng": Kind(max_new_tokens=40, metric="any", ask="Answer in a few words. {input}"),
    "scbench_qa_chn": Kind(max_new_tokens=40, metric="none"),
    "scbench_choice_eng": Kind(
        max_new_tokens=40, metric="choice", ask="{input}\n{options}\nGive the letter of the right option.",
        answer_prefix="The right option is",
    ),
    "scbench_many_shot": Kind(max_new_tokens=10, metric="any"),
    "scbench_summary": Kind(max_new_tokens=200, metric="none"),
    "scbench_mf": Kind(max_new_tokens=5, metric="number"),
}  # fmt: skip
TASKS: dict[str, dict[str, Kind]] = {name: {"": kind} for name, kind in _PLAIN.items()} | {
    "scbench_summary_with_needles": {
        "scbench_summary": Kind(max_new_tokens=800, metric="none"),
        "scbench_passkey": Kind(max_new_tokens=15, metric="digits"),
    },
    "scbench_repoqa_and_kv": {
        "scbench_repoqa": Kind(max_new_tokens=1024, metric="none"),
        "scbench_kv": Kind(max_new_tokens=80, metric="contains"),
    },
}
"""task -> name of the turn ("" where all turns are alike) -> kind."""
LAYOUT = 'one JSON object per line with "context" and "multi_turns"'


def load(data_dir: str | Path, task: str, length: int, n: int) -> list[Conversation]:
    """The first n conversations of a task's file, or all it has. ValueError names file, line and field."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; allowed: {', '.join(TASKS)}")
    path = Path(data_dir) / f"{task}.jsonl"
    text, file_hash = reading.content(path, LAYOUT)
    kinds = TASKS[task]
    template = wording_hash({name: dataclasses.asdict(kind) for name, kind in kinds.items()} | {"file": file_hash})
    found = []
    for index, (record, where) in enumerate(reading.json_lines(text, path)):
        if index == n:
            break
        turns = reading.field(record, "multi_turns", list, where)
        found.append(
            Conversation(
                task=task, index=index, context=reading.field(record, "context", str, where) + "\n\n",
                turns=tuple(_turn(turn, kinds, f"{where}, multi_turns[{i}]") for i, turn in enumerate(turns)),
                length=length, variant=VARIANT, template_hash=template,
            )
        )  # fmt: skip
    if not found:
        raise ValueError(f"{path} is empty; expected {LAYOUT}")
    return found


def _turn(turn: Any, kinds: dict[str, Kind], where: str) -> Turn:
    said = reading.field(turn, "input", str, where)
    name = "" if "" in kinds else reading.field(turn, "task", str, where)
    if name not in kinds:
        raise ValueError(f"{where}: field 'task' is {name!r}; allowed: {', '.join(kinds)}")
    kind = kinds[name]
    references = _references(turn, where)
    options = ""
    if kind.metric == "choice":
        texts = reading.field(turn, "options", list, where)
        if len(texts) != len(LETTERS) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{where}: field 'options' is {texts!r:.60}; expected 4 texts")
        options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=True))
        references = tuple(_letter(reference, texts, where) for reference in references)
    reply = f" {references[0]}" if kind.answer_prefix else references[0]
    return Turn(
        user=kind.ask.format(input=said, options=options), reply=reply, answer_prefix=kind.answer_prefix,
        references=references, metric=kind.metric, max_new_tokens=kind.max_new_tokens,
    )  # fmt: skip


def _references(turn: Any, where: str) -> tuple[str, ...]:
    value = reading.field(turn, "answer", (str, int, float, list), where)
    values = value if isinstance(value, list) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, str | int | float) or item == "":
            raise ValueError(f"{where}: field 'answer' is {value!r:.60}; expected text, number or a list of them")
    return tuple(map(str, values))


def _letter(reference: str, options: list[str], where: str) -> str:
    """The letter of an answer that is given as a letter or as the text of an option."""
    if reference in options:
        return LETTERS[options.index(reference)]
    if reference not in LETTERS or len(reference) != 1:
        raise ValueError(f"{where}: field 'answer' is {reference!r:.60}; expected A to D or one of the options")
    return reference
