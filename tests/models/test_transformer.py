"""The decoder: full logits against transformers (stored by tests/fixtures/make_model_fixtures.py); its contracts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus.models import transformer
from nexus.models.load import load_model
from nexus.models.presets import PRESETS
from tests.models import dense


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.mark.parametrize("name", dense.NAMES)
def test_logits_equal_transformers(name):
    """Every family: GQA of 1, 2, 3 and 4, tied and untied, biases, qk norm, scaled rope, sliding window, shards."""
    model = load_model(dense.directory(name), dtype="float32")
    with np.load(dense.directory(name) / "logits.npz") as expected:
        logits = dense.all_logits(model.config, model.params, expected["tokens"])
        assert np.abs(expected["logits"]).max() > 1
        np.testing.assert_allclose(logits, expected["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", ["rope", "sliding_window", "num_kv_heads"])
def test_golden_check_sees_what_it_is_there_for(change):
    """The stored logits tell a wrong rope scaling, a forgotten window and (G, K) heads from the right ones."""
    name = {"rope": "llama31", "sliding_window": "mistral", "num_kv_heads": "mistral"}[change]
    model = load_model(dense.directory(name), dtype="float32")
    cfg, params = model.config, model.params
    if change == "rope":
        cfg = dataclasses.replace(cfg, rope=dataclasses.replace(cfg.rope, scaling=None))
    elif change == "sliding_window":
        cfg = dataclasses.replace(cfg, sliding_window=None)
    else:
        params = params | {"blocks": params["blocks"] | {"wqkv": _heads_in_other_order(cfg, params["blocks"]["wqkv"])}}
    with np.load(dense.directory(name) / "logits.npz") as expected:
        logits = dense.all_logits(cfg, params, expected["tokens"])
        assert np.abs(logits - expected["logits"]).max() > 1e-2


def _heads_in_other_order(cfg, wqkv):
    width = cfg.num_heads * cfg.head_dim
    q = wqkv[..., :width].reshape(*wqkv.shape[:2], cfg.num_kv_heads, cfg.num_groups, cfg.head_dim)
    return jnp.concatenate([q.swapaxes(2, 3).reshape(*wqkv.shape[:2], width), wqkv[..., width:]], axis=-1)


@pytest.mark.parametrize("name", PRESETS)
def test_no_token_sees_a_later_one(name):
    """Causality by gradients: hidden state t has no derivative by the input of a later token."""
    model = load_model(name, dtype="float32")
    cfg = model.config
    tokens = jnp.arange(6, dtype=jnp.int32)[None]

    def hidden_at_2(embed):
        params = model.params | {"embed": embed}
        state = jnp.zeros((cfg.num_layers,), jnp.int32)
        return transformer.forward(cfg, params, tokens, dense.attend_fn(cfg), state)[0][0, 2].sum()

    moved = np.abs(jax.jit(jax.grad(hidden_at_2))(model.params["embed"])).sum(axis=1)
    assert np.all(moved[:3] > 0)
    np.testing.assert_array_equal(moved[3:], 0)


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_that_the_attend_function_sees(name):
    cfg = PRESETS[name]
    seen = {}

    def attend(layer, state, q, k, v, x):
        seen.update(q=q.shape, k=k.shape, v=v.shape, x=x.shape, layer=layer.dtype)
        return q, state

    tokens = jnp.zeros((2, 5), jnp.int32)
    params = transformer.param_shapes(cfg)
    run = functools.partial(transformer.forward, cfg, attend_fn=attend, state={"carried": jnp.zeros(())})
    hidden, state = jax.eval_shape(run, params, tokens)
    K, G, H = cfg.num_kv_heads, cfg.num_heads // cfg.num_kv_heads, cfg.head_dim
    assert seen == dict(q=(2, K, G, 5, H), k=(2, K, 5, H), v=(2, K, 5, H), x=(2, 5, cfg.dim), layer=jnp.dtype("int32"))
    assert hidden.shape == (2, 5, cfg.dim)
    assert set(state) == {"carried"}
    logits = jax.eval_shape(functools.partial(transformer.logits, cfg), params, hidden)
    assert (logits.shape, logits.dtype) == ((2, 5, cfg.vocab_size), jnp.float32)


def test_state_is_threaded_through_the_layers_in_order():
    model = load_model("tiny-llama")

    def attend(layer, state, q, k, v, x):
        return q, state * 10 + layer + 1

    tokens = jnp.zeros((1, 1), jnp.int32)
    _, state = transformer.forward(model.config, model.params, tokens, attend, jnp.int32(0))
    assert int(state) == 123


def test_output_projection_is_what_a_head_adds():
    """wo is read by (kv head, group): feeding one head alone gives the slice of that head."""
    model = load_model("tiny-qwen2", dtype="float32")
    cfg, params = model.config, model.params
    by_head = transformer.output_projection(cfg, params)
    assert by_head.shape == (cfg.num_layers, cfg.num_kv_heads, cfg.num_groups, cfg.head_dim, cfg.dim)
    n = 1 * cfg.num_groups + 2  # kv head 1, group 2
    rows = slice(n * cfg.head_dim, (n + 1) * cfg.head_dim)
    np.testing.assert_array_equal(by_head[0, 1, 2], params["blocks"]["wo"][0, rows])


def test_bfloat16_runs_in_bfloat16_and_stays_near_float32():
    """bfloat16 is compared statistically (huggingface/transformers#25420)."""
    tokens = np.arange(24).reshape(2, 12)
    wide = load_model("tiny-llama", dtype="float32")
    narrow = load_model("tiny-llama", dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow.params)} == {jnp.dtype("bfloat16")}
    cast = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), wide.params)
    expected = dense.all_logits(wide.config, wide.params, tokens)
    logits = dense.all_logits(narrow.config, cast, tokens)
    assert logits.dtype == np.float32
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.999


def test_config_is_a_static_argument():
    run = jax.jit(lambda cfg, x: x * cfg.dim, static_argnums=0)
    assert float(run(PRESETS["tiny-llama"], jnp.float32(1))) == 64
    assert hash(PRESETS["tiny-llama"]) != hash(PRESETS["tiny-llama2"])
