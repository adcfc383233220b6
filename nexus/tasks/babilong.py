"""BABILong, qa1-qa5, from its own files: `<data_dir>/data/<task>/<k>k.json`, or the hub's `RMT-team/babilong`.

Kuratov et al., arXiv 2406.10149; code booydar/babilong (Apache-2.0). Files are made for 0k, 1k, 2k, ... tokens of
another tokenizer, and the prompt around them is not counted there. So at L tokens the largest file is read with
1024 k + 512 <= L; the variant names it, and a sample that does not fit into L with this model's tokenizer is an error.
Parts in the order of the benchmark, wording ours, its strict rule of scoring; the answer is not begun for the model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from nexus import fetch
from nexus.tasks import babi, sources
from nexus.tasks.babi import Frame
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.reading import field

REPO = "RMT-team/babilong"
LAYOUT = "BABILong's JSON: a list of objects with input, question, target"
FILES = "data/<qa1..qa5>/<0..128>k.json"
SIZES = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # k
ROOM = 512  # tokens for what is around the text
MAX_NEW_TOKENS = babi.MAX_NEW_TOKENS
_PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
LABELS = {f"babilong_qa{i}": _PLACES for i in range(1, 5)} | {
    "babilong_qa5": ("Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk")
}


def load(task: str, tokenizer: Tokenizer, length: int, n: int, data_dir: str | Path = "") -> list[Example]:
    """The first n samples of a task at L = `length` tokens.

    `template_hash` is the sha256 of wording and file. ValueError when the file is missing, broken or has fewer, or a
    sample is longer than L; it names the file and the record.
    """
    size = size_at(length)
    name = f"data/{task.removeprefix('babilong_')}/{size}k.json"
    path = sources.locate(data_dir, name, LAYOUT, repo=REPO, hub_file=name)
    rows = list(sources.records(path, LAYOUT))
    if len(rows) < n:
        raise ValueError(f"{path} has {len(rows)} samples; {n} were asked for")
    frame = FRAMES[task]
    made_of = json.dumps(frame.wording, sort_keys=True) + fetch.sha256_of(path)
    template_hash = hashlib.sha256(made_of.encode()).hexdigest()
    out = []
    for index, (row, where) in enumerate(rows[:n]):
        text, asked, target = (field(row, name, str, where) for name in ("input", "question", "target"))
        context, question = frame.head + text.strip() + babi.TAIL, babi.question(asked.strip())
        num_tokens = sum(map(len, tokenizer.prompt(context, question, frame.begun)))
        if num_tokens + MAX_NEW_TOKENS > length:
            raise ValueError(
                f"{where}: {num_tokens} tokens of prompt and {MAX_NEW_TOKENS} of answer do not fit into L={length}; "
                f"set eval.lengths to at least {num_tokens + MAX_NEW_TOKENS} for the {size}k file"
            )
        out.append(
            Example(
                task=task,
                index=index,
                context=context,
                question=question,
                answer_prefix=frame.begun,
                references=(target.strip(),),
                choices=LABELS[task],
                max_new_tokens=MAX_NEW_TOKENS,
                metric=babi.METRIC,
                length=length,
                variant=f"babilong-{size}k",
                template_hash=template_hash,
                prompt_tokens=num_tokens,
            )
        )
    return out


def size_at(length: int) -> int:
    """The file (in k) that is read at L = `length`. ValueError when not even the shortest has room."""
    fitting = [size for size in SIZES if 1024 * size + ROOM <= length]
    if not fitting:
        raise ValueError(f"BABILong needs a length of at least {ROOM}; got {length}")
    return fitting[-1]


FRAMES = {
    f"babilong_qa{i}": dataclasses.replace(babi.KINDS[f"babi_nexus_qa{i}"].frame, begun="") for i in (1, 2, 3)
} | {
    "babilong_qa4": Frame(
        instruction="Some sentences of the text say how places lie to each other; the others have nothing to do with"
        " it. Answer the question from those sentences alone.",
        examples=(
            ("The bank is north of the stadium. The lighthouse is west of the stadium.",
             "What is north of the stadium?", "bank"),
            ("The stadium is east of the bank. The stadium is west of the lighthouse.",
             "What is the stadium east of?", "bank"),
        ),
        form="Answer with the name of the place alone. Write nothing after it.",
    ),
    "babilong_qa5": Frame(
        instruction="Some sentences of the text say who gave what to whom; the others have nothing to do with it."
        " Answer the question from those sentences alone.",
        examples=(
            ("Ruth took the kite. Ruth handed the kite to Omar. Omar went to the bank.",
             "Who gave the kite to Omar?", "Ruth"),
            ("Omar grabbed the drum. Omar passed the drum to Ruth.", "What did Omar give to Ruth?", "drum"),
        ),
        form="Answer with one word, a name or a thing. Write nothing after it.",
    ),
}  # fmt: skip
