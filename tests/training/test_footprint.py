"""The plan of a training: counted from shapes, and what grows with what."""

from __future__ import annotations

import jax
import pytest

from nexus.gates import GateConfig
from nexus.training import footprint
from nexus.training.sharding import MeshShape
from tests import tiny

GATE = GateConfig(width=8)


def plan(row: int = 1024, batch: int = 8, **mesh: int) -> footprint.Footprint:
    return footprint.footprint(tiny.CFG, GATE, MeshShape(**({"data": 1} | mesh)), row, batch)


def test_parameters_are_counted_from_the_model_and_divided():
    """A plan that forgets the embedding is off by gigabytes for a large vocabulary."""
    count = sum(x.size for x in jax.tree.leaves(tiny.model().params))
    assert plan().parameters == 2 * count and plan(fsdp=8).parameters == 2 * count // 8
    assert plan(data=8).parameters == 2 * count


def test_activations_grow_linearly_and_are_shared():
    """Layer inputs and blocks in the length; all of it divided by the devices that share the rows."""
    long, longer = plan(row=8192), plan(row=16384)
    assert longer.layer_inputs == 2 * long.layer_inputs and longer.one_layer == 2 * long.one_layer
    assert plan(fsdp=8).layer_inputs * 8 == plan().layer_inputs
    assert plan(fsdp=4, model=2).flops == pytest.approx(plan().flops / 8)


def test_cuts_are_counted():
    """What keys are worth after every cut is an array of cuts x keys: it outgrows the rest in very long rows."""
    K, L, row = tiny.CFG.num_kv_heads, tiny.CFG.num_layers, 8192
    worth = 4 * K * row * (2 * (row // 128 + 16) + 512)
    assert plan(row=row, batch=1).soft_cuts == worth + 5 * L * K * row + 2 * L * row * tiny.CFG.dim


def test_rows_must_divide():
    with pytest.raises(ValueError, match="a batch of 8 rows cannot be shared by 3 devices"):
        plan(fsdp=3)


def test_the_table_shows_the_total():
    """The sum of its lines."""
    text = footprint.table(plan())
    numbers = [float(line.split("|")[2].strip(" *")) for line in text.splitlines()[2:-2]]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.05) and "PFLOP" in text
