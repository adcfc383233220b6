"""LongBench v1: the 16 English and code tasks that work on KV caches reports, and LongBench-E by bucket of length.

Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding", arXiv 2308.14508; code
THUDM/LongBench (MIT), data from a folder or from the hub's data set of that name. Generation limits, metrics, the
first-line rule and the tasks without chat wrapping are as published; wording is ours (`longbench_wording`), the variant
is `longbench-nexus` or `longbench-e-nexus`. L limits prompt and answer together: longer prompts lose their middle
(`middle`).

Deviations: the answer cue follows the assistant header instead of closing the user's turn; samsum is not stopped at the
first newline, which the first-line rule makes the same unless an answer begins with one; the five Chinese tasks need a
word splitter and are left out.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping

from nexus.tasks import longbench_files, middle
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.longbench_files import Record
from nexus.tasks.longbench_wording import WORDING, Wording

VARIANT, VARIANT_E = "longbench-nexus", "longbench-e-nexus"
HUB = longbench_files.HUB
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a task fixes beside its wording. `metric` is a rule of `nexus.metrics`."""

    metric: str
    max_new_tokens: int
    chat: bool = True
    first_line: bool = False


TASKS: Mapping[str, Facts] = {
    "narrativeqa": Facts(metric="f1", max_new_tokens=128),
    "qasper": Facts(metric="f1", max_new_tokens=128),
    "multifieldqa_en": Facts(metric="f1", max_new_tokens=64),
    "hotpotqa": Facts(metric="f1", max_new_tokens=32),
    "2wikimqa": Facts(metric="f1", max_new_tokens=32),
    "musique": Facts(metric="f1", max_new_tokens=32),
    "gov_report": Facts(metric="rouge_l", max_new_tokens=512),
    "qmsum": Facts(metric="rouge_l", max_new_tokens=512),
    "multi_news": Facts(metric="rouge_l", max_new_tokens=512),
    "trec": Facts(metric="classification", max_new_tokens=64, chat=False, first_line=True),
    "triviaqa": Facts(metric="f1", max_new_tokens=32, chat=False, first_line=True),
    "samsum": Facts(metric="rouge_l", max_new_tokens=128, chat=False, first_line=True),
    "passage_count": Facts(metric="count", max_new_tokens=32),
    "passage_retrieval_en": Facts(metric="retrieval", max_new_tokens=32),
    "lcc": Facts(metric="edit", max_new_tokens=64, chat=False),
    "repobench-p": Facts(metric="edit", max_new_tokens=64, chat=False),
}
IN_E = tuple(name for name in TASKS if name not in ("narrativeqa", "musique", "qmsum"))
BUCKETS = {"0-4k": (0, 4000), "4-8k": (4000, 8000), "8k-up": (8000, None)}  # words, from and below


def load(
    task: str,
    tokenizer: Tokenizer,
    length: int,
    n: int,
    data_dir: str = "",
    bucket: str = "",
    strict_upstream: bool = False,
) -> list[Example]:
    """The first n records of a task, or as many as there are, cut to L = `length` tokens.

    With a `bucket` of `BUCKETS` those of LongBench-E in it. `strict_upstream`: trec is scored with the quirk of
    LongBench's own code (`longbench_rules.classification`). ValueError for a missing or broken file (file, line and
    field in the message), or an L that holds no prompt.
    """
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1 example of {task}")
    name = f"{task}_e_{bucket}" if bucket else task
    low, high = BUCKETS[bucket] if bucket else (0, None)
    found = longbench_files.read(
        f"{task}_e" if bucket else task,
        task,
        n,
        data_dir,
        lambda record: low <= record["length"] and (high is None or record["length"] < high),
    )
    examples = [_example(name, task, tokenizer, length, *one, strict_upstream) for one in found]
    if cut := [example for example in examples if example.cut_tokens]:
        gone = sum(e.cut_tokens for e in cut) / sum(e.cut_tokens + e.prompt_tokens for e in cut)
        _log.warning(
            "%s: %d of %d prompts are longer than L=%d and lost their middle, %.0f %% of their tokens",
            name, len(cut), len(examples), length, 100 * gone,
        )  # fmt: skip
    return examples


def parts(task: str, record: Record) -> tuple[str, str, str]:
    """Context, question and answer prefix of a record; the cue stands there once, whether the record ends with it or
    not.
    """
    wording = WORDING[task]
    asked, cue = _take_cue(record["input"], wording)
    return wording.head + record["context"] + wording.tail, wording.before + asked + wording.after, cue


def _take_cue(text: str, wording: Wording) -> tuple[str, str]:
    if not wording.cue_in_input:
        return text, wording.cue
    found = re.search(re.escape(wording.cue) + r"[ \t]*$", text)
    return (text[: found.start()], text[found.start() :]) if found else (text.rstrip("\n") + "\n", wording.cue)


def _example(
    name: str, task: str, tokenizer: Tokenizer, length: int, index: int, record: Record, strict_upstream: bool
) -> Example:
    facts = TASKS[task]
    context, question, cue = parts(task, record)
    try:
        kept = middle.keep_ends(tokenizer, context, question, cue, length - facts.max_new_tokens, chat=facts.chat)
    except ValueError as error:
        raise ValueError(
            f"{name}, line {index + 1}, at L={length} ({facts.max_new_tokens} for the answer): {error}"
        ) from error
    quirk = strict_upstream and facts.metric == "classification"
    return Example(
        task=name,
        index=index,
        context=kept.context,
        question=kept.question,
        answer_prefix=cue,
        references=tuple(record["answers"]),
        choices=tuple(record["all_classes"] or ()),
        max_new_tokens=facts.max_new_tokens,
        metric="classification_upstream" if quirk else facts.metric,
        length=length,
        variant=VARIANT if name == task else VARIANT_E,
        template_hash=WORDING[task].sha256,
        prompt_tokens=kept.tokens,
        chat=facts.chat,
        first_line=facts.first_line,
        cut_tokens=kept.cut,
    )
