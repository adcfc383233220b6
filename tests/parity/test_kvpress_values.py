"""Kept entries against presses of kvpress that read values: CriticalKVPress and ExpectedAttentionPress.

python -m pytest -o norecursedirs=.git tests/parity/test_kvpress_values.py

As in test_kvpress.py: protocol `oneshot`, protection as the presses have it, ties apart. Named differences beside
those:

    stage 1    kvpress gives the window one more than the highest score and the first stage the largest float; ours are
               masks. Either way window first, then attention, then attention times the value
    projection kvpress forms v Wo of one head after another, ours are blocks of D: sums of 1-norms in another order
    Qwen2      CriticalKVPress asks the config for its head size, which that family does not state; set for it here
    sinks      ExpectedAttentionPress gives its sinks one more than the highest score; ours are protected
    rounding   a share of the budget is rounded down; kvpress takes it of the budget before that is rounded
    statistics kvpress takes them from the hidden states of the whole prompt, ours are merged chunk by chunk, from
               queries that are turned back
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

from nexus import methods
from tests.parity.test_kvpress import assert_same_sets, distinct, kept_by_us, pairs  # noqa: F401

with warnings.catch_warnings():  # one of its packages imports a deprecated module, and warnings are errors here
    warnings.simplefilter("ignore", DeprecationWarning)
    import kvpress


@dataclasses.dataclass(frozen=True)
class Case:
    """A method with its options, and the press that it is compared with, made for a ratio."""

    method: str
    options: dict[str, object]
    press: Callable[[float], kvpress.ScorerPress]


def critical(window: int, kernel: int, **options: float) -> Case:
    def press(ratio: float) -> kvpress.ScorerPress:
        base = kvpress.SnapKVPress(compression_ratio=ratio, window_size=window, kernel_size=kernel)
        named = {"first_stage": "first_stage_ratio", "epsilon": "epsilon"}
        return kvpress.CriticalKVPress(base, **{named[key]: value for key, value in options.items()})

    return Case("criticalkv", {"window": window, "kernel": kernel, "num_sinks": 0} | options, press)


def expected(**options: object) -> Case:
    named = {"future": "n_future_positions", "skip": "n_sink", "covariance": "use_covariance",
             "value_norm": "use_vnorm", "epsilon": "epsilon"}  # fmt: skip
    theirs = {named[key]: value for key, value in options.items()}
    return Case(
        "expected_attention", {"num_sinks": options.get("skip", 4)} | options,
        lambda ratio: kvpress.ExpectedAttentionPress(compression_ratio=ratio, **theirs),
    )  # fmt: skip


CASES = {
    "criticalkv": critical(16, 5),
    "criticalkv-mostly-first": critical(8, 1, first_stage=0.6),  # 0.6 * 41 and 0.6 * 41.5 round alike
    "criticalkv-all-second": critical(16, 7, first_stage=0.0, epsilon=1e-2),
    "expected_attention": expected(),
    "expected_attention-mean": expected(covariance=False, epsilon=1e-2),
    "expected_attention-plain": expected(value_norm=False, future=64, skip=2),
}


def kept_by_kvpress(
    model: transformers.PreTrainedModel, press: kvpress.ScorerPress, ids: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions kept [L,K,M], increasing, and scores [L,K,P] of one real forward under the press.

    Scores come from the true values; then the press selects by them with positions in the place of values.
    """
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    score, compress = press.score, press.compress

    def recorded(module, hidden_states, keys, values, attentions, kwargs):
        scores = score(module, hidden_states, keys, values, attentions, kwargs)
        press.score = lambda *_: scores
        positions = torch.arange(keys.shape[2], dtype=torch.float32)[:, None].expand(keys.shape)
        out = compress(module, hidden_states, keys, positions, attentions, kwargs)
        kept = out[1][0, :, :, 0].to(torch.int64).sort(dim=-1).values
        at = kept[None, :, :, None].expand(1, -1, -1, keys.shape[-1])
        seen[module.layer_idx] = kept.numpy(), scores[0].float().numpy()
        return keys.gather(2, at), values.gather(2, at)

    press.compress = recorded
    with torch.no_grad(), press(model):
        model.model(torch.tensor([ids]), past_key_values=transformers.DynamicCache())
    return tuple(np.stack([seen[layer][part] for layer in sorted(seen)]) for part in (0, 1))  # type: ignore[return-value]


def compare(pair, case: Case, ids: list[int], budget: int) -> int:
    """How many heads needed the allowance for ties."""
    reference, model = pair
    if not hasattr(reference.config, "head_dim"):  # Qwen2: CriticalKVPress asks the config for it and fails
        reference.config.head_dim = model.config.head_dim
    press = case.press(1 - (budget + 0.5) / len(ids))  # so that kvpress' floor is the budget
    theirs, scores = kept_by_kvpress(reference, press, ids)
    assert theirs.shape[-1] == budget
    return assert_same_sets(
        kept_by_us(model, methods.build(case.method, budget=budget, **case.options), ids), theirs, scores
    )


@pytest.mark.parametrize(("length", "budget"), [(96, 41), (540, 101)])  # odd: half of it is rounded down
@pytest.mark.parametrize("name", CASES)
def test_same_entries(name, length, budget, pairs):  # noqa: F811
    """Half of the budget rounded up, a norm taken after the mean over the group, a covariance over the wrong count, a
    rotation at the wrong positions: each changes the sets."""
    assert compare(pairs("llama"), CASES[name], distinct(length), budget) == 0


@pytest.mark.parametrize("family", ["llama-scaled", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", ["criticalkv", "expected_attention"])
def test_same_entries_in_every_family(name, family, pairs):  # noqa: F811
    """Scaled frequencies, biased queries, qk-norm and other ratios of heads reach the scores; sdpa hands the press no
    probabilities."""
    assert compare(pairs(family, "sdpa"), CASES[name], distinct(96, seed=1), 40) == 0


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("criticalkv", {"first_stage": 0.7}),
        ("criticalkv", {"epsilon": 1.0}),
        ("expected_attention", {"future": 8}),
        ("expected_attention", {"covariance": False}),
        ("expected_attention", {"value_norm": False}),
    ],
)
def test_the_comparison_can_fail(name, changes, pairs):  # noqa: F811
    """Sets that agreed under other settings would say nothing about the rule."""
    case = CASES[name]
    with pytest.raises(AssertionError, match="layer="):
        compare(pairs("llama"), dataclasses.replace(case, options=case.options | changes), distinct(96), 41)
