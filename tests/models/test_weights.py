"""Named tensors to stacked parameters: the order of what is fused, and the names a checkpoint must have."""

import jax
import numpy as np
import pytest

from nexus.models import transformer, weights
from nexus.models.presets import PRESETS


def random_tensors(cfg):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in weights.expected_shapes(cfg).items()}


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_have_the_shapes_of_the_decoder(name):
    cfg = PRESETS[name]
    params = weights.assemble(cfg, random_tensors(cfg).__getitem__)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), transformer.param_shapes(cfg)
    )


def test_fused_matrices_keep_the_order_q_k_v_and_gate_up():
    cfg = PRESETS["tiny-qwen2"]
    tensors = random_tensors(cfg)
    params = weights.assemble(cfg, tensors.__getitem__)
    layer = "model.layers.1."
    parts = [tensors[f"{layer}self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(params["blocks"]["wqkv"][1], np.concatenate(parts).T)
    biases = [tensors[f"{layer}self_attn.{name}_proj.bias"] for name in "qkv"]
    np.testing.assert_array_equal(params["blocks"]["bqkv"][1], np.concatenate(biases))
    parts = [tensors[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up")]
    np.testing.assert_array_equal(params["blocks"]["w_gate_up"][1], np.concatenate(parts).T)


def test_untied_models_need_a_head_and_tied_ones_may_carry_one():
    untied, tied = PRESETS["tiny-llama2"], PRESETS["tiny-llama"]
    shapes = weights.expected_shapes(untied)
    weights.check(untied, shapes, "file")
    shapes.pop(weights.HEAD)
    with pytest.raises(ValueError, match=r"file: 1 tensors are missing: lm_head\.weight"):
        weights.check(untied, shapes, "file")
    weights.check(tied, weights.expected_shapes(tied) | {weights.HEAD: (1, 1)}, "file")
