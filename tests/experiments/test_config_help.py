"""The help of a config: docstring, keys with their defaults, short names, meanings."""

import runpy

import pytest

from experiments import config_help
from nexus import record


def text(name, options=""):
    path = str(record.ROOT / "configs" / f"{name}.py")
    module = runpy.run_path(path)
    return config_help.text(path, module, module["get_config"](options))


@pytest.mark.parametrize("name", ["llama_ruler", "niah", "train_retention", "survival"])
def test_docstring_and_every_key_are_there(name):
    said = text(name)
    module = runpy.run_path(str(record.ROOT / "configs" / f"{name}.py"))
    assert module["__doc__"].strip() in said
    config = module["get_config"]()
    for section in set(config) - {"experiment", "method"}:
        for key in config[section]:
            assert f"  {section}.{key}=" in said


def test_defaults_short_names_and_meanings_are_those_of_this_config():
    lines = text("niah").splitlines()
    at = lines.index("  eval.num_examples=3  [n, needles]")
    assert lines[at + 1].strip().startswith("per task and length")  # from base.py
    at = lines.index("  eval.ratios=0.25  [ratio, ratios]")
    assert lines[at + 1].strip() == "share of the length"  # its own
    assert "  eval.num_examples=7  [n, needles]" in text("niah", "n=7").splitlines()
    assert not any(line.startswith("  method.snapkv") for line in lines)  # a hundred lines nobody asked for
