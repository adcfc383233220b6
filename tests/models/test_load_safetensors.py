"""Checkpoint directories: what is read, and one clear error for each way in which they are broken."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from nexus.models.load import load_model
from tests.models import dense


@pytest.fixture
def copied(tmp_path):
    """copied(name) is a private copy of a fixture directory, to be broken."""

    def copy(name):
        return shutil.copytree(dense.directory(name), tmp_path / name)

    return copy


def edit(path, **changes):
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item != "DELETE"}), encoding="utf-8")


def edit_tensors(path, change):
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["smollm2", "llama2"])
def test_dtype_by_argument_whatever_is_stored(name, dtype):
    model = load_model(dense.directory(name), dtype=dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} == {jnp.dtype(dtype)}


def test_default_dtype_on_cpu_is_float32():
    assert load_model(dense.directory("smollm2")).config.dtype == "float32"


def test_fast_is_mixed_on_cpu():
    model = load_model(dense.directory("smollm2"), dtype="fast")
    assert model.config.dtype == "mixed"
    assert model.params["embed"].dtype == jnp.float32


def test_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype 'float16'; known: fast, float32, bfloat16, mixed"):
        load_model(dense.directory("llama2"), dtype="float16")


def test_ids_of_the_tokenizer_reach_the_config():
    llama31 = load_model(dense.directory("llama31"))
    assert llama31.config.bos_id == llama31.tokenizer.bos_id == llama31.tokenizer.encode("<|begin_of_text|>")[0]
    assert llama31.config.eos_ids == llama31.tokenizer.eos_ids
    assert load_model(dense.directory("smollm2")).config.bos_id is None


@pytest.mark.parametrize("kept", [0, 5, 1000, -10])
def test_half_downloaded_file_is_named(copied, kept):
    path = copied("qwen2") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        ValueError, match=r"model\.safetensors: broken or half-downloaded safetensors file of \d+ bytes"
    ):
        load_model(path.parent)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_half_downloaded_json_is_named(copied, name):
    path = copied("qwen2") / name
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name}: broken or half-downloaded JSON"):
        load_model(path.parent)


def test_missing_shard_is_named(copied):
    directory = copied("mistral")
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 shards are missing: model-00002-of-00003"):
        load_model(directory)


def test_directory_without_weights_config_or_tokenizer(copied):
    directory = copied("qwen2")
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no safetensors file"):
        load_model(directory)
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.model").touch()
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json .*tokenizer\.model must be converted"):
        load_model(directory)
    (directory / "config.json").rename(directory / "weights.gguf")
    with pytest.raises(FileNotFoundError, match=r"no config\.json in this directory; .*weights\.gguf"):
        load_model(directory)


def test_missing_extra_and_misshapen_tensors(copied):
    path = copied("qwen2") / "model.safetensors"
    edit_tensors(path, lambda tensors: tensors.update({"model.layers.0.moe.router": np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match=r"1 tensors that a qwen2 model does not have: model\.layers\.0\.moe\.router"):
        load_model(path.parent)
    edit_tensors(path, lambda tensors: tensors.pop("model.layers.0.moe.router"))
    edit_tensors(path, lambda tensors: tensors.update({"model.norm.weight": np.zeros(31, np.float32)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(31,\), the config asks for \(32,\)"):
        load_model(path.parent)
    edit_tensors(path, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".mlp." in name])
    with pytest.raises(ValueError, match=r"6 tensors are missing: .*gate_proj.* and 2 more"):
        load_model(path.parent)


def test_stored_copy_of_a_tied_head_and_old_frequencies_are_let_pass(copied):
    path = copied("qwen2") / "model.safetensors"
    extra = {"lm_head.weight": np.zeros((320, 32), np.float32)}
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    edit_tensors(path, lambda tensors: tensors.update(extra))
    assert "head" not in load_model(path.parent).params


def test_tokenizer_larger_than_the_embedding_is_refused(copied):
    directory = copied("qwen2")
    edit(directory / "config.json", vocab_size=200)
    with pytest.raises(ValueError, match="the tokenizer has 268 tokens, the embedding only 200"):
        load_model(directory)
