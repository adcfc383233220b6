"""Kept entries of trained retention against the published package, on the same log_beta.

python -m pytest tests/parity/test_trimkv.py

trimkv 0.1.5 (ngocbh/trimkv), an oracle only: nothing of it is installed. Its `cache_utils` is read from the checked
wheel and run with the package and its GPU kernels stubbed; `TrimKVCache.compress` (one budget per head),
`DynamicBudgetTrimKVCache.compress` (one budget for the model) and `compute_log_G` are its own code. Differences:

    minimum    with min_tokens_per_head the package draws the total less the minima and adds the minimum to every head's
               count, and counts the first entry of a head for the head before it (torch.bucketize with right=False).
               Here every head's best entries up to the minimum come first, then the rest by score: not compared
    threshold  keeps whatever lies above a score, so the budget is not fixed: not part of this project
    ties       torch.topk leaves them open; drawn rates have none
"""

from __future__ import annotations

import dataclasses
import sys
import types
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from nexus import fetch
from nexus.scorers.retention import log_utility
from tests import tiny

WHEEL = ("trimkv", "0.1.5", "8a3f8ea3e495292056d617b4f95c94fe3cb8f94c46a45ebcde19943423cea453")
LENGTH = 37


@pytest.fixture(scope="module")
def published():
    """The module `trimkv.cache_utils`; `trimkv` and `trimkv.triton` are empty stand-ins while it is read."""
    with zipfile.ZipFile(fetch.wheel(*WHEEL)) as archive:
        source = archive.read("trimkv/cache_utils.py").decode()
    package, kernels = types.ModuleType("trimkv"), types.ModuleType("trimkv.triton")
    kernels.update_flatten_view_triton = None  # needed where a second feed is appended, on a GPU
    module = types.ModuleType("trimkv.cache_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "trimkv", package)
        patch.setitem(sys.modules, "trimkv.triton", kernels)
        exec(compile(source, "trimkv/cache_utils.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("lookahead", [2, 16, 512])
def test_the_score_of_a_longer_look_ahead(published, lookahead):
    """log G of the package, in float64, is our log utility with the age t + 1 - i."""
    rng = np.random.default_rng(0)
    rate = -np.exp(rng.uniform(-9, 1, 400))
    pos = rng.integers(0, 3000, 400)
    want = published.compute_log_G(torch.tensor(rate), 3001, torch.tensor(pos), n=lookahead).numpy()
    got = log_utility(jnp.asarray(rate, jnp.float32), jnp.asarray(3001 + 1 - pos, jnp.float32), lookahead)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def whole(method) -> tuple[tiny.Session, np.ndarray]:
    """A session before its only cut, and log_beta [L,K,T] of everything it holds."""
    s = tiny.session(method, batch=1, settings=dataclasses.replace(tiny.SETTINGS, protocol="oneshot"))
    s.feed(tiny.prompts(LENGTH))
    L, K = tiny.CFG.num_layers, tiny.CFG.num_kv_heads
    found = np.full((L, K, LENGTH), np.nan, np.float32)
    tail = np.asarray(s.buffer.tail_pos)[0]
    for layer, head in np.ndindex(L, K):
        for entry in tiny.held(s.buffer, 0, layer, head, "log_beta"):
            found[layer, head, entry.pos] = entry.aux
        live = tail >= 0
        found[layer, head, tail[live]] = np.asarray(s.buffer.tail_aux["log_beta"])[layer, 0, head, live]
    assert np.isfinite(found).all()
    return s, found


def theirs(cache, rates: np.ndarray) -> None:
    """Fills a cache of the package with entries that carry these rates, and lets it compress."""
    L, K, T = rates.shape
    for layer in range(L):
        states = torch.zeros(1, K, T, tiny.CFG.head_dim)
        about = {"cache_position": torch.arange(T), "retention_weights": torch.tensor(rates[layer])[None]}
        cache.update(states, states, layer, about)
    cache.compress()


@pytest.mark.parametrize("recent", [0, 3])
@pytest.mark.parametrize("lookahead", [1, 2, 16])
def test_one_budget_per_head(published, lookahead, recent):
    s, rates = whole(tiny.build("trimkv", num_sinks=0, recent=recent, lookahead=lookahead))
    cache = published.TrimKVCache(
        memory_size=tiny.BUDGET, sliding_window_size=recent, lookahead_steps=lookahead, device="cpu"
    )
    theirs(cache, rates)
    s.compress()
    for layer, heads in enumerate(s.kept()[0]):
        np.testing.assert_array_equal(np.stack(heads), cache.kv_positions[layer][0].numpy(), err_msg=f"{layer=}")


@pytest.mark.parametrize("lookahead", [1, 2, 16])
def test_one_budget_for_the_model(published, lookahead):
    s, rates = whole(tiny.build("global_retention", num_sinks=0, recent=0, min_per_head=0, lookahead=lookahead))
    cache = published.DynamicBudgetTrimKVCache(memory_size=tiny.BUDGET, lookahead_steps=lookahead, device="cpu")
    theirs(cache, rates)
    s.compress()
    sizes = set()
    for layer, heads in enumerate(s.kept()[0]):
        ends = cache.cu_seqlens_k[layer].tolist()
        for head, pos in enumerate(heads):
            want = cache.kv_positions[layer][ends[head] : ends[head + 1], 0].numpy()
            np.testing.assert_array_equal(pos, want, err_msg=f"{layer=} {head=}")
            sizes.add(len(pos))
    assert len(sizes) > 1  # heads of unequal length, or the case shows nothing
