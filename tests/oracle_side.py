"""Oracles of the scores that run the model once more: judgeq, counter_causal (and unigram), kvzip. NumPy, slow.

A side pass is a copy of the stream that runs on and is thrown away. A factory takes a scorer (its options alone are
read) and returns a score of `tests/oracle.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from nexus import probes
from tests.oracle import Stream, pooled, probabilities, rms_norm, rotate, softmax

Score = Callable[..., np.ndarray]


def aside(s: Stream, tokens: list[int] | np.ndarray, begin: int | None = None) -> Stream:
    """A copy that still holds what was there before this eviction and has gone on with some tokens, from `begin` on."""
    twin = copy.copy(s)
    twin.keep, twin.queries = s.before.copy(), list(s.queries)
    if begin is not None:  # nothing is held in between
        gap = begin - s.seen
        skip = lambda x: np.concatenate([x, np.zeros((*x.shape[:2], gap, *x.shape[3:]), x.dtype)], axis=2)  # noqa: E731
        twin.k, twin.v, twin.keep, twin.received = map(skip, (twin.k, twin.v, twin.keep, twin.received))
        twin.seen = begin
    twin.step(tokens)
    return twin


# --- judgeq ------------------------------------------------------------------------------------------------------


def judgeq(scorer: Any, rows: np.ndarray | None = None) -> Score:
    """rows [Ns,D]: the soft tokens; by default the untrained ones."""

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        soft = rows
        if soft is None:
            soft = np.asarray(probes.init(jnp.asarray(s.params["embed"], jnp.float32)), np.float64)
        twin = aside(s, soft)
        after = np.arange(s.seen, twin.seen)
        visible = np.concatenate([at, after])
        A = probabilities(twin.queries[layer][head][:, -len(soft) :], after, twin.keys(layer, head, visible), visible)
        return pooled(A[..., : len(at)].mean(axis=1), scorer.kernel, scorer.pool).mean(axis=0)

    return score


# --- oracle ------------------------------------------------------------------------------------------------------


def foresight(first: int, question: list[int], answer: list[int]) -> Score:
    """Question and answer begin at position `first`; what has come of them asks no more, all of it when all has."""

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        tokens, begin = [*question, *answer], max(s.seen, first)
        come = begin - first if begin < first + len(tokens) else 0
        rest, asking = tokens[come:], max(len(question) - 1 - come, 0)
        twin = aside(s, rest, begin)
        pos = np.arange(begin, twin.seen)
        visible = np.concatenate([at, pos])
        A = probabilities(twin.queries[layer][head][:, -len(rest) :], pos, twin.keys(layer, head, visible), visible)
        return A[:, asking:, : len(at)].mean(axis=(0, 1))

    return score


# --- counter_causal ----------------------------------------------------------------------------------------------


def looking_ahead(s: Stream, layer: int, x: np.ndarray, at: np.ndarray, gap: int) -> np.ndarray:
    """What attention adds to x [n,D] at positions `at` when each sees only entries more than `gap` ahead; [n,D]."""
    cfg = s.cfg
    N, K, H = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
    w = {name: value[layer] for name, value in s.params["blocks"].items()}
    qkv = rms_norm(x, w["attn_norm"], cfg.rms_eps) @ w["wqkv"] + (w["bqkv"] if cfg.qkv_bias else 0.0)
    q = qkv[:, : N * H].reshape(-1, N, H)
    if cfg.qk_norm:
        q = rms_norm(q, w["q_norm"], cfg.rms_eps)
    out = np.zeros((len(at), N, H))
    for n in range(N):
        z = rotate(q[:, n], at, s.inv_freq) @ s.keys(layer, n // (N // K), at).T / np.sqrt(H)
        ahead = at[None, :] > at[:, None] + gap
        out[:, n] = softmax(np.where(ahead, z, -np.inf)) @ s.v[layer, n // (N // K), at]
    return out.reshape(len(at), -1) @ w["wo"]


def predicted(s: Stream, at: np.ndarray, variant: str, measure: str, gap: int) -> np.ndarray:
    """How well each entry's token is predicted by what lies ahead of it."""
    cfg, ids = s.cfg, np.asarray(s.tokens)[at]
    if variant == "full":
        x = s.params["embed"][ids]
        for layer in range(cfg.num_layers):
            w = {name: value[layer] for name, value in s.params["blocks"].items()}
            x = x + looking_ahead(s, layer, x, at, gap)
            gate, up = np.split(rms_norm(x, w["ffn_norm"], cfg.rms_eps) @ w["w_gate_up"], 2, axis=-1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w["w_down"]
    else:
        x = s.last_input[at]
        x = x + looking_ahead(s, cfg.num_layers - 1, x, at, gap)
    head = s.params["embed"].T if cfg.tied_embeddings else s.params["head"]
    logits = rms_norm(x, s.params["final_norm"], cfg.rms_eps) @ head
    if measure == "log_prob":
        logits = np.log(softmax(logits))
    return logits[np.arange(len(at)), ids]


def counter_causal(scorer: Any) -> Score:
    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        return -predicted(s, at, scorer.variant, scorer.measure, scorer.gap)

    return score


def unigram(scorer: Any) -> Score:
    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        return np.array([-np.log(s.tokens.count(s.tokens[p]) / s.seen) for p in at])

    return score


# --- kvzip -------------------------------------------------------------------------------------------------------


def replayed(s: Stream, scorer: Any, first: int, end: int, sinks: list[int], later: bool) -> dict[Any, float]:
    """Scores by (layer, head, position) of the entries first..end-1 from one replay."""
    chunk = s.tokens[first:end]
    if later:
        lead = s.tokens[first - min(8, scorer.chunk) : first]
        said = [*scorer.ask_later, *lead, *scorer.reply, *chunk]
    else:
        said = [*scorer.ask, *scorer.reply, *chunk]
    twin = aside(s, said)
    new, at = np.arange(s.seen, twin.seen), np.arange(first, end)
    found = {}
    for layer in range(s.cfg.num_layers):
        for head in range(s.cfg.num_kv_heads):
            visible = np.concatenate([[p for p in sinks if s.before[layer, head, p]], at, new]).astype(int)
            q = twin.queries[layer][head][:, -len(said) :]
            A = probabilities(q, new, twin.keys(layer, head, visible), visible)
            best = A[..., len(visible) - len(new) - len(at) : len(visible) - len(new)].max(axis=(0, 1))
            found |= {(layer, head, int(p)): x for p, x in zip(at, best, strict=True)}
    return found


def kvzip(scorer: Any, oneshot: bool = False) -> Score:
    """Every entry is scored once; streaming: entries that came since the last cut, beside sinks that were kept."""

    def score(s: Stream, layer: int, head: int, at: np.ndarray) -> np.ndarray:
        known = s.__dict__.setdefault("replayed", {})
        start = 1 + max((p for _, _, p in known), default=-1)
        for first in range(start, s.seen, scorer.chunk):
            sinks = [p for p in range(min(scorer.softmax_sinks, s.seen)) if p < (first if oneshot else start)]
            end = min(first + scorer.chunk, s.seen)
            known |= replayed(s, scorer, first, end, sinks, later=first > start)
        return np.array([known[layer, head, int(p)] for p in at])

    return score
