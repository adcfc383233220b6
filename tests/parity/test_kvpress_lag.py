"""LagKV's kept entries against LagKVPress of kvpress, run by kvpress itself on a transformers model with our weights.

/path/to/env/bin/python -m pytest tests/parity/test_kvpress_lag.py

As in test_kvpress.py: protocol `oneshot`, sets compared, ties apart. Places in partitions tie across partitions by
design, so the order of ties (ours: the newer entry; kvpress: the sort's choice) decides about whole ranks; the sets may
differ there and nowhere else. Named differences:

    lag        ours follows the budget unless given; compared at equal sizes
    max = min  kvpress divides by zero; does not occur with these weights
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
import transformers

from nexus import methods
from tests.parity.test_kvpress import assert_same_sets, distinct, kept_by_us, pairs  # noqa: F401  pairs: a fixture

with warnings.catch_warnings():  # one of its packages imports a deprecated module, and warnings are errors here
    warnings.simplefilter("ignore", DeprecationWarning)
    import kvpress


def kept_by_press(model: transformers.PreTrainedModel, press: kvpress.LagKVPress, ids: list[int]):
    """Positions kept [L,K,M], increasing, and scores [L,K,P] of one forward. What is kept is found by its values,
    which this press reads."""
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    class Recorded(type(press)):  # type: ignore[misc]
        def compress(self, module, hidden_states, keys, values, attentions, kwargs):
            scores = self.score(module, hidden_states, keys, values, attentions, kwargs)
            out = super().compress(module, hidden_states, keys, values, attentions, kwargs)
            same = (out[1][0, :, :, None] == values[0, :, None]).all(dim=-1)  # [K,M,P]
            assert (same.sum(dim=-1) == 1).all()
            kept = same.float().argmax(dim=-1).sort(dim=-1).values
            seen[module.layer_idx] = kept.numpy(), scores[0].float().numpy()
            return out

    with torch.no_grad(), Recorded(**dataclasses.asdict(press))(model):
        model.model(torch.tensor([ids]), past_key_values=transformers.DynamicCache())
    return tuple(np.stack([seen[layer][part] for layer in sorted(seen)]) for part in (0, 1))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("length", "lag", "budget"),
    [
        (96, 16, 52),  # 5 partitions: 4 scored ones keep half of theirs
        (540, 32, 180),  # 16 partitions and a remainder; several chunks
        (540, 128, 404),  # the public size
        (35, 16, 20),  # below 4 + 2 partitions: recency
        (36, 16, 30),  # the shortest that is scored
    ],
)
def test_same_entries(length, lag, budget, family, pairs):  # noqa: F811
    """A reference taken from the partition itself, places within the wrong axis, partitions that begin at 0: each
    changes the sets."""
    reference, model = pairs(family)
    ids = distinct(length, seed=3)
    press = kvpress.LagKVPress(compression_ratio=1 - (budget + 0.5) / length, n_sink=4, lag_size=lag)
    theirs, scores = kept_by_press(reference, press, ids)
    assert theirs.shape[-1] == budget
    method = methods.build("lagkv", budget=budget, num_sinks=4, skip=4, lag=lag)
    ours = kept_by_us(model, method, ids)
    assert_same_sets(ours, theirs, scores)
    if length == 96:  # whole ranks fit: no tie is cut, the sets are equal
        np.testing.assert_array_equal(ours, theirs)


def test_the_comparison_can_fail(pairs):  # noqa: F811
    reference, model = pairs("llama")
    ids = distinct(96, seed=3)
    press = kvpress.LagKVPress(compression_ratio=1 - 52.5 / 96, n_sink=4, lag_size=16)
    theirs, scores = kept_by_press(reference, press, ids)
    ours = kept_by_us(model, methods.build("lagkv", budget=52, num_sinks=4, skip=3, lag=16), ids)
    with pytest.raises(AssertionError, match="layer="):
        assert_same_sets(ours, theirs, scores)
