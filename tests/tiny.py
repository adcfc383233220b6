"""What the tests of the core share: a model that compiles in a second, and every method at one canonical size.

Programs are cached by what they are compiled for, so tests that stay with these sizes share them. K = 2 and G = 3, so
that no two axes of heads can be confused.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nexus import buffer as kv
from nexus import methods, rope
from nexus.generate import Session, Settings
from nexus.methods import Method
from nexus.models.config import ModelConfig
from nexus.models.load import Model
from nexus.models.transformer import init_params
from nexus.shapes import EMPTY, Layout
from tests import oracle, oracle_memory, oracle_output, oracle_retention, oracle_side

CFG = ModelConfig(
    name="test", family="llama", num_layers=2, num_heads=6, num_kv_heads=2, head_dim=8, dim=32, ffn_dim=48,
    vocab_size=64, max_position=1 << 16, rms_eps=1e-5, rope=rope.RopeConfig(theta=10000.0),
)  # fmt: skip
BUDGET, CHUNK, EVERY, BATCH = 12, 8, 4, 3
SETTINGS = Settings(chunk=CHUNK, evict_every=EVERY)
CALIBRATION = Path(__file__).parent / "fixtures" / "calibration.json"  # of retrieval heads, for CFG
GATES = str(Path(__file__).parent / "fixtures" / "gates-{}.safetensors")
OPTIONS: dict[str, dict[str, Any]] = {
    "snapkv": {"window": 4, "kernel": 3},
    "laprox": {"window": 4, "kernel": 3},
    "criticalkv": {"window": 4, "kernel": 3, "first_stage": 0.75},
    "expected_attention": {"skip": 2, "future": 16},
    "trimkv": {"gates": GATES.format("two_layer")},
    "global_retention": {"gates": GATES.format("three_layer")},
    "judgeq": {"probes": "untrained", "window": 4, "kernel": 3},
    "kvzip": {"chunk": 6, "softmax_sinks": 2, "ask": (60, 9, 33), "ask_later": (11, 59), "reply": (7,)},
    "nexus_sampling": {"block": 2, "window": 4},
    "gkv": {"window": 4},
    "rkv": {"window": 4, "kernel": 3},
    "lagkv": {"lag": 3, "skip": 2},
    "pyramidkv": {"window": 4, "kernel": 3},
    "adakv": {"window": 4, "kernel": 3},
    "compresskv": {"window": 4, "kernel": 3, "least": 7, "calibration": str(CALIBRATION)},
    "oracle": {"longest": 8},
    "dbudgetkv": {"tau": 0.3, "full_layers": 1},
}
FUTURE = (35, [3, 60, 17], [8, 41])  # what controls are told: where the question begins, its tokens, the answer's
CAPACITY = 256  # of full caches

# Every method as its row says, then the compositions with heads of unequal length.
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in methods.names()} | {
    "streaming_llm-cache": ("streaming_llm", {"positions": "cache"}),
    "knorm-global": ("knorm", {"allocator": "global", "min_per_head": 1}),
    "snapkv-per_layer": ("snapkv", {"allocator": "per_layer", "pool": "max"}),
    "h2o-global": ("h2o", {"allocator": "global", "recent": 2}),
    "counter_causal-full": ("counter_causal", {"variant": "full", "measure": "log_prob", "gap": 1}),
    "gkv-global": ("gkv", {"allocator": "global", "min_per_head": 1}),
    "lagkv-per_layer": ("lagkv", {"allocator": "per_layer"}),
    "h2o-reservoir": ("h2o", {"sampler": "reservoir", "draws": 2, "allocator": "global", "recent": 2}),
}


# method -> the oracle's score, from the scorer's fields. A method that is not here (its draws or its selection are not
# the stream's) has its oracle in the test of its own part.
SCORES: dict[str, Any] = {
    "full": lambda scorer: None,
    "streaming_llm": lambda scorer: oracle.recency,
    "knorm": lambda scorer: oracle.key_norm,
    "keydiff": lambda scorer: oracle.key_difference,
    "tova": lambda scorer: oracle.last_query,
    "snapkv": lambda scorer: oracle.snapkv(scorer.window, scorer.kernel, scorer.pool),
    "h2o": lambda scorer: oracle.accumulated,
    "trimkv": oracle_retention.score,
    "global_retention": oracle_retention.score,
    "laprox": oracle_output.laprox,
    "criticalkv": oracle_output.criticalkv,
    "expected_attention": oracle_output.expected_attention,
    "judgeq": oracle_side.judgeq,
    "oracle": lambda scorer: oracle_side.foresight(*FUTURE),
    "counter_causal": oracle_side.counter_causal,
    "unigram": oracle_side.unigram,
    "kvzip": oracle_side.kvzip,
    "gkv": oracle_memory.gkv,
    "rkv": oracle_memory.rkv,
    "lagkv": oracle_memory.lagkv,
}


@functools.cache
def model(cfg: ModelConfig = CFG) -> Model:
    params = init_params(cfg, jax.random.key(7))
    rng = np.random.default_rng(0)  # norm weights that are not one, so that none can be forgotten
    params = jax.tree.map(np.asarray, params)
    params["final_norm"] = rng.uniform(0.5, 1.5, params["final_norm"].shape).astype(params["final_norm"].dtype)
    for name in ("attn_norm", "ffn_norm"):
        weight = params["blocks"][name]
        params["blocks"][name] = rng.uniform(0.5, 1.5, weight.shape).astype(weight.dtype)
    return Model(cfg, jax.tree.map(jnp.asarray, params), None)  # type: ignore[arg-type]


def build(case: str, **changes: Any) -> Method:
    """The method of a case at the canonical budget, with 2 sinks."""
    name, options = CASES[case]
    chosen = {"budget": BUDGET, "num_sinks": 2} | OPTIONS.get(name, {}) | options | changes
    return methods.build(name, **(chosen if name != "full" else {"budget": BUDGET}))


def session(
    method: Method, batch: int = BATCH, settings: Settings = SETTINGS, cfg: ModelConfig = CFG, **more: Any
) -> Session:
    s = Session(model(cfg), method, settings, batch, **({"capacity": CAPACITY} | more))
    if method.scorer.foresees:
        s.foresee([FUTURE[0]] * batch, [FUTURE[1]] * batch, [FUTURE[2]] * batch)
    return s


def prompt(length: int, seed: int = 0, vocab: int = CFG.vocab_size) -> list[int]:
    return np.random.default_rng(1000 + seed).integers(0, vocab, length).tolist()


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    return [prompt(n, 10 * seed + row) for row, n in enumerate(lengths)]


def logits(s: Session) -> np.ndarray:
    """Next-token logits [B,V] of where a session stands."""
    params = s.model.params
    head = params["embed"].T if s.model.config.tied_embeddings else params["head"]
    return np.asarray(s.hidden, np.float64) @ np.asarray(head, np.float64)


def rules(method: Method) -> oracle.Rules:
    """A method in the oracle's words."""
    return oracle.Rules(
        score=SCORES[method.name](method.scorer), budget=method.budget, pool=method.allocator.name,
        num_sinks=method.num_sinks, recent=method.recent, min_per_head=method.min_per_head, positions=method.positions,
    )  # fmt: skip


@functools.cache
def _wide_params(cfg: ModelConfig) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), model(cfg).params)


def stream(method: Method | oracle.Rules, cfg: ModelConfig = CFG) -> oracle.Stream:
    """The oracle of one sequence under a method."""
    said = rules(method) if isinstance(method, Method) else method
    return oracle.Stream(cfg, _wide_params(cfg), rope.inv_freq(cfg.rope, cfg.head_dim), said)


def assert_same(s: Session, row: int, reference: oracle.Stream, tolerance: float = 1e-4) -> None:
    """One row of a session holds what the oracle holds and says what the oracle says."""
    for layer, heads in enumerate(s.kept()[row]):
        for head, pos in enumerate(heads):
            np.testing.assert_array_equal(pos, reference.kept()[layer][head], err_msg=f"{row=} {layer=} {head=}")
    if reference.seen:
        np.testing.assert_allclose(logits(s)[row], reference.logits, atol=tolerance, err_msg=f"{row=}")


class Compilations:
    """Counts what XLA compiles while it is open."""

    def __enter__(self) -> Compilations:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(self, *_: Any) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, seconds: float, **_: Any) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


# --- buffers made by hand ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cached entry, the way a list would hold it."""

    pos: int
    k: np.ndarray
    v: np.ndarray
    aux: float


def filled(
    layout: Layout, counts: np.ndarray, tail: list[int], *, seed: int = 0, dead: float = 0.0, aux: tuple[str, ...] = ()
):
    """A buffer [B,L,K] with `counts` rows per head and `tail` live columns per sequence, and the same as nested lists.

    Table positions are increasing and different from head to head; rows that hold nothing are `dead` throughout.
    """
    rng = np.random.default_rng(seed)
    B, L, K = counts.shape
    H, C, top = layout.head_dim, layout.tail, 2 * int(counts.max()) + 3
    buf = kv.init(layout, B, aux=aux)
    k, v = (np.full((B, layout.rows, H), dead, np.float32) for _ in range(2))
    tk, tv = (np.full((L, B, K, C, H), dead, np.float32) for _ in range(2))
    pos, extra = np.full((B, layout.rows), EMPTY, np.int32), np.full((B, layout.rows), dead, np.float32)
    tail_pos, tail_extra = np.full((B, C), EMPTY, np.int32), np.full((L, B, K, C), dead, np.float32)
    pools = counts.reshape(B, layout.pools, layout.pool_heads)
    base = np.arange(layout.pools)[:, None] * layout.pool_rows
    start = (np.cumsum(pools, axis=-1) - pools + base).reshape(B, L, K).astype(np.int32)
    lists: list[list[list[list[Entry]]]] = [[[[] for _ in range(K)] for _ in range(L)] for _ in range(B)]
    for b in range(B):
        for o in range(L * K):
            layer, h = divmod(o, K)
            rows = np.arange(start[b, layer, h], start[b, layer, h] + counts[b, layer, h])
            pos[b, rows] = np.sort(rng.choice(top, len(rows), replace=False))
            k[b, rows], v[b, rows] = rng.normal(size=(2, len(rows), H))
            extra[b, rows] = rng.normal(size=len(rows)) if aux else 0.0
            tk[layer, b, h, : tail[b]], tv[layer, b, h, : tail[b]] = rng.normal(size=(2, tail[b], H))
            tail_extra[layer, b, h, : tail[b]] = rng.normal(size=tail[b]) if aux else 0.0
            lists[b][layer][h] = [Entry(int(pos[b, r]), k[b, r], v[b, r], extra[b, r]) for r in rows] + [
                Entry(top + c, tk[layer, b, h, c], tv[layer, b, h, c], tail_extra[layer, b, h, c])
                for c in range(tail[b])
            ]
        tail_pos[b, : tail[b]] = top + np.arange(tail[b])
    dtype = jnp.dtype(layout.dtype)
    buf = dataclasses.replace(
        buf, k=jnp.asarray(k, dtype), v=jnp.asarray(v, dtype), pos=jnp.asarray(pos), start=jnp.asarray(start),
        count=jnp.asarray(counts, jnp.int32), tail_k=jnp.asarray(tk, dtype), tail_v=jnp.asarray(tv, dtype),
        tail_pos=jnp.asarray(tail_pos), aux={name: jnp.asarray(extra) for name in aux},
        tail_aux={name: jnp.asarray(tail_extra) for name in aux}, fill=jnp.int32(max(tail)),
        seen=jnp.asarray([top + n for n in tail], jnp.int32),
    )  # fmt: skip
    return buf, lists


def held(buf: kv.KVBuffer, b: int, layer: int, head: int, aux: str | None = None) -> list[Entry]:
    """The table's entries of one head."""
    start, n = int(buf.start[b, layer, head]), int(buf.count[b, layer, head])
    rows = range(start, start + n)
    extra = np.zeros(buf.pos.shape[1]) if aux is None else np.asarray(buf.aux[aux])[b]
    pos, k, v = (np.asarray(x)[b] for x in (buf.pos, buf.k, buf.v))
    return [Entry(int(pos[r]), k[r], v[r], extra[r]) for r in rows]


def assert_entries(got: list[Entry], expected: list[Entry]) -> None:
    assert [e.pos for e in got] == [e.pos for e in expected]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a.k, b.k)
        np.testing.assert_array_equal(a.v, b.v)
        assert a.aux == b.aux
