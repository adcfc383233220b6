"""A continued run mixes no two configs, data sets or models."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from ml_collections import config_dict

from configs import perplexity as perplexity_config
from experiments import folder, perplexity
from experiments.plan import ConfigError
from nexus import record
from nexus.models.load import load_model

CONFIG = config_dict.FrozenConfigDict({"a": {"b": 1}})


def changed(model, at=0):
    """The model with other weights in one of its arrays."""
    leaves, form = jax.tree.flatten(model.params)
    params = form.unflatten([leaf * 1.01 + 0.01 if i == at else leaf for i, leaf in enumerate(leaves)])
    return dataclasses.replace(model, params=params)


def test_the_same_again_passes_and_parts_may_come_later(tmp_path):
    """A continued run may need neither model nor data; what was known of them stays known."""
    model = load_model("tiny-llama")
    folder.claim(tmp_path, CONFIG, model, {"vt": "1"})
    folder.claim(tmp_path, CONFIG)
    folder.claim(tmp_path, CONFIG, model, {"vt": "1", "cwe": "2"})
    assert record.read_json(tmp_path / "inputs.json").keys() == {"the weights of the model", "vt", "cwe"}


def test_an_edited_data_set_is_refused(tmp_path):
    """Half of a table came from one file and half from another, under the same sample numbers."""
    folder.claim(tmp_path, CONFIG, None, {"vt": "1", "cwe": "2"})
    with pytest.raises(ConfigError, match="was begun with other contents of cwe: they changed since"):
        folder.claim(tmp_path, CONFIG, None, {"vt": "1", "cwe": "3"})
    assert record.read_json(tmp_path / "inputs.json")["cwe"] == "2"


def test_a_checkpoint_exported_again_is_refused(tmp_path):
    model = load_model("tiny-llama")
    folder.claim(tmp_path, CONFIG, model)
    with pytest.raises(ConfigError, match="other contents of the weights of the model"):
        folder.claim(tmp_path, CONFIG, changed(model))


def test_another_config_is_refused_in_the_same_way(tmp_path):
    folder.claim(tmp_path, CONFIG)
    with pytest.raises(ConfigError, match=r"a\.b \(there 1, now 2\)"):
        folder.claim(tmp_path, config_dict.FrozenConfigDict({"a": {"b": 2}}))


def test_other_weights_have_another_hash():
    """Every array counts, and the same model loaded twice is the same."""
    model = load_model("tiny-llama")
    assert folder.weights_hash(model) == folder.weights_hash(load_model("tiny-llama"))
    count = len(jax.tree.leaves(model.params))
    assert len({folder.weights_hash(m) for m in [model, *(changed(model, i) for i in range(count))]}) == count + 1


def test_an_experiment_refuses_texts_that_were_edited(tmp_path):
    """Through the door that every experiment uses: a text changes between two starts."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(2):
        (texts / f"{i}.txt").write_text(f"Text {i} is about {i} things. " * 12)
    options = "model=tiny-llama,length=96,n=2,chunk=16,evict_every=16,methods=full,ratios="
    config = perplexity_config.get_config(options)
    config.eval.data_dir, config.eval.ratios = str(texts), ()
    perplexity.run(config, tmp_path / "run")
    (texts / "1.txt").write_text("Another text altogether, about other things. " * 12)
    with pytest.raises(ConfigError, match="other contents of the texts"):
        perplexity.run(config, tmp_path / "run")
