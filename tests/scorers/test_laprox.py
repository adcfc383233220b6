"""The score of laprox, against terms of the output that are formed and taken out. Whole runs, with the global choice
against brute force and exact totals: tests/test_decode.py and tests/test_contracts.py."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import buffer as kv
from nexus.scorers import Entries, LaProx
from nexus.shapes import Layout
from tests import oracle, oracle_output, tiny
from tests.scorers.views import COUNTS, TAIL, C, H, K, L, M, by_head

W, D = 3, 7
GQA = ("mean", "sum", "exact")


@dataclasses.dataclass
class Scene:
    """Entries, their lists, a window of queries, and what the oracle needs of them."""

    entries: Entries
    lists: list
    q: np.ndarray  # [L,B,K,G,W,H], not scaled
    q_pos: np.ndarray  # [B,W]
    wo: np.ndarray  # [L,K,G,H,D]
    cfg: SimpleNamespace

    def score(self, scorer: LaProx, protect: jax.Array | None = None, weights: dict | None = None) -> jax.Array:
        buf = self.entries.buffer
        pos = jnp.asarray(np.tile(self.q_pos, (L, 1, 1)), jnp.int32)
        state = {"q": jnp.asarray(self.q / np.sqrt(H), jnp.float32), "pos": pos}
        protect = jnp.zeros(self.entries.pos.shape, bool) if protect is None else protect
        return scored(scorer, buf, state, protect, weights or self.weights(scorer))

    def weights(self, scorer: LaProx):
        wo = self.wo.reshape(L, -1, D)
        return scorer.weights(self.cfg, {"blocks": {"wo": jnp.asarray(wo, jnp.float32)}})

    def head(self, b: int, o: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Attention [G,W,S], values [S,H] and positions of one head."""
        had = self.lists[b][o // K][o % K]
        k, v = (np.array([getattr(e, name) for e in had], float).reshape(-1, H) for name in "kv")
        pos = np.array([e.pos for e in had], int)
        return oracle.window_attention(self.q[o // K, b, o % K], self.q_pos[b], k, pos), v, pos


@functools.partial(jax.jit, static_argnums=0)  # compiled once for every scorer and layout
def scored(scorer: LaProx, buf, state, protect: jax.Array, weights) -> jax.Array:
    entries = Entries(buffer=buf, cand=kv.candidates(buf), protect=protect, weights=weights)
    return scorer.score(entries, state, buf.rng)


def scene(groups: int = 3, pools: int = 1, dtype: str = "float32") -> Scene:
    layout = Layout(
        num_layers=L, num_kv_heads=K, num_groups=groups, head_dim=H, budget=M, tail=C, pools=pools, dtype=dtype
    )
    buf, lists = tiny.filled(layout, COUNTS, TAIL, dead=float("nan"))
    rng = np.random.default_rng(6)
    seen = np.asarray(buf.seen)
    return Scene(
        Entries(buffer=buf, cand=kv.candidates(buf)), lists, rng.normal(size=(L, 2, K, groups, W, H)),
        np.stack([np.arange(n - W, n) for n in seen]), rng.normal(size=(L, K, groups, H, D)),
        SimpleNamespace(num_layers=L, num_kv_heads=K, num_groups=groups, head_dim=H, dim=D),
    )  # fmt: skip


def plain(gqa: str, **more) -> LaProx:
    """Without pooling and layer scale: p itself."""
    return LaProx(**({"window": W, "kernel": 1, "gqa": gqa, "layer_scale": False} | more))


@pytest.mark.parametrize(("groups", "gqa"), [(1, "mean"), (1, "sum"), (1, "exact"), (3, "exact")])
def test_p_is_what_the_output_loses(groups, gqa):
    """Conformance 1 and 3: the Frobenius norm of the change of O when an entry is taken out and the softmax is not
    renormalised; for one query head per key every form says it, for more the exact one."""
    s = scene(groups)
    for (b, o), rows in by_head(s.entries, s.score(plain(gqa))).items():
        A, v, pos = s.head(b, o)
        output = lambda A, v=v, o=o: np.einsum("gws,sh,ghd->wd", A, v, s.wo[o // K, o % K])  # noqa: E731
        whole = output(A)
        for i, got in enumerate(rows):
            without = A.copy()
            without[:, :, i] = 0.0
            np.testing.assert_allclose(got, np.linalg.norm(whole - output(without)), rtol=1e-4, atol=1e-6)
            assert pos[i] < s.q_pos[b][0] or got == 0


@pytest.mark.parametrize("pools", [1, L, L * K])
@pytest.mark.parametrize("gqa", GQA)
def test_groups_are_joined_as_said(gqa, pools):
    """A mean of norms, a norm of sums and the joint term differ, and so do the sets; each against its definition."""
    s = scene(3, pools)
    for (b, o), rows in by_head(s.entries, s.score(plain(gqa))).items():
        A, v, _ = s.head(b, o)
        np.testing.assert_allclose(
            rows, oracle_output.output_change(A, v, s.wo[o // K, o % K], gqa), rtol=1e-4, atol=1e-6
        )


def test_the_forms_measure_the_projected_value():
    """Conformance 2: sqrt(v^T M v) is norm2(v Wo)."""
    s = scene()
    forms = np.asarray(s.weights(plain("mean"))["forms"])
    v = np.random.default_rng(7).normal(size=H)
    got = np.sqrt(np.einsum("x,lkgxy,y->lkg", v, forms, v))
    np.testing.assert_allclose(got, np.linalg.norm(np.einsum("x,lkgxd->lkgd", v, s.wo), axis=-1), rtol=1e-5)


@pytest.mark.parametrize("pool_on", ["score", "attention"])
@pytest.mark.parametrize("gqa", ["mean", "sum"])
def test_where_the_pool_stands(gqa, pool_on):
    """Before the value norm it smears attention alone, after it the finished score; the window pads both."""
    s, kernel = scene(3), 5
    for (b, o), rows in by_head(s.entries, s.score(plain(gqa, kernel=kernel, pool_on=pool_on))).items():
        A, v, pos = s.head(b, o)
        wo, context = s.wo[o // K, o % K], pos < s.q_pos[b][0]
        if pool_on == "score":
            p = oracle_output.output_change(A, v, wo, gqa)
            expected = oracle_output.pooled_before(p, context, kernel, "avg")
        else:
            norms = np.linalg.norm(np.einsum("sh,ghd->gsd", v, wo), axis=-1)
            A = A.sum(axis=0, keepdims=True) if gqa == "sum" else A
            columns = oracle_output.pooled_before(np.linalg.norm(A, axis=1), context, kernel, "avg")
            expected = (columns * norms).mean(axis=0)
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pools", [1, L, L * K])
def test_protected_entries_are_outside_the_total(pools):
    """Conformance 6: with sinks in it a layer whose sinks draw attention would leave its budget to others. What may be
    chosen sums to 1 in every layer; a layer without a choice stays 0."""
    s, scorer = scene(3, pools), LaProx(window=W, kernel=3)
    for most in (0, 5, 1 << 20):
        entries = dataclasses.replace(s.entries, protect=s.entries.pos < most)
        score, free = np.asarray(s.score(scorer, entries.protect)), np.asarray(entries.free)
        assert np.isfinite(score).all()
        layer = np.asarray(entries.cand.owner) // K
        raw = np.asarray(s.score(dataclasses.replace(scorer, layer_scale=False)))
        for b, j in np.ndindex(2, L):
            mine = free[b] & (layer[b] == j)
            total = raw[b][mine].astype(float).sum()
            np.testing.assert_allclose(score[b][mine].astype(float).sum(), float(total > 0), atol=1e-5)
            here = layer[b] == j
            np.testing.assert_allclose(score[b][here], raw[b][here] / (total or 1.0), rtol=1e-5)
            assert total > 0 or most > 10


def test_the_scale_of_one_layer_does_not_matter():
    """Conformance 5: Wo of one layer times 8 (a power of two: not a bit changes). Without the layer scale it does."""
    s = scene()
    louder = dataclasses.replace(s, wo=s.wo * np.array([8.0, 1.0])[:, None, None, None, None])
    for gqa in GQA:
        scorer = LaProx(window=W, kernel=3, gqa=gqa)
        np.testing.assert_array_equal(s.score(scorer), louder.score(scorer))
        loud, quiet = louder.score(plain(gqa)), s.score(plain(gqa))
        first = np.asarray(s.entries.cand.owner) // K == 0
        np.testing.assert_array_equal(np.asarray(loud)[first], 8 * np.asarray(quiet)[first])


@pytest.mark.parametrize("gqa", GQA)
def test_a_form_that_is_negative_by_rounding_gives_zero(gqa):
    """Conformance 7: the root of -1e-12 is NaN, and NaN is no order."""
    s = scene()
    forms = s.weights(plain(gqa))["forms"]
    weights = {"forms": jnp.broadcast_to(-1e-12 * jnp.eye(H), forms.shape)}
    score = np.asarray(s.score(LaProx(window=W, gqa=gqa), weights=weights))
    assert (score == 0).all()


def test_scores_are_float32_under_a_bfloat16_cache():
    """Products of bfloat16 norms tie."""
    score = scene(dtype="bfloat16").score(LaProx(window=W))
    assert score.dtype == jnp.float32 and np.isfinite(np.asarray(score)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gqa": "max"}, "gqa 'max'; allowed: mean, sum, exact"),
        ({"pool_on": "values"}, "pool_on 'values'; allowed: score, attention"),
        ({"gqa": "exact", "pool_on": "attention"}, "pool_on must be 'score'"),
        ({"kernel": 2}, "kernel must be odd"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_what_it_cannot_be_is_refused(options, message):
    """One line with name, value and what is allowed, before any model is loaded."""
    with pytest.raises(ValueError, match=message):
        LaProx(**options)


@pytest.mark.parametrize(
    "changes", [{"layer_scale": False}, {"allocator": "per_layer"}, {"allocator": "per_head"}, {"gqa": "exact"}]
)
def test_its_ablations_follow_the_oracle(changes):
    """No layer normalisation, heads flattened within a layer, uniform heads, and the exact form: whole kept sets."""
    method = tiny.build("laprox", **changes)
    s, row, text = tiny.session(method, batch=1), tiny.stream(method), tiny.prompt(37)
    s.feed([text])
    row.prefill(text, tiny.CHUNK)
    tiny.assert_same(s, 0, row)
