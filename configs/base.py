"""What every evaluation config shares: sections, keys, defaults, and the short names behind the colon.

    python launch.py --config=configs/llama_ruler.py:length=1024,2048,methods=full,snapkv,n=3 --config.eval.seed=1

Lists are comma-separated. After the colon a comma also separates options, so a piece without "=" continues the list
before it; ";" and "+" separate list items as well. None means the method's own choice.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from nexus import methods

EMBEDDED = "smollm2-135m-instruct"
TRAINED = ("global_retention", "trimkv")  # methods whose gates are shipped, for the embedded model alone
SHORT = {
    "model": "model.name",
    "dtype": "model.dtype",
    "task": "eval.tasks",
    "tasks": "eval.tasks",
    "length": "eval.lengths",
    "lengths": "eval.lengths",
    "method": "eval.methods",
    "methods": "eval.methods",
    "budget": "eval.budgets",
    "budgets": "eval.budgets",
    "ratio": "eval.ratios",
    "ratios": "eval.ratios",
    "n": "eval.num_examples",
    "limit": "eval.limit",
    "data_dir": "eval.data_dir",
    "protocol": "eval.protocol",
    "question_mode": "eval.question_mode",
    "tail": "eval.tail",
    "seed": "eval.seed",
    "batch": "eval.batch_size",
    "max_new_tokens": "eval.max_new_tokens",
    "floor": "eval.full_floor",
    "show": "eval.show_examples",
    "chunk": "cache.chunk",
    "evict_every": "cache.evict_every",
    "sinks": "cache.num_sinks",
    "recent": "cache.recent",
    "min_per_head": "cache.min_per_head",
}


def get_config() -> config_dict.ConfigDict:
    """Defaults of an evaluation; a derived config states its difference."""
    config = config_dict.ConfigDict()
    config.experiment = "evaluate"  # a file of experiments/

    config.model = config_dict.ConfigDict()
    config.model.name = EMBEDDED  # embedded model, preset, safetensors folder, GGUF file or hub name
    config.model.dtype = ""  # float32 | bfloat16 | mixed | fast; empty: float32 on CPU, else bfloat16

    config.eval = config_dict.ConfigDict()
    config.eval.tasks = ("niah_single_2",)  # names or sets of `python -m nexus.tasks`, or all
    config.eval.data_dir = ""  # folder with the files of tasks that are read, not made
    # files: RULER's tasks from <data_dir>/<task>/validation.jsonl; kvpress: from <data_dir>/<length>.jsonl
    config.eval.ruler_source = "generated"  # generated | files | kvpress: where RULER's tasks come from
    config.eval.strict_upstream = False  # scores with the known slips of the benchmarks' own code (LongBench's trec)
    config.eval.lengths = (1024,)  # tokens: wrapping, prompt and generation together
    config.eval.methods = ("full", "streaming_llm")  # names of nexus/methods.py, or all
    config.eval.budgets = ()  # kept entries per layer and kv head (mean); this or ratios
    config.eval.ratios = ()  # the same as a share of the length; this or budgets
    config.eval.num_examples = 10  # per task and length; of files at most as many as they hold
    config.eval.limit = 0  # at most this many examples per task, for a quick try; 0: no limit
    config.eval.protocol = "streaming"  # streaming: never above budget + chunk | oneshot: full prefill, one eviction
    config.eval.question_mode = "query_agnostic"  # query_agnostic: evict before the question is seen | query_aware
    config.eval.tail = "counted"  # counted: question and answer live inside the budget | free: on top of it
    config.eval.seed = 0  # of samples and of methods that draw
    config.eval.batch_size = 1  # examples decoded together
    config.eval.max_new_tokens = 0  # cuts answers shorter than the task's own limit; 0: the task's own
    config.eval.show_examples = 1  # of each task, token by token: ~15 bytes a token, cell; 0: none
    config.eval.full_floor = 25.0  # score 0-100 the full cache must reach, or no other row of that task; 0: no floor

    config.cache = config_dict.ConfigDict()
    config.cache.chunk = 128  # tokens of one prefill step
    config.cache.evict_every = 32  # decoded tokens between two evictions
    config.cache.num_sinks = config_dict.placeholder(int)  # first tokens that always stay
    config.cache.recent = config_dict.placeholder(int)  # newest tokens that always stay
    config.cache.min_per_head = config_dict.placeholder(int)  # entries no head goes below

    config.method = config_dict.ConfigDict()  # method.<name>.<option>
    for name in methods.names():
        config.method[name] = config_dict.ConfigDict()
        for option, default in methods.options(name).items():
            config.method[name][option] = config_dict.placeholder(object) if default is None else default
    return config


def with_options(
    config: config_dict.ConfigDict, text: str | None, short: Mapping[str, str] = SHORT
) -> config_dict.ConfigDict:
    """Applies "length=1024,2048,n=3" to `config` and returns it. short: option -> dotted key.

    Naming budgets drops the config's ratios and the other way round. Another model drops methods with gates of the
    embedded one, unless methods are named too, and a line says so. Raises ValueError for an unknown name, a value of
    the wrong type, or budgets and ratios together.
    """
    given: dict[str, str] = {}
    for name, value in _pairs(text or "", short):
        if short[name] in given:
            raise ValueError(f"config option {name!r} is given twice")
        given[short[name]] = value
    if {"eval.budgets", "eval.ratios"} <= given.keys():
        raise ValueError("budgets and ratios are two names for one thing: give one of them")
    for path, value in given.items():
        section, key = path.split(".")
        config[section][key] = _value(config[section].get_type(key), path, value)
        if path in ("eval.budgets", "eval.ratios"):
            config.eval["ratios" if key == "budgets" else "budgets"] = ()
    if "methods" in config.get("eval", {}) and config.model.name != EMBEDDED and "eval.methods" not in given:
        _without_gates(config)
    return config


def _without_gates(config: config_dict.ConfigDict) -> None:
    dropped = [name for name in config.eval.methods if name in TRAINED]
    if dropped:
        config.eval.methods = tuple(name for name in config.eval.methods if name not in TRAINED)
        _say_once(
            f"{', '.join(dropped)} is left out: no gates are shipped for {config.model.name}; "
            "configs/train_retention.py makes some"
        )


@functools.cache  # a config is read more than once on the way to a run
def _say_once(text: str) -> None:
    print(text, file=sys.stderr)


def _pairs(text: str, short: Mapping[str, str]) -> list[tuple[str, str]]:
    """ "a=1,2,b=x" -> [("a", "1,2"), ("b", "x")]."""
    pairs: list[tuple[str, str]] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        if equals:
            if name not in short:
                raise ValueError(f"config option {name!r}; allowed after the colon: {', '.join(sorted(short))}")
            pairs.append((name, value))
        elif not pairs:
            raise ValueError(f"config option {piece!r} has no value; write name=value,name=value")
        else:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece}")
    return pairs


def _value(kind: type, path: str, text: str) -> Any:
    if kind is tuple:
        return tuple(text.replace(";", ",").replace("+", ",").split(","))
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{path} takes one {kind.__name__}; got {text!r}") from None
