"""RULER: the eleven tasks that need no question-answering data, and one of ours, made with the model's tokenizer.

Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv 2404.06654; code
NVIDIA/RULER (Apache-2.0). Same parts in the same order, wording ours, generators per sample: scores are not comparable
with published ones digit by digit, so the variant is called `ruler-nexus`. What each task changes stands in its file.
"""

from __future__ import annotations

from types import ModuleType

from nexus.tasks import ruler_cwe, ruler_fwe, ruler_niah, ruler_vt
from nexus.tasks.generated import Generated
from nexus.tasks.ruler_niah import Needles

VARIANT, VERSION = "ruler-nexus", "1.0.0"


def _niah(name: str, haystack: str, key_kind: str, value_kind: str, **counts: int) -> Generated:
    needles = Needles(haystack=haystack, key_kind=key_kind, value_kind=value_kind, **counts)
    return ruler_niah.task(name, needles, VARIANT, VERSION)


def _other(name: str, max_new_tokens: int, module: ModuleType) -> Generated:
    return Generated(
        name=name,
        variant=VARIANT,
        version=VERSION,
        max_new_tokens=max_new_tokens,
        metric="all",
        wording=module.WORDING,
        planner=module.plan,
    )


_ROWS = (
    _niah("niah_single_1", "noise", "word", "number"),
    _niah("niah_single_2", "essay", "word", "number"),
    _niah("niah_single_3", "essay", "word", "uuid"),
    _niah("niah_multikey_1", "essay", "word", "number", keys=4),
    _niah("niah_multikey_2", "needle", "word", "number"),
    _niah("niah_multikey_3", "needle", "uuid", "uuid"),
    _niah("niah_multivalue", "essay", "word", "number", values=4),
    _niah("niah_multiquery", "essay", "word", "number", queries=4),
    _other("vt", 30, ruler_vt),
    _other("cwe", 120, ruler_cwe),
    _other("fwe", 50, ruler_fwe),
)
PUBLISHED = tuple(row.name for row in _ROWS)
# Ours: values are word pairs. A number is written digit by digit, so one lost entry makes it wrong, and observation
# windows look at first digits alone; words show what a method keeps without that. Asked for a "word" or a "password",
# small models answer with the wording of the task (full cache at 12 to 31 of 100), so it is a town that somebody lives
# in; one key, since among four they mix up keys and values, which are of the same kind.
_WORDS = Needles(haystack="essay", key_kind="word", value_kind="word")
_TOWN = dict(
    needle="{key} lives in the town of {value}.",
    head="Somewhere in the text below it is said in which town somebody lives.\n",
    question="In which town does {keys} live?",
    answer_prefix=" {keys} lives in the town of",
)
_OWN = (ruler_niah.task("niah_words", _WORDS, VARIANT, "1.2.0", _TOWN),)
TASKS: dict[str, Generated] = {row.name: row for row in _ROWS + _OWN}
