"""RULER as kvpress evaluates it: the data set `simonjegou/ruler`, `<data_dir>/<length>.jsonl` or the hub.

NVIDIA/kvpress (Apache-2.0). Rows hold context, question and answer prefix apart, for all tasks in one file, made for
4096, 8192 and 16384 tokens of the Llama 3.1 tokenizer without a chat template; its authors say that scores are not
comparable with RULER's own. At L tokens the largest file with length <= L is read; a sample that does not fit into L
with this model's tokenizer is an error that says what it needs. A folder is made by exporting each configuration of the
data set as JSON lines.
"""

from __future__ import annotations

from pathlib import Path

from nexus import fetch
from nexus.tasks import sources
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.reading import field
from nexus.tasks.ruler_files import LIMITS

VARIANT, REPO = "ruler-kvpress", "simonjegou/ruler"
LENGTHS = (4096, 8192, 16384)
FILES = "<4096|8192|16384>.jsonl"
LAYOUT = "one JSON object per line with context, question, answer_prefix, answer (a list), task, max_new_tokens"


def load(task: str, tokenizer: Tokenizer, length: int, n: int, data_dir: str | Path = "") -> list[Example]:
    """The first n samples of a task. `template_hash` is the sha256 of the file, `max_new_tokens` the file's own.

    ValueError when the task is unknown, the file is missing, broken or has fewer samples of the task, or a sample is
    longer than L; it names the file and the line.
    """
    if task not in LIMITS:
        raise ValueError(f"unknown task {task!r}; allowed: {', '.join(LIMITS)}")
    made_for = [known for known in LENGTHS if known <= length]
    if not made_for:
        raise ValueError(f"{REPO} has lengths {', '.join(map(str, LENGTHS))}; L={length} is below all of them")
    size = made_for[-1]
    hub_file = f"{size}/test-00000-of-00001.parquet"
    path = sources.locate(data_dir, f"{size}.jsonl", LAYOUT, repo=REPO, hub_file=hub_file)
    found = [(row, where) for row, where in sources.records(path, LAYOUT) if field(row, "task", str, where) == task]
    if len(found) < n:
        raise ValueError(f"{path} has {len(found)} samples of {task}; {n} were asked for")
    file_hash, out = fetch.sha256_of(path), []
    for index, (row, where) in enumerate(found[:n]):
        context, question, prefix = (field(row, key, str, where) for key in ("context", "question", "answer_prefix"))
        limit = field(row, "max_new_tokens", int, where)
        num_tokens = sum(map(len, tokenizer.prompt(context, question, prefix)))
        if num_tokens + limit > length:
            raise ValueError(
                f"{where}: {num_tokens} tokens of prompt and {limit} of answer do not fit into L={length} with this "
                f"model's tokenizer; set eval.lengths to at least {num_tokens + limit} for the {size} file"
            )
        out.append(
            Example(
                task=task,
                index=index,
                context=context,
                question=question,
                answer_prefix=prefix,
                references=tuple(map(str, field(row, "answer", list, where))),
                max_new_tokens=limit,
                metric=LIMITS[task][1],
                length=length,
                variant=VARIANT,
                template_hash=file_hash,
                prompt_tokens=num_tokens,
            )
        )
    return out
