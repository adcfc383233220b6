"""The orders along which dbudgetkv cuts. Kept sets over whole runs: tests/test_allocators.py."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus.scorers import Entries, EvictionOrder
from tests import tiny
from tests.scorers.views import G, H, K, L
from tests.scorers.views import filled as unequal


def test_position_order_is_the_position():
    """Oldest first; the ring still remembers the last query, which the allocator judges by."""
    entries, _ = unequal(L * K)
    scorer = EvictionOrder()
    state = scorer.init_state(entries.buffer.layout, 2)
    assert state["q"].shape == (L, 2, K, G, 1, H)
    np.testing.assert_array_equal(scorer.score(entries, state, entries.buffer.rng), entries.pos)


def test_attention_order_is_one_for_a_layer():
    """Heads that disagree about the order would be cut at one count but to different sets."""
    method = tiny.build("dbudgetkv", order="attention", window=3)
    assert method.recent == 3
    s = tiny.session(method)
    s.feed(tiny.prompts(37, 5, 20))
    for row in s.kept():
        for layer in row:
            assert all(np.array_equal(layer[0], pos) for pos in layer)


def test_attention_order_equals_position_order_on_sorted_input():
    """Where attention rises with the position the two orders are one."""
    layout = tiny.build("dbudgetkv").layout(tiny.CFG, tail=8)
    L_, K_ = tiny.CFG.num_layers, tiny.CFG.num_kv_heads
    buf, _ = tiny.filled(layout, np.full((1, L_, K_), 6), [2])
    live = jnp.flatnonzero(buf.pos[0] >= 0)
    pos = buf.pos.at[0, live].set(jnp.tile(jnp.arange(6), L_ * K_))  # the same in every head
    ramp = jnp.zeros((*pos.shape, tiny.CFG.head_dim)).at[..., 0].set(jnp.maximum(pos, 0))
    buf = dataclasses.replace(buf, pos=pos, k=ramp)
    entries = Entries(buffer=buf, cand=kv.candidates(buf))
    q = jnp.zeros((L_, 1, K_, layout.num_groups, 1, tiny.CFG.head_dim)).at[..., 0].set(1.0)
    state = {"q": q, "pos": jnp.full((L_, 1, 1), int(buf.seen[0]) - 1)}
    by_attention = np.asarray(EvictionOrder(order="attention", window=1).score(entries, state, buf.rng))
    old = np.asarray(entries.valid & (entries.pos < 6))
    assert (np.diff(by_attention[old].reshape(-1, 6), axis=1) > 0).all()


@pytest.mark.parametrize(("options", "message"), [({"order": "x"}, "order 'x'; allowed: position, attention"),
                                                  ({"window": 0}, "window must be at least 1")])  # fmt: skip
def test_options_out_of_range_are_refused(options, message):
    """Name, value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        EvictionOrder(**options)


def test_it_refuses_pools_that_heads_share():
    """One count for all heads of a layer needs a ceiling per head."""
    with pytest.raises(ValueError, match="needs an allocator with a pool for every head"):
        tiny.session(tiny.build("dbudgetkv", allocator="per_layer", tau=0.01, full_layers=2))
