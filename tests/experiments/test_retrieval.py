"""What the calibration measures, against the padded oracle of a whole run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from experiments import retrieval
from tests import oracle, tiny

PROMPT, ANSWER, NEEDLE = 90, 4, (30, 41)


def read(tokens: list[int], rows: int = 6) -> retrieval.Read:
    padded = np.zeros(128, np.int32)
    padded[: len(tokens)] = tokens
    at = np.where(np.arange(rows) < ANSWER, PROMPT - 1 + np.arange(rows), -1)
    return retrieval.Read(jnp.asarray(padded), jnp.asarray(at), jnp.int32(PROMPT), jnp.asarray(NEEDLE))


def whole() -> tuple[list[int], oracle.Stream]:
    tokens = tiny.prompt(PROMPT + ANSWER, 4)
    stream = tiny.stream(tiny.build("full"))
    stream.step(tokens)
    return tokens, stream


def attention(s: oracle.Stream, layer: int, n: int, rows: np.ndarray, only: np.ndarray | None = None) -> np.ndarray:
    """[R,S] of one query head."""
    G, at = tiny.CFG.num_groups, np.arange(s.seen)
    k_pos = at if only is None else np.where(only, at, -1)
    return oracle.probabilities(s.queries[layer][n // G, n % G][rows], rows, s.keys(layer, n // G, at), k_pos)


def test_mass_on_the_needle():
    """The row before a token is the one that predicts it; heads are numbered as (K, G)."""
    tokens, s = whole()
    got = np.asarray(retrieval.mass(tiny.CFG, tiny.model().params, read(tokens)))
    assert got.shape == (tiny.CFG.num_layers, tiny.CFG.num_heads, 6)
    rows = PROMPT - 1 + np.arange(ANSWER)
    for layer, n in np.ndindex(got.shape[:2]):
        expected = attention(s, layer, n, rows)[:, NEEDLE[0] : NEEDLE[1]].sum(axis=1)
        np.testing.assert_allclose(got[layer, n, :ANSWER], expected, atol=1e-5)
    np.testing.assert_array_equal(got[..., ANSWER:], 0)


def test_a_token_that_stands_twice_in_the_needle_adds_twice():
    """The authors' loop adds the mass for each place of the needle that holds the generated token."""
    prompt = np.array([9, 5, 7, 5, 3, 9])
    masses = np.array([[[0.5, 0.25, 0.125]]])
    got = retrieval.head_scores(prompt, (1, 5), [5, 9, 3], masses)
    np.testing.assert_allclose(got, [[2 * 0.5 + 0 * 0.25 + 1 * 0.125]])


def test_layer_error_by_hand():
    """Selection by the listed heads, window and generated tokens kept, error after the output projection."""
    tokens, s = whole()
    heads, kept, W = np.array([[0, 4], [5, 2]]), 20, 8
    params = tiny.model().params
    got = np.asarray(retrieval.layer_error(tiny.CFG, params, read(tokens), jnp.asarray(heads), kept))
    window, rows = np.arange(PROMPT - W, PROMPT), PROMPT - 1 + np.arange(ANSWER)
    G, at = tiny.CFG.num_groups, np.arange(s.seen)
    for layer in range(tiny.CFG.num_layers):
        A = [attention(s, layer, n, window).sum(axis=0)[: PROMPT - W] for n in heads[layer]]
        score = oracle.pooled(np.array(A), 5, "avg").mean(axis=0)
        keep = at >= PROMPT - W
        keep[np.argsort(-score)[: kept - W]] = True
        outs = []
        for only in (None, keep):
            heads_out = [
                attention(s, layer, n, rows, only) @ s.v[layer, n // G] for n in range(tiny.CFG.num_heads)
            ]  # N of [R,H]
            outs.append(np.concatenate(heads_out, axis=1) @ np.asarray(params["blocks"]["wo"][layer], float))
        error = np.linalg.norm(outs[1] - outs[0], axis=1) / (np.linalg.norm(outs[0], axis=1) + 1e-5)
        np.testing.assert_allclose(got[layer], error.sum(), rtol=1e-3)
