"""LongBench's kinds of tasks without its data: six sets made here, fitted to any length, scored by LongBench's rules.

Parts and their order are LongBench's (`longbench_wording`), people and places those of `qa_world`, and every answer
stands in the text. What they are for: trying LongBench's prompts and scores without the data, and small models, to
which LongBench itself is too hard. They are no substitute: texts are short-sentenced, facts are stated plainly.

- like_doc_qa: one article, one fact of it (F1)
- like_docs_qa: passages; the question needs two of them (F1)
- like_few_shot: sentences with their topics, then one without (classification; no chat wrapping, first line)
- like_count: paragraphs, some of them several times; how many different ones (count)
- like_retrieval: numbered paragraphs and what one of them says in other words (retrieval)
- like_code: functions of a file, and a test of one of them to be ended (edit similarity; no chat wrapping)
"""

from __future__ import annotations

from nexus.tasks import longbench_like_docs as docs
from nexus.tasks import longbench_like_shots as shots
from nexus.tasks.generated import Generated

VARIANT, VERSION = "longbench-like", "1.0.0"

_ROWS = (
    Generated(
        name="like_doc_qa", variant=VARIANT, version=VERSION, max_new_tokens=8, metric="f1",
        wording=docs.DOC_QA | docs.ALL_DEEDS, planner=docs.doc_qa,
    ),
    Generated(
        name="like_docs_qa", variant=VARIANT, version=VERSION, max_new_tokens=24, metric="f1",
        wording=docs.DOCS_QA, planner=docs.docs_qa,
    ),
    Generated(
        name="like_few_shot", variant=VARIANT, version=VERSION, max_new_tokens=8, metric="classification",
        wording=shots.FEW_SHOT, planner=shots.few_shot,
    ),
    Generated(
        name="like_count", variant=VARIANT, version=VERSION, max_new_tokens=16, metric="count",
        wording=docs.COUNT, planner=docs.count,
    ),
    Generated(
        name="like_retrieval", variant=VARIANT, version=VERSION, max_new_tokens=16, metric="retrieval",
        wording=docs.RETRIEVAL, planner=docs.retrieval,
    ),
    Generated(
        name="like_code", variant=VARIANT, version=VERSION, max_new_tokens=16, metric="edit",
        wording=shots.CODE, planner=shots.code,
    ),
)  # fmt: skip
TASKS: dict[str, Generated] = {row.name: row for row in _ROWS}
