"""Attention by age against a dense softmax in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from experiments.dilute import decay
from nexus import gates
from nexus.scorers import Retention
from tests import oracle, tiny

S = 256


def attention() -> np.ndarray:
    """[L,N,S,S] of one text, by the oracle."""
    stream, at = tiny.stream(tiny.build("full")), np.arange(S)
    stream.step(tiny.prompt(S, 5))
    G = tiny.CFG.num_groups
    return np.array([
        [oracle.probabilities(stream.queries[layer][n // G, n % G], at, stream.keys(layer, n // G, at), at)
         for n in range(tiny.CFG.num_heads)]
        for layer in range(tiny.CFG.num_layers)
    ])  # fmt: skip


def by_age(p: np.ndarray) -> np.ndarray:
    """[S/2,A] of one head: row t - S/2, column age."""
    return np.array([[p[t, t - age] for age in range(decay.ages(S))] for t in range(S // 2, S)])


def test_attention_by_age_is_that_of_a_dense_softmax():
    """A key that is one place off, a head in the wrong order, or a normaliser of another row shows here."""
    dense = attention()
    found = decay.profile(tiny.CFG, tiny.model().params, jnp.asarray(tiny.prompt(S, 5)), None)
    assert list(found) == ["received"]
    got = np.asarray(found["received"]).reshape(*dense.shape[:2], -1)
    for layer, n in np.ndindex(dense.shape[:2]):
        np.testing.assert_allclose(got[layer, n], by_age(dense[layer, n]).mean(axis=0), atol=1e-6)
    assert (got.sum(axis=-1) <= 1 + 1e-5).all()  # sinks and the oldest keys are not counted


def test_quarters_of_the_gates_are_of_the_same_tokens():
    """Measured and foretold stand side by side: tokens sorted by log_beta, head by head, and beta^age of the same."""
    params, tokens = tiny.model().params, jnp.asarray(tiny.prompt(S, 5))
    weights = Retention(gates=tiny.GATES.format("two_layer")).weights(tiny.CFG, params)
    found = {k: np.asarray(v) for k, v in decay.profile(tiny.CFG, params, tokens, weights).items()}
    K, G, A = tiny.CFG.num_kv_heads, tiny.CFG.num_groups, decay.ages(S)
    stream = tiny.stream(tiny.build("full"))
    stream.step(tiny.prompt(S, 5))
    x = params["embed"][tokens][None]  # what the first layer's norm sees
    norm = oracle.rms_norm(np.asarray(x), np.asarray(params["blocks"]["attn_norm"][0]), tiny.CFG.rms_eps)
    first = {name: value[0] for name, value in weights.items()}
    rates = np.asarray(gates.any_log_beta(first, jnp.asarray(norm, jnp.float32)))[0]  # [K,S]
    dense = attention()[0]
    for k in range(K):
        quarter = np.argsort(np.argsort(rates[k], kind="stable")) * 4 // S
        aged = np.mean([by_age(dense[k * G + g]) for g in range(G)], axis=0)
        keys = np.arange(S // 2, S)[:, None] - np.arange(A)
        said = np.exp(rates[k][keys] * np.arange(A))
        np.testing.assert_allclose(found["predicted"][0, k], said.mean(axis=0), rtol=1e-4)
        for q in range(4):
            mine = quarter[keys] == q
            count = np.maximum(mine.sum(axis=0), 1)
            for name, values in (("quarter_received", aged), ("quarter_predicted", said)):
                expected = np.where(mine, values, 0).sum(axis=0) / count
                np.testing.assert_allclose(found[name][0, k, q], expected, rtol=2e-3, atol=1e-6, err_msg=name)


def test_bins_cover_all_ages_but_the_token_itself():
    where = decay.bins(2048, 24)
    assert where[0][0] == 1 and where[-1][1] == decay.ages(2048) and len(where) <= 24
    assert all(a[1] == b[0] for a, b in zip(where, where[1:], strict=False))
    np.testing.assert_allclose(decay.binned(np.arange(1020.0), [(1, 2), (2, 4)]), [1, 2.5])


def test_what_is_written_has_its_shapes():
    L, K, G, Q, bins = 2, 3, 2, 4, 5
    x = np.random.default_rng(0).random
    found = {"received": x((L, K, G, bins)), "predicted": x((L, K, bins)), "quarter_received": x((L, K, Q, bins)),
             "quarter_predicted": x((L, K, Q, bins))}  # fmt: skip
    written = decay.curves(found)
    shapes = {name: np.shape(value) for name, value in written.items()}
    assert shapes == {"received": (L, K * G, bins), "predicted": (L, K, bins), "quarter_received": (Q, bins),
                      "quarter_predicted": (Q, bins)}  # fmt: skip
    np.testing.assert_allclose(written["received"][1][3], found["received"][1, 1, 1], rtol=1e-3)
