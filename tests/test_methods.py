"""The table of methods: what it builds and what it refuses, before any model is loaded."""

from __future__ import annotations

import pytest

from nexus import methods


def test_the_table_names_every_baseline():
    """Configs, launcher and README read this table; full comes first."""
    assert methods.names() == [
        "full", "random", "oracle", "streaming_llm", "knorm", "keydiff", "tova", "snapkv", "h2o", "trimkv",
        "global_retention", "laprox", "criticalkv", "expected_attention", "pyramidkv", "adakv", "compresskv",
        "dbudgetkv", "judgeq", "counter_causal", "unigram", "kvzip", "nexus_sampling", "gkv", "rkv", "lagkv",
    ]  # fmt: skip
    text = methods.table()
    assert all(f"| `{name}` |" in text for name in methods.names())
    assert all(len(line.split("|")) == len(text.splitlines()[0].split("|")) for line in text.splitlines())


@pytest.mark.parametrize("name", methods.names())
def test_what_is_built_is_a_static_argument(name):
    """Two builds of one method share a program; sinks are never 0 unless somebody says so (keys_values#140)."""
    one, other = (methods.build(name, budget=64) for _ in range(2))
    assert one == other and hash(one) == hash(other) and one.name == name and one.budget == 64
    assert one.num_sinks == (0 if name == "full" else methods.NUM_SINKS) and methods.NUM_SINKS > 0
    assert one != methods.build(name, budget=65)


@pytest.mark.parametrize("name", methods.names())
def test_every_option_is_an_argument(name):
    """An option that is listed and not taken, or taken and ignored, is a lie in a config (ngocbh/trimkv)."""
    known = methods.options(name)
    assert methods.build(name, budget=64, **known) == methods.build(name, budget=64)
    for allocator in ("per_head", "per_layer", "global") if "allocator" in known else ():
        assert methods.build(name, budget=64, allocator=allocator).allocator.name == allocator


def test_zero_is_a_value():
    """`value or default` ignores 0 (kvpress)."""
    m = methods.build("snapkv", budget=64, num_sinks=0, recent=0, min_per_head=0)
    assert (m.num_sinks, m.recent, m.min_per_head) == (0, 0, 0)


def test_the_window_is_protected_by_the_rows_that_have_one():
    """Without it the newest tokens score 0 and go first."""
    assert methods.build("snapkv", budget=64, window=16).recent == 16
    assert methods.build("tova", budget=64).recent == 1
    assert methods.build("h2o", budget=64).recent == 32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("snap", {}), KeyError, "method 'snap' is not known \\(did you mean 'snapkv'.*known: full, random"),
        (("nothing-like-it", {}), KeyError, "known: full, random"),
        (("knorm", {"window": 3}), KeyError, "has no option 'window'; known: allocator"),
        (("full", {"allocator": "global"}), KeyError, "has no option 'allocator'; known: none"),
        (("knorm", {"allocator": "by_head"}), ValueError, "allocator 'by_head'; allowed: per_head, per_layer, global"),
        (("knorm", {"allocator": "everything"}), ValueError, "'everything' is the method 'full'"),
        (("knorm", {"sampler": "x"}), ValueError, "sampler 'x'; allowed: top"),
        (("knorm", {"strategy": "x"}), ValueError, "strategy 'x'; allowed: threshold, top_k"),
        (("streaming_llm", {"positions": "x"}), ValueError, "positions 'x'; allowed: original, cache"),
        (("knorm", {"positions": "cache"}), KeyError, "no option 'positions'"),
        (("knorm", {"budget": 0}), ValueError, "budget must be an integer of at least 1, got 0"),
        (("knorm", {"budget": 2.5}), ValueError, "budget must be an integer of at least 1, got 2.5"),
        (("knorm", {"budget": True}), ValueError, "budget must be an integer of at least 1, got True"),
        (("knorm", {"num_sinks": -1}), ValueError, "num_sinks must be an integer of at least 0, got -1"),
        (("snapkv", {"budget": 32}), ValueError, "num_sinks=4 \\+ recent=32 .* = 36 protected.*budget of 32"),
        (("knorm", {"budget": 8, "recent": 4, "min_per_head": 1}), ValueError, "= 9 protected"),
        (("snapkv", {"window": 0}), ValueError, "window must be at least 1"),
        (("snapkv", {"window": "a"}), ValueError, "option window takes int, got 'a'"),
        ((None, {}), KeyError, "method None is not known"),
        (("snapkv", {"kernel": 4}), ValueError, "kernel must be odd"),
        (("snapkv", {"pool": "mean"}), ValueError, "pool 'mean'; allowed: avg, max"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, error, message):
    """One clear line with name, value and what is allowed, and no silent clamp."""
    name, options = arguments
    with pytest.raises(error, match=message):
        methods.build(name, **({"budget": 64} | options))


def test_a_scorer_that_needs_equal_heads_refuses_a_shared_pool():
    """TOVA keeps one set per layer: under a global budget it would not be TOVA."""
    m = methods.build("tova", budget=16, allocator="global")
    layout = m.layout(_Sizes(), tail=4)
    with pytest.raises(ValueError, match="needs the allocator per_head"):
        m.scorer.check(16, layout)


class _Sizes:
    num_layers, num_heads, num_kv_heads, head_dim, activations = 2, 4, 2, 8, "float32"


def test_the_layout_is_the_budget():
    """The table is budget x layers x heads rows, whichever way they are divided."""
    for allocator in ("per_head", "per_layer", "global"):
        layout = methods.build("knorm", budget=16, allocator=allocator).layout(_Sizes(), tail=4)
        assert (layout.rows, layout.num_groups, layout.tail) == (64, 2, 4)
