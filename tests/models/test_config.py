"""config.json to ModelConfig: both layouts of transformers, windows that are switched off, and what is refused."""

import json

import pytest

from nexus.models import config
from nexus.rope import LinearScaling, Llama3Scaling, RopeConfig
from tests.models import dense


def hf(name, **changes):
    """The fixture's config.json with changes; DELETE removes a key."""
    value = json.loads((dense.directory(name) / "config.json").read_text(encoding="utf-8")) | changes
    return {key: item for key, item in value.items() if item != "DELETE"}


def read(name, **changes):
    return config.from_hf(hf(name, **changes), name=name, dtype="float32")


def test_families_differ_where_they_should():
    assert [read(name).qkv_bias for name in ("llama2", "mistral", "qwen2", "qwen3")] == [False, False, True, False]
    assert [read(name).qk_norm for name in ("llama2", "mistral", "qwen2", "qwen3")] == [False, False, False, True]
    assert [read(name).num_groups for name in dense.NAMES] == [1, 4, 3, 2, 4, 3]


def test_head_dim_is_derived_when_absent_or_null():
    assert read("llama2", head_dim="DELETE").head_dim == read("llama2", head_dim=None).head_dim == 8
    assert read("qwen3").head_dim == 16


def test_rope_in_both_layouts():
    """transformers 5 moved theta and scaling into rope_parameters."""
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=32)
    expected = RopeConfig(theta=500000.0, scaling=scaling)
    assert read("llama31").rope == expected
    new = hf("llama31")["rope_scaling"] | {"rope_theta": 500000.0}
    assert read("llama31", rope_theta="DELETE", rope_scaling="DELETE", rope_parameters=new).rope == expected
    old = {"type": "linear", "factor": 2.0}
    assert read("llama2", rope_scaling=old).rope.scaling == LinearScaling(factor=2.0)
    assert read("llama2", rope_scaling={"rope_type": "default"}).rope.scaling is None


def test_sliding_window_is_none_where_the_config_disables_it():
    assert read("mistral").sliding_window == 16
    assert read("mistral", sliding_window=None).sliding_window is None
    assert read("qwen2", sliding_window=8, use_sliding_window=False).sliding_window is None
    off = dict(sliding_window=8, use_sliding_window=True, layer_types="DELETE")
    assert read("qwen2", **off, max_window_layers=28).sliding_window is None
    assert read("qwen2", **off, max_window_layers=0).sliding_window == 8
    with pytest.raises(ValueError, match="sliding_window=8 on 1 of 2 layers"):
        read("qwen2", **off, max_window_layers=1)
    with pytest.raises(ValueError, match="1 of 2 layers"):
        mixed = ["full_attention", "sliding_attention"]
        read("qwen2", sliding_window=8, use_sliding_window=True, layer_types=mixed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(model_type="gemma3"), "model_type 'gemma3' is not supported; allowed: llama, mistral, qwen2, qwen3"),
        (
            dict(rope_scaling=dict(rope_type="yarn")),
            "rope_type 'yarn' is not supported; allowed: default, linear, llama3",
        ),
        (dict(attention_bias=True), "attention_bias=True; only False is supported"),
        (dict(hidden_act="gelu"), "hidden_act='gelu'; only 'silu'"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
        (dict(quantization_config=dict(quant_method="awq")), "quantised with 'awq'"),
        (dict(hidden_size="DELETE"), "config.json has no 'hidden_size'"),
        (dict(rope_scaling=dict(rope_type="llama3")), "config.json has no 'factor'"),
        (dict(num_key_value_heads=3), "num_heads=4, num_kv_heads=3"),
        (dict(num_hidden_layers=0), "num_layers must be at least 1: 0"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused(changes, message):
    with pytest.raises(ValueError, match="llama2: .*" + message.replace(".", r"\.")):
        read("llama2", **changes)
