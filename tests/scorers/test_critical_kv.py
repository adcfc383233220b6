"""The two stages of criticalkv. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from nexus import methods
from nexus.scorers import CriticalKV, Entries, WindowAttention, critical_kv
from nexus.selection import keep_best
from tests import tiny
from tests.scorers.views import G, H, K, L, M, by_head, filled

W = 3


def judged(scorer: CriticalKV, protect: bool = False, column: float | None = None):
    """Entries of equal pools, base scores of snapkv, and what the scorer says."""
    entries, _ = filled(L * K, aux=("projected",))
    buf = entries.buffer
    if column is not None:
        buf = dataclasses.replace(
            buf, aux={"projected": jnp.full_like(buf.aux["projected"], column)},
            tail_aux={"projected": jnp.full_like(buf.tail_aux["projected"], column)},
        )  # fmt: skip
    mask = (entries.pos >= 0) & (entries.pos < 6) if protect else jnp.zeros(entries.pos.shape, bool)
    entries = Entries(buffer=buf, cand=entries.cand, protect=mask)
    q = np.random.default_rng(8).normal(size=(L, 2, K, G, W, H))
    pos = np.stack([np.arange(n - W, n) for n in np.asarray(buf.seen)])
    state = {"q": jnp.asarray(q, jnp.float32), "pos": jnp.asarray(np.tile(pos, (L, 1, 1)), jnp.int32)}
    base = WindowAttention(window=W, kernel=3).score(entries, state, buf.rng)
    return entries, base, scorer.judge(entries, state, buf.rng)


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize(("share", "chosen"), [(0.5, 3), (0.34, 2), (0.01, 1), (1.0, 6)])
def test_the_first_stage_is_the_top_of_the_base(share, chosen, protect):
    """Conformance 7: the first half are the base's best, protected ones before all; at least one."""
    entries, base, (_, mask) = judged(CriticalKV(window=W, kernel=3, first_stage=share), protect)
    base, pos, must = (by_head(entries, x) for x in (base, entries.pos, entries.protect))
    for at, got in by_head(entries, mask).items():
        order = sorted(range(len(got)), key=lambda i, at=at: (not must[at][i], -base[at][i], -pos[at][i]))
        count = max(min(chosen, len(got)), int(must[at].sum()))
        np.testing.assert_array_equal(np.flatnonzero(got), sorted(order[:count]))
    assert not np.asarray(mask)[~np.asarray(entries.valid)].any()


def test_the_second_stage_weighs_attention_by_the_value():
    """(s + epsilon) times the projected norm: without epsilon an entry that nobody looked at has no second chance."""
    for epsilon in (1e-4, 0.0):
        entries, base, (score, _) = judged(CriticalKV(window=W, kernel=3, epsilon=epsilon))
        base, column = by_head(entries, base), by_head(entries, entries.aux("projected"))
        for at, got in by_head(entries, score).items():
            np.testing.assert_allclose(got, (base[at] + epsilon) * column[at], rtol=1e-6, atol=1e-9)


def test_equal_values_leave_the_base():
    """Conformance 7: with a constant value norm both stages together keep what the base keeps."""
    entries, base, (score, chosen) = judged(CriticalKV(window=W, kernel=3), column=2.0)
    nobody = jnp.zeros(entries.pos.shape, bool)
    expected = keep_best(base + 1e-4, entries.pos, nobody, M)
    np.testing.assert_array_equal(keep_best(score, entries.pos, chosen, M), expected)


@pytest.mark.parametrize("block", [4, 5, 128])
def test_the_projected_value_is_the_mean_of_1_norms(block, monkeypatch):
    """Written once, when the entry is; blocks that do not divide D are filled with zeros, which add nothing."""
    monkeypatch.setattr(critical_kv, "BLOCK", block)
    D, T = 12, 5
    rng = np.random.default_rng(9)
    wo, v = rng.normal(size=(L, K, G, H, D)), rng.normal(size=(2, K, T, H))
    cfg = SimpleNamespace(num_layers=L, num_kv_heads=K, num_groups=G, head_dim=H, dim=D)
    weights = CriticalKV().weights(cfg, {"blocks": {"wo": jnp.asarray(wo.reshape(L, -1, D), jnp.float32)}})
    for layer in range(L):
        call = SimpleNamespace(v=jnp.asarray(v, jnp.float32), groups=G, weights={"blocks": weights["blocks"][layer]})
        (column,) = CriticalKV().write(call).values()  # type: ignore[arg-type]
        expected = np.abs(np.einsum("bkth,kghd->bktgd", v, wo[layer])).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(column, expected, rtol=1e-5)
        assert column.dtype == jnp.float32


@pytest.mark.parametrize(("share", "same"), [(1.0, True), (0.0, False)])
def test_all_of_the_budget_in_the_first_stage_is_snapkv(share, same):
    """And none of it is not."""
    kept = []
    for method in (tiny.build("criticalkv", first_stage=share), tiny.build("snapkv")):
        s = tiny.session(method, batch=1)
        s.feed([tiny.prompt(37)])
        kept.append(np.asarray(s.kept()[0]))
    assert np.array_equal(*kept) == same


def test_what_it_cannot_be_is_refused():
    """A share of what, under one budget for several heads?"""
    with pytest.raises(ValueError, match="first_stage must lie between 0 and 1, got 1.5"):
        CriticalKV(first_stage=1.5)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        CriticalKV(epsilon=-1.0)
    method = methods.build("criticalkv", budget=64, allocator="per_layer")
    with pytest.raises(ValueError, match="needs the allocator per_head"):
        method.scorer.check(64, method.layout(tiny.CFG, tail=4))
