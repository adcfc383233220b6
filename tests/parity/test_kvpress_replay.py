"""Kept entries against KVzipPress of kvpress, which replays the context.

python -m pytest -o norecursedirs=.git tests/parity/test_kvpress_replay.py

Protocol `oneshot`, one global budget, four sinks on both sides, requests as the same token ids. Named differences:

    prefix     kvpress leaves the chat template's prefix out of the replay; here there is none
    sinks      kvpress gives the first four the highest score plus one; ours are protected
    storage    kvpress keeps all entries and masks those it would evict; ours are gone
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import transformers

from nexus import methods
from nexus.generate import Session, Settings
from tests.parity.test_kvpress import distinct, pairs  # noqa: F401

with warnings.catch_warnings():  # one of its packages imports a deprecated module, and warnings are errors here
    warnings.simplefilter("ignore", DeprecationWarning)
    import kvpress
    from kvpress.presses import kvzip_press

ASK, ASK_LATER, REPLY = (601, 7, 44, 320), (17, 503, 88), (9,)


class Requests:
    """A tokenizer that knows the press's requests alone."""

    chat_template = None

    @staticmethod
    def encode(text: str, return_tensors: str, add_special_tokens: bool) -> torch.Tensor:
        known = {"": (), "\n": REPLY, "\n\nRepeat the previous context exactly.": ASK}
        return torch.tensor([known.get(text, ASK_LATER)], dtype=torch.int64)


def kept_by_kvpress(model: transformers.PreTrainedModel, ids: list[int], budget: int, chunk: int) -> list[np.ndarray]:
    """Positions that are not masked, by (layer, head)."""
    L, K, P = model.config.num_hidden_layers, model.config.num_key_value_heads, len(ids)
    press = kvpress.KVzipPress(compression_ratio=(L * K * (P - budget) + 0.5) / (L * K * P), chunk_size=chunk)
    with torch.no_grad(), press(model):
        model.model(input_ids=torch.tensor([ids]), past_key_values=transformers.DynamicCache())
    kept = []
    for layer in model.model.layers:
        _, heads, positions = layer.self_attn.masked_key_indices
        layer.self_attn.masked_key_indices = None
        kept += [np.setdiff1d(np.arange(P), positions[heads == head]) for head in range(K)]
    return kept


def kept_by_us(model, ids: list[int], budget: int, chunk: int, **options) -> list[np.ndarray]:
    chosen = {"ask": ASK, "ask_later": ASK_LATER, "reply": REPLY} | options
    method = methods.build("kvzip", budget=budget, chunk=chunk, num_sinks=4, **chosen)
    session = Session(model, method, Settings(protocol="oneshot"), 1, capacity=len(ids))
    session.feed([ids])
    session.compress()
    return [head for layer in session.kept()[0] for head in layer]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("length", "chunk"), [(96, 2048), (96, 40), (300, 150)])
def test_same_entries(family, length, chunk, pairs, monkeypatch):  # noqa: F811
    """Another request, a lead of other tokens, sinks that are missing from the softmax of later chunks, a mean over
    the group: each changes the sets. Keys of one chunk's replay that stay for the next one do as well."""
    monkeypatch.setattr(
        kvzip_press, "AutoTokenizer", type("T", (), {"from_pretrained": staticmethod(lambda _: Requests)})
    )
    reference, ours = pairs(family, "sdpa")
    ids = distinct(length)
    theirs = kept_by_kvpress(reference, ids, length // 3, chunk)
    for mine, other in zip(kept_by_us(ours, ids, length // 3, chunk), theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("changes", [{"ask": ASK[1:]}, {"softmax_sinks": 0}, {"ask_later": ASK}])
def test_the_comparison_can_fail(changes, pairs, monkeypatch):  # noqa: F811
    """Sets that agreed under other settings would say nothing about the rule."""
    monkeypatch.setattr(
        kvzip_press, "AutoTokenizer", type("T", (), {"from_pretrained": staticmethod(lambda _: Requests)})
    )
    reference, ours = pairs("llama", "sdpa")
    ids = distinct(96)
    theirs = kept_by_kvpress(reference, ids, 32, 40)
    mine = kept_by_us(ours, ids, 32, 40, **changes)
    assert any(a.tolist() != b.tolist() for a, b in zip(mine, theirs, strict=True))
