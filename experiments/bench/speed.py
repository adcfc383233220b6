"""Prefill and decoding: the streaming cache against the own full cache and transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable

from experiments.bench import theirs
from experiments.bench.shared import FULL, Bench
from experiments.bench.timing import Measure, Ratio
from nexus.generate import Session, Settings
from nexus.methods import Method


def prefill(bench: Bench, length: int) -> Measure:
    """Seconds of one prompt of `length` tokens."""
    cfg, ids = bench.cfg, bench.prompts(1, length)
    ours = {
        f"{name}, chunk {chunk}": (method, bench.settings(chunk))
        for name, method in ((cfg.equal, bench.method(cfg.equal)), (bench.global_name, bench.global_method()))
        for chunk in cfg.chunks
    }  # fmt: skip

    def run(method: Method, settings: Settings, turn: int) -> float:
        session = Session(bench.model, method, settings, 1, capacity=length)
        session.feed(ids)
        return session.prefill_s

    everyone = {FULL: (bench.method(FULL), bench.settings())} | ours
    contenders: dict[str, Callable[[int], float]] = {
        name: functools.partial(run, *what) for name, what in everyone.items()
    }
    missing = bench.missing(theirs.NAME, theirs.NAME)
    if not missing:
        contenders[theirs.NAME] = lambda turn: theirs.prefill_s(bench.theirs, ids)
    ratios = [Ratio(top=top, bottom=name) for top in (FULL, theirs.NAME) for name in ours]
    ratios += [Ratio(top=theirs.NAME, bottom=FULL)]
    return Measure(unit="s", contenders=contenders, ratios=ratios, missing=missing, turns=cfg.repeats)


def decoding(bench: Bench, batch: int) -> Measure:
    """Milliseconds of one token with the cache full; a token of a batch counts once for all its rows."""
    cfg = bench.cfg
    streaming = {
        cfg.equal: bench.method(cfg.equal),
        cfg.unequal: bench.method(cfg.unequal),
        bench.global_name: bench.global_method(),
    }
    capacity = cfg.budget + cfg.decode_steps
    full = Session(bench.model, bench.method(FULL), bench.settings(), batch, capacity=capacity)
    full.feed(bench.prompts(batch, cfg.budget))
    sessions = {FULL: full}
    for name, method in streaming.items():
        sessions[name] = Session(bench.model, method, bench.settings(), batch)
        sessions[name].feed(bench.prompts(batch, 2 * cfg.budget))

    def run(session: Session, turn: int) -> float:
        twin = session.fork()
        twin.generate(cfg.decode_steps, end=())
        return (twin.decode_s - session.decode_s) / cfg.decode_steps * 1e3

    contenders: dict[str, Callable[[int], float]] = {
        name: functools.partial(run, session) for name, session in sessions.items()
    }
    missing = bench.missing(theirs.NAME, theirs.NAME)
    if not missing:
        decode = theirs.decoder(bench.theirs, bench.prompts(batch, cfg.budget), cfg.decode_steps)
        contenders[theirs.NAME] = lambda turn: decode()
    ratios = [Ratio(top=top, bottom=name) for top in (FULL, theirs.NAME) for name in streaming]
    ratios += [Ratio(top=theirs.NAME, bottom=FULL), Ratio(top=bench.global_name, bottom=cfg.unequal)]
    entries = {name: float(session.counts().mean()) for name, session in sessions.items()}
    return Measure(
        unit="ms", contenders=contenders, ratios=ratios, missing=missing, turns=cfg.repeats,
        facts=lambda: {"entries per head at the start, mean": entries},
    )  # fmt: skip
