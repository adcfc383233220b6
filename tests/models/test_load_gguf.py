"""GGUF files: the embedded model against transformers, and small files written by the tests."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import fetch
from nexus.models import load_gguf
from nexus.models.load import load_model
from tests.models import dense, tiny_gguf

Kind = gguf.GGMLQuantizationType
EMBEDDED_TOLERANCE = 1e-4  # of the largest logit


@pytest.fixture(scope="module")
def embedded_file():
    return load_gguf.GGUFFile(fetch.fetch(fetch.SMOLLM2))


def embedded_error(file) -> float:
    """Largest difference from the logits of transformers, in units of the largest logit."""
    cfg = load_gguf.config(file, name="embedded", dtype="float32")
    with np.load(dense.FIXTURES / "embedded_logits.npz") as expected:
        stored = dict(expected)
    logits = dense.all_logits(cfg, load_gguf.params(file, cfg), stored["tokens"][None])[0, stored["positions"]]
    top = np.take_along_axis(logits, stored["top_ids"], axis=-1)
    errors = [np.abs(top - stored["top_values"]).max(), np.abs(logits[:, :512] - stored["slice"]).max()]
    return max(errors) / np.abs(stored["top_values"]).max()


def test_embedded_model_equals_transformers(embedded_file):
    assert embedded_error(embedded_file) < EMBEDDED_TOLERANCE


def test_embedded_check_fails_when_q_and_k_stay_permuted(embedded_file, monkeypatch):
    """The permuted model still writes fluent text (perplexity 232 instead of 26), so only such a check sees it."""
    monkeypatch.setattr(load_gguf, "unpermute", lambda rows, heads: rows)
    assert embedded_error(embedded_file) > 100 * EMBEDDED_TOLERANCE


def test_unpermute_undoes_the_converter():
    rows = np.arange(2 * 6 * 3).reshape(12, 3)
    np.testing.assert_array_equal(load_gguf.unpermute(tiny_gguf.permute(rows, 2), 2), rows)
    assert not np.array_equal(tiny_gguf.permute(rows, 2), rows)


@pytest.mark.parametrize(("name", "architecture"), [("llama31", "llama"), ("smollm2", "llama"), ("qwen2", "qwen2")])
def test_gguf_equals_the_checkpoint_it_was_made_from(tmp_path, name, architecture):
    """llama files are permuted, qwen2 files are not; biases, ties and GQA come through."""
    path = tiny_gguf.write(tmp_path / "tiny.gguf", name, architecture)
    expected, model = load_model(dense.directory(name), dtype="float32"), load_model(path, dtype="float32")
    assert jax.tree.structure(model.params) == jax.tree.structure(expected.params)
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)
    for field in ("num_heads", "num_kv_heads", "head_dim", "dim", "tied_embeddings", "qkv_bias", "vocab_size"):
        assert getattr(model.config, field) == getattr(expected.config, field), field


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_quantised_matrices_come_near_the_originals(tmp_path, kind):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "qwen2", "qwen2", kind=kind)
    expected, model = load_model(dense.directory("qwen2"), dtype="float32"), load_model(path, dtype="float32")
    for name in ("wqkv", "w_gate_up", "w_down"):
        assert np.corrcoef(model.params["blocks"][name].ravel(), expected.params["blocks"][name].ravel())[0, 1] > 0.99


def test_stored_rope_factors_scale_as_the_config_does(tmp_path):
    """GGUF files of Llama 3.1 carry no scaling parameters but one divisor per frequency."""
    expected = load_model(dense.directory("llama31"), dtype="float32")
    plain = expected.config.rope.__class__(theta=expected.config.rope.theta)
    ratio = dense.rope.inv_freq(plain, 8) / dense.rope.inv_freq(expected.config.rope, 8)
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama31", "llama", rope_factors=ratio)
    model = load_model(path, dtype="float32")
    with np.load(dense.directory("llama31") / "logits.npz") as stored:
        logits = dense.all_logits(model.config, model.params, stored["tokens"])
        np.testing.assert_allclose(logits, stored["logits"], atol=1e-4, rtol=0)


def test_bfloat16_by_argument(tmp_path):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "qwen2", "qwen2")
    model = load_model(path, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} == {jnp.dtype("bfloat16")}
    assert model.config.dtype == "bfloat16"


@pytest.mark.parametrize("kept", [0, 3, 40, 2000, 30000, -5])
def test_half_downloaded_file_is_named(tmp_path, kept):
    whole = tiny_gguf.write(tmp_path / "whole.gguf", "qwen2", "qwen2").read_bytes()
    path = tmp_path / "part.gguf"
    path.write_bytes(whole[:kept])
    with pytest.raises(ValueError, match=r"part\.gguf: broken or half-downloaded GGUF file of \d+ bytes"):
        load_model(path)


def test_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<html>404 Not Found</html>" * 100)
    with pytest.raises(ValueError, match="broken or half-downloaded GGUF"):
        load_model(path)


def test_unsupported_architecture_is_named_with_the_allowed_ones(tmp_path):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "qwen2", "gemma2")
    with pytest.raises(ValueError, match="architecture 'gemma2' is not supported; allowed: llama, qwen2"):
        load_model(path)


def test_missing_tensors_and_wrong_shapes_are_listed(tmp_path):
    dropped = ("blk.0.ffn_up.weight", "blk.1.attn_q.weight")
    path = tiny_gguf.write(tmp_path / "missing.gguf", "qwen2", "qwen2", drop=dropped)
    with pytest.raises(
        ValueError, match=r"2 tensors are missing: model\.layers\.0\.mlp\.up_proj\.weight, model\.layers"
    ):
        load_model(path)
    path = tiny_gguf.write(tmp_path / "shape.gguf", "qwen2", "qwen2", changes={"feed_forward_length": 96})
    with pytest.raises(ValueError, match=r"has shape \(64, 32\), the config asks for \(96, 32\)"):
        load_model(path)
    path = tiny_gguf.write(tmp_path / "extra.gguf", "qwen2", "qwen2", changes={"block_count": 1})
    with pytest.raises(ValueError, match=r"12 tensors that a qwen2 model does not have: model\.layers\.1"):
        load_model(path)


def test_unknown_pre_tokenizer_is_named(tmp_path):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", "qwen2", "qwen2", pre="chameleon")
    with pytest.raises(ValueError, match="pre-tokenizer 'chameleon' is not supported; allowed: smollm, qwen2"):
        load_model(path)
