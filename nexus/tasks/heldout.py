"""Needle tasks in wording that nothing else here uses: does what was learned, or tuned, depend on RULER's sentences?

The construction is RULER's (`ruler_niah`: essays, keys, values, depths); needle, instruction, question and answer
prefix are other sentences about another subject, written for this check and used nowhere else. No training reads them
(`tests/training/test_records.py`), and no choice of this project was made on them.
"""

from __future__ import annotations

from nexus.tasks import ruler_niah
from nexus.tasks.generated import Generated
from nexus.tasks.ruler_niah import Needles

VARIANT, VERSION = "heldout-nexus", "1.0.0"
WORDING = dict(
    needle="Note on {key}: its calibration {kind} came out as {value}.",
    head="{some} calibration {kind} {are} noted somewhere in this report. Look out for {them}; a check comes at the"
    " end.\n",
    question="According to the report, what {are_all} the calibration {kind} of {keys}?",
    answer_prefix=" According to the report, the calibration {kind} of {keys} {are}",
)


def _task(name: str, **counts: int) -> Generated:
    needles = Needles(haystack="essay", key_kind="word", value_kind="number", **counts)
    return ruler_niah.task(name, needles, VARIANT, VERSION, WORDING)


_ROWS = (
    _task("heldout_single"),
    _task("heldout_multikey", keys=4),
    _task("heldout_multivalue", values=4),
    _task("heldout_multiquery", queries=4),
)
TASKS: dict[str, Generated] = {row.name: row for row in _ROWS}
