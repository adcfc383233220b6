"""SQuAD v2.0 (dev) and HotpotQA (dev, distractor) as documents and questions, for RULER's qa_1 and qa_2.

Rajpurkar et al., arXiv 1806.03822; Yang et al., arXiv 1809.09600. From `eval.data_dir` in the official JSON layouts, or
from the hub (`rajpurkar/squad_v2`, `hotpotqa/hotpot_qa`). SQuAD: answerable questions only; the gold paragraph, then
others of its article, then random ones. HotpotQA: the paragraphs of the question (ten, as a rule), then random ones.
Where more are wanted than there are, all but the gold ones follow again (RULER: all).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from nexus import fetch
from nexus.tasks import ruler, ruler_qa, sources
from nexus.tasks.fit import Context, Plan
from nexus.tasks.generated import Generated
from nexus.tasks.reading import content, field, parsed
from nexus.tasks.ruler_qa import Case

Squad = Iterator[tuple[str, str, str, list[str]]]  # article, paragraph, question ("" for none), answers
Hotpot = Iterator[tuple[str, str, list[tuple[str, list[str]]]]]  # question, answer, (title, sentences) of paragraphs


@dataclasses.dataclass(frozen=True)
class Question:
    """`gold` and `near` are documents by number: those it needs, and those that come before any random one."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """All documents and questions of a file, and the sha256 of its bytes."""

    documents: tuple[str, ...]
    questions: tuple[Question, ...]
    sha256: str

    def case(self, where: Context) -> Case:
        """The question of one sample: the seed orders all questions, the index takes one of them."""
        order = where.draws.run("questions").permutation(len(self.questions))
        chosen = self.questions[order[where.draws.index % len(order)]]
        rng = where.draws.sample("documents")
        near = rng.permutation(np.array(chosen.near, int))
        rest = np.setdiff1d(np.arange(len(self.documents)), [*chosen.gold, *chosen.near])
        pool = np.concatenate([near, rng.permutation(rest)])
        again = rng.permutation(np.setdiff1d(np.arange(len(self.documents)), chosen.gold))
        if not len(again):
            raise ValueError(f"no document of the file can stand beside those of the question {chosen.text!r}")

        def other(i: int) -> str:
            return self.documents[pool[i] if i < len(pool) else again[(i - len(pool)) % len(again)]]

        gold = tuple(self.documents[i] for i in chosen.gold)
        return Case(question=chosen.text, answers=chosen.answers, gold=gold, others=other)

    def plan(self, where: Context) -> Plan:
        """A sample of RULER's question answering."""
        return ruler_qa.plan(self.case(where), where)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A file that questions come from. `read` makes a corpus of it."""

    file: str
    layout: str
    repo: str
    hub_file: str
    read: Callable[[Path, str], Corpus]


def row(task: str, data_dir: str | Path, n: int) -> Generated:
    """The row of qa_1 or qa_2, for n questions of its file. ValueError when it is missing, broken or holds fewer."""
    corpus = load(task, data_dir)
    if n > len(corpus.questions):
        raise ValueError(f"{SOURCES[task].file} has {len(corpus.questions)} questions with answers; {n} were asked for")
    return Generated(
        name=task,
        variant=ruler.VARIANT,
        version=ruler_qa.VERSION,
        max_new_tokens=ruler_qa.MAX_NEW_TOKENS,
        metric=ruler_qa.METRIC,
        wording=ruler_qa.WORDING,
        planner=corpus.plan,
        material=corpus.sha256,
    )


def load(task: str, data_dir: str | Path = "") -> Corpus:
    """The corpus of qa_1 or qa_2 from `data_dir`, or from the hub when none is given ("")."""
    source = SOURCES[task]
    path = sources.locate(data_dir, source.file, source.layout, repo=source.repo, hub_file=source.hub_file)
    return _read(task, path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(task: str, path: Path, changed: int) -> Corpus:
    return SOURCES[task].read(path, fetch.sha256_of(path))


# --- SQuAD ------------------------------------------------------------------------------------------------------------
def squad(path: Path, sha256: str) -> Corpus:
    """ValueError when the file is not as described or holds no answerable question."""
    found = list(_squad_table(path) if path.suffix == ".parquet" else _squad_json(path))
    numbers = {text: i for i, text in enumerate(dict.fromkeys(paragraph for _, paragraph, _, _ in found))}
    articles: dict[str, list[int]] = {}
    for article, paragraph, _, _ in found:
        articles.setdefault(article, []).append(numbers[paragraph])
    questions = []
    for article, paragraph, question, answers in found:
        if question and answers:
            gold = numbers[paragraph]
            near = tuple(i for i in dict.fromkeys(articles[article]) if i != gold)
            questions.append(Question(question, tuple(dict.fromkeys(answers)), (gold,), near))
    return _corpus(numbers, questions, sha256, path)


def _squad_json(path: Path) -> Squad:
    text, _ = content(path, SOURCES["qa_1"].layout)
    for a, article in enumerate(field(parsed(text, str(path), dict), "data", list, str(path))):
        for p, paragraph in enumerate(field(article, "paragraphs", list, f"{path}, data[{a}]")):
            where = f"{path}, data[{a}].paragraphs[{p}]"
            context = field(paragraph, "context", str, where)
            yield str(a), context, "", []
            for q, asked in enumerate(field(paragraph, "qas", list, where, empty=True)):
                here = f"{where}.qas[{q}]"
                if not field(asked, "is_impossible", bool, here):
                    answers = [field(answer, "text", str, here) for answer in field(asked, "answers", list, here)]
                    yield str(a), context, field(asked, "question", str, here), answers


def _squad_table(path: Path) -> Squad:
    for record, where in sources.records(path, SOURCES["qa_1"].layout):
        title, context, question = (field(record, name, str, where) for name in ("title", "context", "question"))
        answers = field(record, "answers", dict, where)
        yield title, context, question, list(field(answers, "text", list, where, empty=True))


# --- HotpotQA ---------------------------------------------------------------------------------------------------------
def hotpot(path: Path, sha256: str) -> Corpus:
    """ValueError when the file is not as described or holds no question."""
    found = list(_hotpot_table(path) if path.suffix == ".parquet" else _hotpot_json(path))
    documents = [[f"{title}\n{''.join(sentences)}" for title, sentences in context] for _, _, context in found]
    numbers = {text: i for i, text in enumerate(dict.fromkeys(text for own in documents for text in own))}
    questions = [
        Question(question, (answer,), tuple(dict.fromkeys(numbers[text] for text in own)))
        for (question, answer, _), own in zip(found, documents, strict=True)
    ]
    return _corpus(numbers, questions, sha256, path)


def _hotpot_json(path: Path) -> Hotpot:
    text, _ = content(path, SOURCES["qa_2"].layout)
    for i, record in enumerate(parsed(text, str(path), list)):
        where = f"{path}, [{i}]"
        context = field(record, "context", list, where)
        if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], list) for pair in context):
            raise ValueError(f"{where}: context is not a list of [title, [sentences]]")
        yield field(record, "question", str, where), field(record, "answer", str, where), [(t, s) for t, s in context]


def _hotpot_table(path: Path) -> Hotpot:
    for record, where in sources.records(path, SOURCES["qa_2"].layout):
        context = field(record, "context", dict, where)
        titles, sentences = (field(context, name, list, where) for name in ("title", "sentences"))
        pairs = list(zip(titles, sentences, strict=True))
        yield field(record, "question", str, where), field(record, "answer", str, where), pairs


def _corpus(documents: Iterable[str], questions: list[Question], sha256: str, path: Path) -> Corpus:
    if not questions:
        raise ValueError(f"{path} holds no question with an answer")
    return Corpus(tuple(documents), tuple(questions), sha256)


SOURCES: dict[str, Source] = {
    "qa_1": Source(
        file="dev-v2.0.json",
        layout="SQuAD v2.0 dev, the official JSON: data -> paragraphs -> context, qas -> question, is_impossible, "
        "answers -> text",
        repo="rajpurkar/squad_v2",
        hub_file="squad_v2/validation-00000-of-00001.parquet",
        read=squad,
    ),
    "qa_2": Source(
        file="hotpot_dev_distractor_v1.json",
        layout="HotpotQA dev distractor, the official JSON: a list of question, answer, context [[title, [sentences]]]",
        repo="hotpotqa/hotpot_qa",
        hub_file="distractor/validation-00000-of-00001.parquet",
        read=hotpot,
    ),
}
