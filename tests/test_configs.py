"""Every config loads and resolves; the short names behind the colon; zeros and None stay what they are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from configs import base, dialogue, dilution, tiny
from experiments import plan
from nexus import methods

CONFIGS = sorted(path.stem for path in Path(base.__file__).parent.glob("*.py") if path.stem not in ("__init__", "base"))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_resolves_and_every_command_in_its_docstring_does(name):
    """A config field was read that no config defined, and a default named code that was not there (ngocbh/trimkv)."""
    module = importlib.import_module(f"configs.{name}")
    commands = re.findall(r"--config=configs/(\w+)\.py(?::(\S+))?", module.__doc__)
    assert commands, "the docstring gives the command"
    for file, options in commands:
        assert file == name
        config = module.get_config(options)
        importlib.import_module(f"experiments.{config.experiment}").resolve(config)


def test_another_model_drops_gates_that_are_not_shipped_for_it_and_says_so(capsys):
    """Unless methods are named: then the run refuses what it cannot load."""
    config = dialogue.get_config("model=/my/qwen,n=2")
    assert config.eval.methods == ("full", "streaming_llm", "snapkv", "keydiff")
    assert (
        capsys.readouterr().err
        == "global_retention is left out: no gates are shipped for /my/qwen; configs/train_retention.py makes some\n"
    )
    assert dialogue.get_config("model=/my/qwen,method=global_retention").eval.methods == ("global_retention",)
    assert dilution.get_config("model=/my/qwen").dilution.gates == ""
    assert dilution.get_config("model=/my/qwen,gates=global_retention").dilution.gates == "global_retention"
    assert "global_retention" in dialogue.get_config("n=2").eval.methods


def test_a_wrong_key_in_a_config_file_is_refused():
    config = plan.resolve(tiny.get_config())
    with pytest.raises(AttributeError):
        config.eval.num_exampels  # noqa: B018


def test_every_method_and_option_of_the_table_is_in_the_config():
    config = base.get_config()
    assert set(config.method) == set(methods.names())
    for name in methods.names():
        assert config.method[name].to_dict() == methods.options(name)


@pytest.mark.parametrize(
    ("text", "section", "key", "expected"),
    [
        ("length=1024,2048,n=3", "eval", "lengths", ("1024", "2048")),
        ("n=3,length=1024,2048", "eval", "num_examples", 3),
        ("lengths=1024+2048", "eval", "lengths", ("1024", "2048")),
        ("methods=full;snapkv,seed=7", "eval", "methods", ("full", "snapkv")),
        ("methods=full,snapkv,seed=7", "eval", "seed", 7),
        ("budgets=64,128", "eval", "ratios", ()),
        ("ratios=0.5", "eval", "budgets", ()),
        ("model=/a/b-c.gguf,batch=4", "model", "name", "/a/b-c.gguf"),
        ("floor=0", "eval", "full_floor", 0.0),
        ("sinks=0", "cache", "num_sinks", 0),
        ("recent=0", "cache", "recent", 0),
    ],
)
def test_short_names(text, section, key, expected):
    assert base.with_options(base.get_config(), text)[section][key] == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lenght=3", "'lenght'; allowed after the colon: batch,"),
        ("1024", "has no value"),
        ("n=three", "eval.num_examples takes one int; got 'three'"),
        ("n=1,2", "takes one int"),
        ("n=1,n=2", "given twice"),
        ("budgets=64,ratios=0.5", "give one of them"),
    ],
)
def test_wrong_options_are_refused_with_what_is_allowed(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        base.with_options(base.get_config(), text)


NUMBERS = [
    (section, key)
    for section in ("eval", "cache")
    for key in base.get_config()[section]
    if base.get_config()[section].get_type(key) in (int, float)
]


@pytest.mark.parametrize(("section", "key"), NUMBERS)
def test_zero_is_taken_or_refused_but_never_replaced(section, key):
    """An option of 0 was ignored by `value or default` (NVIDIA/kvpress)."""
    config = tiny.get_config()
    config[section][key] = 0
    try:
        resolved = plan.resolve(config)
    except ValueError as error:
        assert key in str(error)
    else:
        assert resolved[section][key] == 0
        assert resolved[section][key] is not None


def test_a_zero_for_protected_entries_reaches_the_method():
    config = tiny.get_config("sinks=0,recent=0,min_per_head=0,methods=full,streaming_llm")
    resolved = plan.resolve(config)
    cell = next(cell for cell in plan.cells(resolved) if cell.method == "streaming_llm")
    method = plan.build(resolved, cell)
    assert (method.num_sinks, method.recent, method.min_per_head) == (0, 0, 0)
    unset = plan.build(plan.resolve(tiny.get_config()), cell)
    assert unset.num_sinks > 0
