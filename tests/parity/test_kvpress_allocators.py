"""Unequal shares against kvpress: PyramidKVPress and AdaKVPress(SnapKVPress), run by kvpress itself.

python -m pytest tests/parity/test_kvpress_allocators.py

As in test_kvpress.py: protocol `oneshot`, no sinks, the window protected, ties apart. Named differences besides:

    pyramid    kvpress spreads the whole budget over layers with the window inside (ours: spread=all); the paper's code,
               and our default, spread what the window leaves and add it to every layer
    rounding   kvpress rounds every layer to the nearest even, so totals drift; ours are largest remainders with an
               exact total. Counts may differ by one entry per layer, and then one set holds the other
    adakv      kvpress marks the best floor(alpha n) of each head as safe, then ranks the layer (ours: safeguard=floor);
               the paper's code, and our default, blend counts. kvpress averages the group after pooling and pools by
               mean; it hides entries from attention instead of freeing them
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from nexus import methods
from nexus.generate import Session, Settings
from nexus.models.load import Model
from tests.parity.test_kvpress import TIE, distinct, kvpress
from tests.parity.test_kvpress import pairs as pairs

Sets = dict[tuple[int, int], set[int]]  # (layer, kv head) -> positions
Scores = dict[int, np.ndarray]  # layer -> [K,P]
WINDOW = 16


def by_pyramid(
    model: transformers.PreTrainedModel, press: kvpress.PyramidKVPress, ids: list[int]
) -> tuple[Sets, Scores]:
    """Sets kept and scores of one forward; the press sorts positions in the place of values."""
    sets: Sets = {}
    scores: Scores = {}

    class Recorded(kvpress.PyramidKVPress):
        def compress(self, module, hidden_states, keys, values, attentions, kwargs):
            layer = module.layer_idx
            scores[layer] = self.score(module, hidden_states, keys, values, attentions, kwargs)[0].float().numpy()
            positions = torch.arange(keys.shape[2], dtype=torch.float32)[:, None].expand(keys.shape)
            kept = super().compress(module, hidden_states, keys, positions, attentions, kwargs)[1][0, :, :, 0]
            sets.update({(layer, head): set(row.int().tolist()) for head, row in enumerate(kept)})
            return keys, values

    options = {name: getattr(press, name) for name in ("compression_ratio", "window_size", "kernel_size", "beta")}
    with torch.no_grad(), Recorded(**options)(model):
        model.model(torch.tensor([ids]), past_key_values=transformers.DynamicCache())
    return sets, scores


def by_adakv(model: transformers.PreTrainedModel, press: kvpress.AdaKVPress, ids: list[int]) -> tuple[Sets, Scores]:
    """Sets not hidden by the press, and the scores before its safeguard."""
    scores: Scores = {}

    class Recorded(kvpress.SnapKVPress):
        def score(self, module, hidden_states, keys, values, attentions, kwargs):
            found = super().score(module, hidden_states, keys, values, attentions, kwargs)
            scores[module.layer_idx] = found[0].float().numpy().copy()
            return found

    inner = press.press
    press.press = Recorded(inner.compression_ratio, inner.window_size, inner.kernel_size)
    with torch.no_grad(), press(model):
        model.model(torch.tensor([ids]), past_key_values=transformers.DynamicCache())
    sets: Sets = {(layer, head): set(range(len(ids))) for layer in scores for head in range(len(scores[layer]))}
    for layer in scores:
        _, heads, at = model.model.layers[layer].self_attn.masked_key_indices
        for head, position in zip(heads.tolist(), at.tolist(), strict=True):
            sets[layer, head].discard(position)
        model.model.layers[layer].self_attn.masked_key_indices = None
    return sets, scores


def by_us(model: Model, method: methods.Method, ids: list[int]) -> Sets:
    session = Session(model, method, Settings(protocol="oneshot"), 1, capacity=len(ids))
    session.feed([ids])
    session.compress()
    (row,) = session.kept()
    return {(layer, head): set(pos.tolist()) for layer, heads in enumerate(row) for head, pos in enumerate(heads)}


def assert_tied(entries: set[int], score: np.ndarray, last: float) -> None:
    off = np.abs(score[sorted(entries)] - last)
    assert (off <= TIE * abs(last)).all(), f"{entries=} {off=} {last=}"


PYRAMIDS = {  # length, budget, beta, layers that round apart
    "the text is the limit": (540, 300, 20, 0),
    "beta is the limit": (540, 101, 4, 0),
    "halves are rounded to even": (540, 102, 4, 2),
    "too little for the window: all layers equal": (540, 40, 20, 0),
}


def pyramid(budget: int, length: int, beta: int) -> tuple[methods.Method, kvpress.PyramidKVPress]:
    ours = methods.build("pyramidkv", budget=budget, num_sinks=0, window=WINDOW, beta=beta, spread="all")
    return ours, kvpress.PyramidKVPress(1 - budget / length, WINDOW, 5, beta)


@pytest.mark.parametrize("case", PYRAMIDS)
def test_pyramid_keeps_the_same_entries(case, pairs):
    """A slope over another number of layers, a limit that ignores the window, heads of a layer that differ."""
    length, budget, beta, apart = PYRAMIDS[case]
    reference, model = pairs("llama")
    method, press = pyramid(budget, length, beta)
    ids = distinct(length)
    theirs, scores = by_pyramid(reference, press, ids)
    ours = by_us(model, method, ids)
    assert ours.keys() == theirs.keys() and sum(map(len, ours.values())) == budget * len(ours)
    for owner, mine in ours.items():
        score, other = scores[owner[0]][owner[1]], theirs[owner]
        small, large = sorted((mine, other), key=len)
        assert len(large) - len(small) <= 1
        assert_tied(small - large, score, score[sorted(large)].min())
    assert len({layer for layer, head in ours if len(ours[layer, head]) != len(theirs[layer, head])}) == apart


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_pyramid_in_other_families(family, pairs):
    """Other ratios of heads and qk-norm."""
    reference, model = pairs(family)
    method, press = pyramid(200, 300, 20)
    ids = distinct(300, seed=1)
    theirs, scores = by_pyramid(reference, press, ids)
    for owner, mine in by_us(model, method, ids).items():
        score = scores[owner[0]][owner[1]]
        assert len(mine) == len(theirs[owner])
        assert_tied(mine ^ theirs[owner], score, score[sorted(theirs[owner])].min())


def adakv(budget: int, length: int, alpha: float) -> tuple[methods.Method, kvpress.AdaKVPress]:
    ours = methods.build(
        "adakv", budget=budget, num_sinks=0, window=WINDOW, kernel=5, pool="avg", alpha=alpha, safeguard="floor"
    )
    return ours, kvpress.AdaKVPress(kvpress.SnapKVPress(1 - (budget + 0.5) / length, WINDOW, 5), alpha)


@pytest.mark.parametrize(
    ("family", "budget", "alpha"),
    [("llama", 40, 0.2), ("llama", 101, 0.5), ("llama", 101, 0.0), ("llama", 101, 0.9), ("qwen2", 101, 0.5),
     ("qwen3", 101, 0.5)],
)  # fmt: skip
def test_adakv_keeps_the_same_entries(family, budget, alpha, pairs):
    """A floor that counts beside the window, or a ranking over all layers, changes heads by dozens of entries."""
    reference, model = pairs(family, "sdpa")
    ids = distinct(300)
    method, press = adakv(budget, len(ids), alpha)
    theirs, scores = by_adakv(reference, press, ids)
    ours = by_us(model, method, ids)
    assert sum(map(len, theirs.values())) == budget * len(ours)
    unequal = 0
    for owner, mine in ours.items():
        layer = owner[0]
        last = min(scores[layer][head][sorted(kept)].min() for (at, head), kept in theirs.items() if at == layer)
        differ = mine ^ theirs[owner]
        own = scores[layer][owner[1]]
        if differ:
            assert min(abs(own[sorted(theirs[owner])].min() - own[sorted(differ)]).max(),
                       abs(own[sorted(differ)] - last).max()) <= TIE * abs(last)  # fmt: skip
        unequal += len(mine) != budget
    assert unequal, "heads share unequally, or the comparison says nothing"


@pytest.mark.parametrize("changes", [dict(safeguard="blend"), dict(pool="max"), dict(allocator="per_head")])
def test_the_comparison_can_fail(changes, pairs):
    """Sets that agreed under other rules would say nothing about this one."""
    reference, model = pairs("llama", "sdpa")
    ids = distinct(300)
    method, press = adakv(101, len(ids), 0.5)
    chosen = dict(window=WINDOW, kernel=5, pool="avg", alpha=0.5, safeguard="floor") | changes
    if "allocator" in changes:
        chosen = {name: value for name, value in chosen.items() if name not in ("alpha", "safeguard")}
    other = methods.build("adakv", budget=101, num_sinks=0, **chosen)
    theirs, _ = by_adakv(reference, press, ids)
    assert by_us(model, other, ids) != theirs
