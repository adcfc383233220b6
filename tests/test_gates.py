"""Gates: their forms, their files, and which model they belong to."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import gates, shipped
from nexus.gates import GateConfig
from tests import oracle_retention, tiny

FORMS = [(kind, tied, act, False) for kind in gates.KINDS for tied in (False, True) for act in ("silu", "relu")]
FORMS += [("two_layer", False, "silu", True), ("three_layer", True, "relu", True)]


def drawn(cfg: GateConfig, seed: int = 0) -> gates.Gates:
    rng = np.random.default_rng(seed)
    fresh = gates.init(tiny.CFG, cfg, jax.random.key(seed))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.4, x.shape), jnp.float32), fresh)


@pytest.mark.parametrize(("kind", "tied", "act", "normalised"), FORMS)
def test_every_form_is_its_equation(kind, tied, act, normalised, tmp_path):
    """Saved, loaded, applied by what the leaves alone say, against the equations in float64."""
    cfg = GateConfig(kind=kind, width=8, tied=tied, activation=act, normalised=normalised)
    path = tmp_path / "gates.safetensors"
    gates.save(path, drawn(cfg), cfg, tiny.CFG, {"seed": 0})
    shape, loaded = gates.load(str(path), tiny.CFG)
    assert shape == cfg
    layers = gates.by_layer(jax.tree.map(jnp.asarray, loaded), tiny.CFG.num_layers)
    x = np.random.default_rng(1).normal(size=(2, 5, tiny.CFG.dim)).astype(np.float32)
    for layer in range(tiny.CFG.num_layers):
        here = jax.tree.map(lambda w: w[layer], layers)  # noqa: B023  (used at once)
        index = jnp.int32(list(gates.ACTIVATIONS).index(act))
        got = gates.any_log_beta(here | {"activation": index}, jnp.asarray(x))
        want = np.stack([oracle_retention.log_beta(str(path), layer, row) for row in x]).swapaxes(1, 2)
        assert got.shape == (2, tiny.CFG.num_kv_heads, 5) and got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gates.log_beta(cfg, here, jnp.asarray(x)), got, rtol=1e-6)


def test_a_tied_projection_is_one_for_all_layers():
    """Scores of all layers are on one scale only if the last step is shared."""
    tied, free = (gates.init(tiny.CFG, GateConfig(tied=tied), jax.random.key(0)) for tied in (True, False))
    assert tied["final"]["w"].ndim == 2 and free["final"]["w"].ndim == 3
    grown = gates.by_layer(tied, 2)
    np.testing.assert_array_equal(grown["w"][0], grown["w"][1])


def test_a_rate_is_never_one_and_starts_at_the_bias():
    """A bias of 18 in float32 rounds to a rate of exactly one: the sum over the future would be infinite."""
    cfg = GateConfig(bias=18.0)
    layers = gates.by_layer(gates.init(tiny.CFG, cfg, jax.random.key(0)), tiny.CFG.num_layers)
    here = jax.tree.map(lambda w: w[0], layers)
    rate = gates.log_beta(cfg, here, jnp.zeros((1, 3, tiny.CFG.dim)))
    np.testing.assert_allclose(rate, -np.log1p(np.exp(-18.0)), rtol=1e-3)
    far = gates.log_beta(cfg, here | {"c": jnp.full_like(here["c"], 40.0)}, jnp.zeros((1, 3, tiny.CFG.dim)))
    assert (far <= -gates.LEAST).all()


def test_a_normalised_gate_does_not_see_scale_or_shift():
    """The inputs of deep layers are many times those of early ones; what the gate of one layer says must not be."""
    cfg = GateConfig(width=8, normalised=True)
    here = jax.tree.map(lambda w: w[0], gates.by_layer(drawn(cfg), tiny.CFG.num_layers))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 5, tiny.CFG.dim)), jnp.float32)
    np.testing.assert_allclose(gates.log_beta(cfg, here, 30 * x + 7), gates.log_beta(cfg, here, x), atol=1e-3)


def test_a_file_that_is_written_again_is_read_again(tmp_path):
    """A training that goes on writes its gates to the same file: an evaluation on the way saw the first."""
    cfg, path = GateConfig(width=8), tmp_path / "gates.safetensors"
    for seed in (0, 1):
        gates.save(path, drawn(cfg, seed), cfg, tiny.CFG, {})
        _, loaded = gates.load(str(path), tiny.CFG)
        np.testing.assert_allclose(loaded["final"]["w"], drawn(cfg, seed)["final"]["w"], atol=1e-3)


def test_gates_of_another_model_are_refused_with_both_shapes():
    """Loaded by broadcasting they would score noise."""
    other = dataclasses.replace(tiny.CFG, name="wider", dim=40)
    with pytest.raises(
        ValueError, match=r"'test' and do not fit 'wider': layer.w1 has shape \(2, 32, 8\).*\(2, 40, 8\)"
    ):
        gates.load(tiny.GATES.format("two_layer"), other)


def test_what_is_no_gate_file_says_so(tmp_path):
    """One line that names the file."""
    with pytest.raises(ValueError, match=r"gates=.*none.safetensors' is no file"):
        gates.load(str(tmp_path / "none.safetensors"), tiny.CFG)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"broken.safetensors is not a file of gates"):
        gates.load(str(broken), tiny.CFG)


@pytest.mark.parametrize("header", [{"kind": "four_layer"}, {"kind": "two_layer", "depth": 3}])
def test_a_header_of_another_version_says_so(tmp_path, header):
    """Fields that are required, or new, made checkpoints unreadable without a word why (NVIDIA/kvpress#267)."""
    path = tmp_path / "other.safetensors"
    shipped.write(path, {"final.w": np.zeros(2, np.float32)}, tiny.CFG, {}, gate=header)
    with pytest.raises(ValueError, match="other.safetensors: their header .* does not fit this version"):
        gates.load(str(path), tiny.CFG)


def test_a_model_without_shipped_gates_is_told_how_to_train_them():
    """Never silently another score."""
    with pytest.raises(ValueError, match=r"gates='trimkv' is no file.*shipped for model 'test'.*train_retention.py"):
        gates.load("trimkv", tiny.CFG)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "one_layer"}, "gate kind 'one_layer'; allowed: two_layer, three_layer"),
        ({"activation": "tanh"}, "gate activation 'tanh'; allowed: silu, gelu, relu"),
        ({"width": 0}, "gate width must be at least 1, got 0"),
    ],
)
def test_a_gate_that_cannot_be(options, message):
    """Refused by name."""
    with pytest.raises(ValueError, match=message):
        GateConfig(**options)
