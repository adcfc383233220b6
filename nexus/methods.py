"""THE table: every eviction method is a composition of scorer, sampler, allocator and compensator.

`build` turns a name, a budget and options into a `Method`, which everything else consumes. `python -m nexus.methods
[NAME]` prints the table, or a method's options. Recombining existing parts is one more row; a new scorer is one file,
one row and one test.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from nexus import scorers
from nexus.allocators import (
    ALLOCATORS,
    Adaptive,
    Allocator,
    Calibrated,
    Everything,
    Global,
    NormLoss,
    PerHead,
    Pyramid,
)
from nexus.compensators import Compensator, Nothing
from nexus.samplers import SAMPLERS, Reservoir, Sampler, Top
from nexus.scorers import Scorer
from nexus.shapes import Layout

POSITIONS = ("original", "cache")
NUM_SINKS = 4  # of every method unless asked otherwise: without the first tokens a model falls apart

SINKS = f"{NUM_SINKS} sinks (paper: none)"
AGAIN = f"{SINKS}; cut again after every chunk"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A resolved method: hashable, a static argument of the compiled step."""

    name: str
    budget: int  # M: mean kept slots per layer and kv head; the total is M * L * K
    scorer: Scorer
    sampler: Sampler
    allocator: Allocator
    compensator: Compensator
    num_sinks: int = 0
    recent: int = 0
    min_per_head: int = 0
    positions: str = "original"

    @property
    def full(self) -> bool:
        """Nothing is ever evicted."""
        return self.allocator.name == "everything"

    def layout(self, cfg: Any, *, tail: int, budget: int | None = None) -> Layout:
        """The static shape of this method's buffer for a model config."""
        return Layout(
            num_layers=cfg.num_layers, num_kv_heads=cfg.num_kv_heads, num_groups=cfg.num_heads // cfg.num_kv_heads,
            head_dim=cfg.head_dim, budget=budget or self.budget, tail=tail,
            pools=self.allocator.pools(cfg.num_layers, cfg.num_kv_heads), dtype=cfg.activations,
            dim=getattr(cfg, "dim", 0), vocab_size=getattr(cfg, "vocab_size", 0),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: the parts with their defaults, and where it comes from."""

    title: str
    paper: str
    scorer: Scorer
    allocator: Allocator = PerHead()
    sampler: Sampler = Top()
    compensator: Compensator = Nothing()
    num_sinks: int = NUM_SINKS
    min_per_head: int = 0
    positions: tuple[str, ...] = ("original",)  # allowed; the first is the default
    differs: str = ""


ROWS: dict[str, Row] = {
    "full": Row(title="Full cache", paper="-", scorer=scorers.Recency(), allocator=Everything(), num_sinks=0),
    "random": Row(title="Random", paper="-", scorer=scorers.RandomDraw(), differs="a control"),
    "oracle": Row(
        title="Told the answer", paper="-", scorer=scorers.Foresight(),
        differs="a control that is told question and answer; in streaming it cannot know the rest of the context",
    ),
    "streaming_llm": Row(
        title="StreamingLLM", paper="2309.17453", scorer=scorers.Recency(), positions=POSITIONS,
        differs="true positions by default; positions=cache renumbers as the original",
    ),
    "knorm": Row(title="L2 norm of keys", paper="2406.11430", scorer=scorers.KeyNorm(), differs=SINKS),
    "keydiff": Row(title="KeyDiff", paper="2504.15364", scorer=scorers.KeyDifference(), differs=SINKS),
    "tova": Row(
        title="TOVA", paper="2401.06104", scorer=scorers.WindowAttention(window=1, kernel=1, layer_mean=True),
        differs=f"{SINKS}; at the end of a chunk, not at every token",
    ),
    "snapkv": Row(
        title="SnapKV", paper="2404.14469", scorer=scorers.WindowAttention(window=32, kernel=5),
        differs=AGAIN,
    ),
    "h2o": Row(
        title="H2O", paper="2306.14048", scorer=scorers.AccumulatedAttention(),
        differs=f"{SINKS}; sums averaged over query groups",
    ),
    "trimkv": Row(
        title="TRIM-KV", paper="2512.03324", scorer=scorers.Retention(gates="trimkv"),
        differs=f"{SINKS}, which do not fade in training either; cut after every chunk",
    ),
    "global_retention": Row(
        title="Make Each Token Count", paper="2605.09649", scorer=scorers.Retention(gates="global_retention"),
        allocator=Global(), min_per_head=1,
        differs=f"{SINKS}, which do not fade in training either; 1 entry per head stays; cut after every chunk",
    ),
    "laprox": Row(
        title="LaProx", paper="2605.07234", scorer=scorers.LaProx(), allocator=Global(),
        differs=AGAIN,
    ),
    "criticalkv": Row(
        title="CriticalKV", paper="2502.03805", scorer=scorers.CriticalKV(),
        differs=AGAIN,
    ),
    "expected_attention": Row(
        title="Expected Attention", paper="2510.00636", scorer=scorers.ExpectedAttention(),
        differs="cut again after every chunk, with the statistics of all tokens so far",
    ),
    "pyramidkv": Row(
        title="PyramidKV", paper="2406.02069", scorer=scorers.WindowAttention(window=8, kernel=5), allocator=Pyramid(),
        differs=f"{SINKS}; exact total; cut again after every chunk, the slope grows with the text",
    ),
    "adakv": Row(
        title="Ada-KV", paper="2407.11550", allocator=Adaptive(),
        scorer=scorers.WindowAttention(window=32, kernel=7, pool="max", group_first=True),
        differs=f"{SINKS}; exact total; cut again after every chunk",
    ),
    "compresskv": Row(
        title="CompressKV", paper="2606.24467", scorer=scorers.RetrievalHeads(), allocator=Calibrated(),
        differs=f"{SINKS}; calibrated on data outside every evaluation; cut again after every chunk",
    ),
    "dbudgetkv": Row(
        title="DBudgetKV / ReFreeKV", paper="2502.16886", scorer=scorers.EvictionOrder(), allocator=NormLoss(),
        differs="the budget is a ceiling; cut again after every chunk",
    ),
    "judgeq": Row(
        title="Judge Q", paper="2509.10798", scorer=scorers.SoftQueries(),
        differs=f"{SINKS}; cut again after every chunk; pooling and window of SnapKV",
    ),
    "counter_causal": Row(
        title="Counter-causal surprise", paper="2607.27600", scorer=scorers.CounterCausal(),
        differs=SINKS,
    ),
    "unigram": Row(
        title="Rare tokens", paper="-", scorer=scorers.Unigram(), differs="a control for counter_causal"
    ),
    "kvzip": Row(
        title="KVzip", paper="2505.23416", scorer=scorers.Replay(), allocator=Global(),
        differs="streaming: an extension that replays one chunk; the chat template's prefix is replayed as well",
    ),
    "nexus_sampling": Row(
        title="Nexus Sampling", paper="2606.23961", scorer=scorers.BlockWalk(), sampler=Reservoir(share_heads=True),
        differs="from a draft's equations; blocks of min(64, M / 16); whole sink, previous and current block forced",
    ),
    "gkv": Row(
        title="G-KV", paper="2512.00504", scorer=scorers.GlobalAttention(),
        differs=AGAIN,
    ),
    "rkv": Row(
        title="R-KV", paper="2505.24133", scorer=scorers.RedundancyAware(),
        differs=AGAIN,
    ),
    "lagkv": Row(
        title="LagKV", paper="2504.04704", scorer=scorers.LagRelative(),
        differs="partitions of min(128, M / 4); one is scored once, when the next is complete",
    ),
}  # fmt: skip


def names() -> list[str]:
    """Registry names, full first."""
    return list(ROWS)


def row(name: str) -> Row:
    """The row of a name; an unknown name is a KeyError that lists the known ones."""
    if name not in ROWS:
        near = difflib.get_close_matches(str(name), ROWS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise KeyError(f"method {name!r} is not known{hint}; known: {', '.join(ROWS)}")
    return ROWS[name]


def options(name: str) -> dict[str, Any]:
    """Option names of a method with their defaults: allocator, sampler, positions, and the fields of all its parts."""
    r = row(name)
    if name == "full":
        return {}
    found = _fields(r.scorer) | {"allocator": r.allocator.name} | _fields(r.allocator)
    found |= {"sampler": r.sampler.name} | _fields(r.sampler) | _fields(r.compensator)
    return found | ({"positions": r.positions[0]} if len(r.positions) > 1 else {})


def _fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def build(
    name: str,
    *,
    budget: int,
    num_sinks: int | None = None,
    recent: int | None = None,
    min_per_head: int | None = None,
    **chosen: Any,
) -> Method:
    """Composes a method.

    Args:
        name: a name of the table.
        budget: M, mean kept slots per layer and kv head, sinks and window included.
        num_sinks, recent, min_per_head: protected first tokens, newest tokens, best of each head; None = the row's.
        chosen: options of the row, see `options`.

    Raises:
        KeyError: unknown method or option, with the known ones.
        ValueError: a value out of range, or more entries protected than the budget holds.
    """
    r = row(name)
    allocator = _part("allocator", ALLOCATORS, chosen.get("allocator"), r.allocator)
    sampler = _part("sampler", SAMPLERS, chosen.get("sampler"), r.sampler)
    if allocator.name == "everything" and name != "full":
        raise ValueError(f"method {name!r}: allocator 'everything' is the method 'full'")
    given = _given(name, chosen, allocator, sampler)
    scorer = _with(r.scorer, given)
    positions = given.get("positions", "original")
    if positions not in r.positions:
        raise ValueError(f"method {name!r}: positions {positions!r}; allowed: {', '.join(r.positions)}")
    method = Method(
        name=name,
        budget=_count("budget", budget, least=1),
        scorer=scorer,
        sampler=_with(sampler, given),
        allocator=_with(allocator, given),
        compensator=_with(r.compensator, given),
        num_sinks=_count("num_sinks", r.num_sinks if num_sinks is None else num_sinks),
        recent=_count("recent", scorer.recent(budget) if recent is None else recent),
        min_per_head=_count("min_per_head", r.min_per_head if min_per_head is None else min_per_head),
        positions=positions,
    )
    _check_protection(method)
    return method


def _part(kind: str, table: dict[str, Any], name: Any, own: Any) -> Any:
    """The part of a name with its defaults; the row's own where none is named."""
    if name is None or name == own.name:
        return own
    if name not in table:
        raise ValueError(f"{kind} {name!r}; allowed: {', '.join(table)}")
    return table[name]()


def _with(part: Any, given: dict[str, Any]) -> Any:
    return dataclasses.replace(part, **{key: given[key] for key in _fields(part) if key in given})


def _given(name: str, chosen: dict[str, Any], allocator: Allocator, sampler: Sampler) -> dict[str, Any]:
    """The options in force. Those of a part that was exchanged may be present with the row's defaults: configs list
    them; another value for them would be ignored, so it is refused."""
    own = options(name)
    here = own | (_fields(allocator) | _fields(sampler) if name != "full" else {})
    parts = (row(name).scorer, allocator, sampler, row(name).compensator)
    in_force = {"allocator", "sampler", "positions"} | {key for part in parts for key in _fields(part)}
    for key, value in chosen.items():
        if key not in here:
            raise KeyError(f"method {name!r} has no option {key!r}; known: {', '.join(own) or 'none'}")
        kind = type(here[key])
        if kind in (bool, int, float, str) and not isinstance(value, (kind, int) if kind is float else (kind, tuple)):
            raise ValueError(f"method {name!r}: option {key} takes {kind.__name__}, got {value!r}")
        if key not in in_force and value != own[key]:
            raise ValueError(
                f"method {name!r}: option {key}={value!r} belongs to a part that is not in use with "
                f"allocator={allocator.name!r}, sampler={sampler.name!r}"
            )
    return {key: chosen.get(key, default) for key, default in here.items()}


def _count(name: str, value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def _check_protection(m: Method) -> None:
    """More protected entries than slots cannot be kept; refused here, before any model is loaded."""
    if m.full:
        return
    unit = m.scorer.unit(m.budget)
    sinks, recent = -(-m.num_sinks // unit) * unit, m.recent and m.recent + unit - 1  # at most, in whole units
    protected = sinks + recent + m.min_per_head
    m.allocator.check(m.budget, protected)
    if protected > m.budget:
        blocks = f" in whole blocks of {unit}" if unit > 1 else ""
        raise ValueError(
            f"method {m.name!r}: num_sinks={m.num_sinks} + recent={m.recent} + min_per_head={m.min_per_head} "
            f"= {protected} protected entries{blocks} do not fit the budget of {m.budget} slots per head"
        )


def table() -> str:
    """The method table as markdown."""
    columns = "name, method, arXiv, scorer, sampler, allocator, sinks, positions, differs from the paper".split(", ")
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, r in ROWS.items():
        scorer = "-" if name == "full" else type(r.scorer).__name__
        cells = (
            f"`{name}`",
            r.title,
            r.paper,
            scorer,
            r.sampler.name,
            r.allocator.name,
            r.num_sinks,
            "/".join(r.positions),
            r.differs or "-",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    from nexus import cli, manual  # here: it imports this module

    cli.run(manual.main)
