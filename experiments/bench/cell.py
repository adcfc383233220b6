"""A whole RULER cell, from prompts to answers, against SnapKVPress of kvpress with the same prompts and budget.

Window and kernel are the same on both sides; ours also keeps the first tokens (see the method table).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from experiments.bench import theirs
from experiments.bench.shared import Bench
from experiments.bench.timing import Measure, Ratio
from nexus import metrics
from nexus.answers import answer_batch
from nexus.generate import Settings

PRESS = "kvpress SnapKVPress"


def cell(bench: Bench) -> Measure:
    """Seconds from prompts to answers over all prompts; batch by batch in turn."""
    cfg, tokenizer = bench.cfg, bench.model.tokenizer
    prompts = [tokenizer.prompt(e.context, e.question, e.answer_prefix) for e in bench.examples]
    batches = [range(i, i + cfg.cell_batch) for i in range(0, cfg.cell_prompts, cfg.cell_batch)]
    limit = bench.examples[0].max_new_tokens
    method = bench.method(cfg.unequal)
    scores: dict[str, dict[int, float]] = {}
    capacity = max(len(c) + len(q) for c, q in prompts) + limit

    def scored(name: str, index: int, tokens: list[int]) -> None:
        scores.setdefault(name, {})[index] = metrics.score(bench.examples[index], tokenizer.decode(tokens))

    def ours(name: str, settings: Settings, turn: int, context_end: int | None = None) -> float:
        batch = batches[turn % len(batches)]
        contexts, questions = ([list(prompts[i][side]) for i in batch] for side in (0, 1))
        began = time.perf_counter()
        cut = [ids[:context_end] for ids in contexts]
        answers = answer_batch(bench.model, method, settings, cut, questions, limit, capacity=capacity)
        elapsed = time.perf_counter() - began - answers.compile_seconds
        for index, tokens in zip(batch, answers.tokens, strict=True):
            scored(name, index, tokens)
        return elapsed

    def press(turn: int) -> float:
        began = time.perf_counter()
        answers = {i: other.answer(*prompts[i], limit) for i in batches[turn % len(batches)]}
        elapsed = time.perf_counter() - began
        for index, tokens in answers.items():
            scored(PRESS, index, tokens)
        return elapsed

    known = {
        f"{cfg.unequal}, streaming": bench.settings(),
        f"{cfg.unequal}, oneshot": bench.settings(protocol="oneshot", tail="free"),
    }
    contenders: dict[str, Callable[[int], float]] = {
        name: functools.partial(ours, name, settings) for name, settings in known.items()
    }
    missing = bench.missing("kvpress", PRESS)
    if not missing and cfg.unequal != "snapkv":
        missing = {PRESS: f"compared with snapkv only, not with {cfg.unequal}"}
    if not missing:
        scorer = method.scorer
        other = theirs.SnapKV(
            model=bench.theirs, budget=cfg.budget, window=scorer.window, kernel=scorer.kernel,  # type: ignore[attr-defined]
            eos_ids=bench.model.config.eos_ids,
        )  # fmt: skip
        contenders[PRESS] = press

    def warm_up() -> None:
        """The first tokens of the first contexts: programs do not know lengths, and compiling is not timed anyway."""
        for name, settings in known.items():
            ours(name, settings, 0, context_end=cfg.chunks[0])
        if PRESS in contenders:
            other.answer(prompts[0][0][: 2 * cfg.budget], prompts[0][1], 2)

    return Measure(
        unit="s", contenders=contenders, missing=missing, warm_up=warm_up, turns=len(batches) * cfg.cell_repeats,
        group=len(batches), ratios=[Ratio(top=PRESS, bottom=name) for name in known],
        facts=lambda: {"score, mean": {name: float(np.mean(list(found.values()))) for name, found in scores.items()}},
    )  # fmt: skip
