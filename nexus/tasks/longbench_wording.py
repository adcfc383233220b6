"""How LongBench's tasks are asked: the parts of THUDM/LongBench in its order, in words of ours.

Every prompt is  head . context . tail | before . input . after . cue,  cut at the bar into what may be evicted and what
comes later; the cue is the answer prefix. Where the instruction is given twice, the second one stands in the tail when
a question follows on a line of its own, and after the bar when it is itself what is asked (summaries, paragraphs).
Scores are those of this wording: `template_hash` tells it from another one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
    """The fixed text of a task. `cue_in_input`: records end with the cue already; it is taken from there."""

    head: str
    tail: str
    before: str = ""
    after: str = ""
    cue: str
    cue_in_input: bool = False

    @property
    def sha256(self) -> str:
        """Names this wording in every result row."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


def _twice(first: str, label: str, second: str, question: str = "Question: ") -> Wording:
    """Instruction, labelled text, instruction again, question, answer."""
    return Wording(head=f"{first}\n\n{label}", tail=f"\n\n{second}\n\n", before=question, after="\n\n", cue="Answer:")


def _summary(first: str, label: str, second: str) -> Wording:
    return Wording(head=f"{first}\n\n{label}\n", tail="\n\n", before=f"{second}\n\n", cue="Summary:")


def _shots(instruction: str, gap: str, cue: str) -> Wording:
    return Wording(head=f"{instruction} A number of solved cases come first.\n\n", tail=gap, cue=cue, cue_in_input=True)


_STORY = "Keep the answer as short as possible, one phrase at best, and explain nothing."
_ARTICLE = (
    "Keep the answer as short as possible: one phrase, or one sentence where a phrase is not enough. Where the article "
    'does not tell, the answer is "unanswerable". A question that asks for yes or no is answered with "yes", "no" or '
    '"unanswerable". Explain nothing.'
)
_PASSAGES = "Use the passages to answer the question. Write the answer alone, without a word before or after it."
_MANY = _twice(_PASSAGES, "These are the passages.\n", _PASSAGES)
_CODE = "Continue the source code that follows.\n"
_NEXT_LINE = "Next line of code:\n"

WORDING: dict[str, Wording] = {
    "narrativeqa": _twice(
        f"Below is a story, the text of a book or the script of a film; a question about it comes last. {_STORY}",
        "Story: ",
        f"The story ends here. Answer the question about it. {_STORY}",
    ),
    "qasper": _twice(
        f"Below is a paper from a scientific field; a question about it comes last. {_ARTICLE}",
        "Article: ",
        f"The article ends here. Answer the question about it. {_ARTICLE}",
    ),
    "multifieldqa_en": _twice(
        "Below is a text; give a brief answer to the question that comes after it.",
        "",
        "The text ends here. Answer the question from it; write the answer alone, without a word before or after it.",
    ),
    "hotpotqa": _MANY,
    "2wikimqa": _MANY,
    "musique": _MANY,
    "gov_report": _summary(
        "Below is a report that an agency of the government has written. Sum it up on one page.",
        "Report:",
        "The report ends here. Sum it up on one page.",
    ),
    "qmsum": _twice(
        "Below is what was said at a meeting; a request or a question about it comes last. Use one sentence or several "
        "to respond.",
        "Transcript:\n",
        "The meeting ends here. Respond to the query about it with one sentence or several.",
        "Query: ",
    ),
    "multi_news": _summary(
        "Below are articles from several newspapers. Sum all of them up together on one page.",
        "News:",
        "The news end here. Sum all of them up together on one page.",
    ),
    "trec": _shots("Name the type of the last question in this list.", "\n", "Type:"),
    "triviaqa": _shots(
        "Use the passage to answer the last question in this list. Write the answer alone, without a word before or "
        "after it.",
        "\n\n",
        "Answer:",
    ),
    "samsum": _shots("Sum up the last conversation of this list in a few short sentences.", "\n\n", "Summary:"),
    "passage_count": Wording(
        head="Below are paragraphs from Wikipedia, and some stand there more than once. Read them with care and find "
        "out how many different ones there are, each counted a single time.\n\n",
        tail="\n\n",
        before="How many different paragraphs are there, each counted a single time? Write a number and nothing else, "
        "for example 1 or 2 or 3.\n\n",
        cue="The final answer is: ",
    ),
    "passage_retrieval_en": Wording(
        head="Below are 30 paragraphs from Wikipedia and, after them, a short account of one of them. Find out which "
        "paragraph the account is about.\n\n",
        tail="\n\n",
        before="Here is the short account.\n\n",
        after='\n\nWhich paragraph is it about? Write it in the form "Paragraph 1" or "Paragraph 2".\n\n',
        cue="The answer is: ",
    ),
    "lcc": Wording(head=_CODE, tail="", cue=_NEXT_LINE),
    "repobench-p": Wording(head=_CODE, tail="", cue=_NEXT_LINE),
}
