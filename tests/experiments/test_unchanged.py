"""A continued run mixes no two data sets and no two models."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from experiments import unchanged
from experiments.plan import ConfigError
from nexus.models.load import load_model
from nexus.tasks.example import Example


def example(index: int, reference: str = "7") -> Example:
    return Example(
        task="vt", index=index, context="c", question="q", answer_prefix="", references=(reference,), max_new_tokens=4,
        metric="all", length=512, variant="v", template_hash="t",
    )  # fmt: skip


def row(index: int, **changes):
    made = {"task": "vt", "length": 512, "index": index, "model": "m", "weights_hash": "w"}
    return made | {"sample_hash": unchanged.sample_hash(example(index))} | changes


def test_the_same_samples_and_weights_pass():
    unchanged.check([row(0), row(1)], {("vt", 512): [example(0), example(1)]}, "w", "runs/x")


def test_an_edited_data_set_is_refused():
    """Half of a table came from one file and half from another, under one sample number."""
    with pytest.raises(ConfigError, match="sample 1 of task vt is not the one that runs/x was begun with"):
        unchanged.check([row(0), row(1)], {("vt", 512): [example(0), example(1, "8")]}, "w", "runs/x")


def test_a_checkpoint_exported_again_is_refused():
    with pytest.raises(ConfigError, match="'m' has other weights than runs/x was begun with"):
        unchanged.check([row(0)], {("vt", 512): [example(0)]}, "other", "runs/x")


def test_other_weights_have_another_hash():
    """Every array counts, and the same model loaded twice is the same."""
    model = load_model("tiny-llama")
    assert unchanged.weights_hash(model) == unchanged.weights_hash(load_model("tiny-llama"))
    found = {unchanged.weights_hash(model)}
    leaves, form = jax.tree.flatten(model.params)
    for i in range(len(leaves)):
        changed = [leaf * 1.01 + 0.01 if i == at else leaf for at, leaf in enumerate(leaves)]
        found.add(unchanged.weights_hash(dataclasses.replace(model, params=form.unflatten(changed))))
    assert len(found) == len(leaves) + 1
