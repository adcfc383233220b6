"""How a budget is divided: pools, options, and whole runs of the methods with unequal shares against their oracle."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from nexus import methods
from nexus.allocators import ALLOCATORS
from nexus.calibration import load
from nexus.selection import STRATEGIES, keep_best
from nexus.shapes import Layout
from tests import oracle, oracle_shares, tiny


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_global_with_equal_scores_equals_per_head(strategy):
    """Heads that tie everywhere must share equally: the newest M positions of every head."""
    L, K, M, n = 2, 2, 3, 7
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=1, head_dim=4, budget=M, tail=4, pools=1)
    score = np.tile(np.random.default_rng(0).integers(0, 3, n), (1, 1, L * K)).astype(np.float32)
    pos = np.tile(np.arange(n, dtype=np.int32), (1, 1, L * K))
    entries: Any = types.SimpleNamespace(pos=pos, cand=types.SimpleNamespace(layout=layout))
    whole = ALLOCATORS["global"](strategy=strategy).select(entries, score, np.zeros(pos.shape, bool))
    alone = keep_best(score.reshape(1, L * K, n), pos.reshape(1, L * K, n), np.zeros((1, L * K, n), bool), M, strategy)
    np.testing.assert_array_equal(np.asarray(whole).reshape(alone.shape), alone)


def test_pools_by_allocator():
    """Who may compete with whom."""
    assert {name: cls().pools(5, 3) for name, cls in ALLOCATORS.items()} == {
        "per_head": 15, "per_layer": 5, "global": 1, "everything": 15, "pyramid": 1, "adaptive": 5, "calibrated": 1,
        "norm_loss": 15,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("global", {"strategy": "sort"}, "strategy 'sort'; allowed: threshold, top_k"),
        ("pyramid", {"beta": 0}, "beta must be an integer of at least 1, got 0"),
        ("pyramid", {"beta": 2.5}, "beta must be an integer"),
        ("pyramid", {"spread": "some"}, "spread 'some'; allowed: free, all"),
        ("adaptive", {"alpha": 1.5}, "alpha must be a multiple of 1/100 between 0 and 1, got 1.5"),
        ("adaptive", {"alpha": 1 / 3}, "multiple of 1/100"),
        ("adaptive", {"safeguard": "x"}, "safeguard 'x'; allowed: blend, floor"),
        ("calibrated", {"least": 0}, "least must be an integer of at least 1"),
        ("norm_loss", {"tau": -0.1}, "tau must lie between 0 and 1"),
        ("norm_loss", {"full_layers": -1}, "full_layers must be an integer of at least 0"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    """Name, value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        ALLOCATORS[name](**options)


def test_a_floor_that_does_not_fit_is_refused_before_anything_runs():
    """CompressKV gives every layer 32: less budget has no solution, and more protected entries are not kept."""
    with pytest.raises(ValueError, match="least=32 .* budget of 16 slots"):
        methods.build("compresskv", budget=16, window=4)
    with pytest.raises(ValueError, match="least=32 .* the 44 protected"):
        methods.build("compresskv", budget=64, recent=40)


@pytest.mark.parametrize(
    ("allocator", "message"), [("calibrated", "brings layer weights"), ("norm_loss", "last query")]
)
def test_an_allocator_without_what_it_needs_says_so(allocator, message):
    """A score that brings no weights, or remembers no query, cannot be divided that way."""
    options = {"least": 4} if allocator == "calibrated" else {}
    method = methods.build("knorm", budget=tiny.BUDGET, num_sinks=2, allocator=allocator, **options)
    with pytest.raises(ValueError, match=message):
        tiny.session(method).feed(tiny.prompts(20, 3, 9))


# --- whole runs --------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "pyramidkv": ("pyramidkv", {}),
    "pyramidkv-steep": ("pyramidkv", {"beta": 2, "strategy": "top_k"}),
    "adakv": ("adakv", {}),
    "adakv-flat": ("adakv", {"alpha": 0.0, "strategy": "top_k"}),
    "compresskv": ("compresskv", {}),
    "dbudgetkv": ("dbudgetkv", {}),
    "dbudgetkv-attention": ("dbudgetkv", {"order": "attention", "window": 3, "tau": 0.1, "full_layers": 0}),
}


def build(case: str, **changes: Any) -> methods.Method:
    name, options = CASES[case]
    chosen = {"budget": tiny.BUDGET, "num_sinks": 2} | tiny.OPTIONS[name] | options | changes
    return methods.build(name, **chosen)


def reference(method: methods.Method) -> oracle_shares.SharesStream:
    """The oracle of one sequence under a method of this file."""
    s = method.scorer
    found = load(str(tiny.CALIBRATION), tiny.CFG)
    score, choose = {
        "pyramidkv": lambda: (oracle.snapkv(s.window, s.kernel, s.pool), oracle_shares.cut_pyramid(method)),
        "adakv": lambda: (oracle_shares.adakv(s.window, s.kernel, s.pool), oracle_shares.cut_adaptive(method)),
        "compresskv": lambda: (
            oracle_shares.compresskv(found.heads, s.window, s.kernel),
            oracle_shares.cut_calibrated(method, found.layer_weight),
        ),
        "dbudgetkv": lambda: (
            oracle_shares.layer_order(s.window) if s.order == "attention" else oracle.recency,
            oracle_shares.cut_norm_loss(method),
        ),
    }[method.name]()
    said = oracle.Rules(score=score, budget=method.budget, num_sinks=method.num_sinks, recent=method.recent)
    plain = tiny.stream(said)
    return oracle_shares.SharesStream(plain.cfg, plain.params, plain.inv_freq, said, choose=choose)


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_the_oracle(case):
    """Chunks, cuts, an answer, a turn that finds a tail half full, a longer answer: the sets kept and the logits."""
    method = build(case)
    s, rows = tiny.session(method), [reference(method) for _ in range(tiny.BATCH)]
    fill = 0
    for turn, (lengths, steps) in enumerate([((37, 5, 20), 6), ((9, 0, 23), 21)]):
        texts = tiny.prompts(*lengths, seed=turn)
        s.feed(texts)
        for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
            if fill:
                row.evict()
            row.prefill(text, tiny.CHUNK)
            tiny.assert_same(s, i, row)
        answers = s.generate(steps, end=())
        for i, row in enumerate(rows):
            tokens, row_fill = row.decode(steps, tiny.EVERY)
            assert answers[i] == tokens
            tiny.assert_same(s, i, row)
        fill = row_fill


def cut_once(method: methods.Method, length: int, capacity: int = 128) -> Any:
    """One row, prefilled in full and cut once."""
    s = tiny.session(method, batch=1, settings=tiny.Settings(protocol="oneshot", chunk=8, evict_every=4),
                     capacity=capacity)  # fmt: skip
    s.feed([tiny.prompt(length, 3)])
    s.compress()
    return s


def test_layers_of_a_pyramid_fall_and_add_up():
    """Official rounding loses entries; the first layer of a text far longer than the budget holds nearly twice M."""
    counts = cut_once(build("pyramidkv", budget=20, num_sinks=0), 100).counts()[0]
    assert counts.sum() == 20 * counts.size
    assert (counts == counts[:, :1]).all() and counts[0, 0] == 4 + 31 and counts[1, 0] == 4 + 1  # 31.2 and .8


def test_adakv_with_alpha_one_is_uniform_and_with_zero_is_flat():
    """The safeguard moves from the one to the other; in between no head falls below alpha of its mean share."""
    uniform = cut_once(build("adakv", alpha=1.0), 60).counts()[0]
    assert (uniform == tiny.BUDGET).all()
    flat = cut_once(build("adakv", alpha=0.0), 60)
    same = cut_once(methods.build("snapkv", budget=tiny.BUDGET, num_sinks=2, window=4, kernel=3, pool="max",
                                  group_first=True, allocator="per_layer"), 60)  # fmt: skip
    for one, other in zip(flat.kept()[0], same.kept()[0], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert (flat.counts() != tiny.BUDGET).any()
    half = cut_once(build("adakv", alpha=0.5), 60).counts()[0]
    assert half.min() >= 6 + 3 and half.sum() == tiny.BUDGET * half.size


def test_compresskv_keeps_one_set_per_layer_and_layers_differ():
    """The heads of a layer share an index set; layers hold what the calibration says, 7 + .7 * 10 and 7 + .3 * 10."""
    s = cut_once(build("compresskv"), 60)
    for layer in s.kept()[0]:
        assert all(np.array_equal(layer[0], pos) for pos in layer)
    np.testing.assert_array_equal(s.counts()[0], [[14, 14], [10, 10]])


def test_compresskv_leaves_a_layer_that_fits_alone():
    """P < M_l: nothing is cut in that layer, and what it cannot use goes to the others."""
    s = cut_once(build("compresskv"), 13)
    np.testing.assert_array_equal(s.counts()[0], [[13, 13], [11, 11]])


def test_dbudgetkv_keeps_less_as_tau_grows_and_never_more_than_the_ceiling():
    """tau = 1 keeps the sinks alone; tau = 0 all that is attended to, so the ceiling cuts; full layers meet it."""
    counts = [cut_once(build("dbudgetkv", budget=40, tau=tau, full_layers=0), 60).counts()[0].max(axis=1)
              for tau in (0.0, 0.02, 0.1, 0.3, 1.0)]  # fmt: skip
    assert (np.diff(counts, axis=0) <= 0).all()
    np.testing.assert_array_equal(counts[0], 40)
    np.testing.assert_array_equal(counts[-1], 2)
    assert (counts[3] < 40).all() and (counts[3] > 2).all()
    full = cut_once(build("dbudgetkv", budget=40, tau=1.0, full_layers=1), 60).counts()[0]
    np.testing.assert_array_equal(full, [[40, 40], [2, 2]])


def test_dbudgetkv_without_a_ceiling_keeps_everything_at_zero():
    """Every entry of a softmax has some attention, so none is lost where the norm may lose nothing."""
    counts = cut_once(build("dbudgetkv", budget=64, tau=0.0, full_layers=0), 60).counts()
    np.testing.assert_array_equal(counts, 60)
