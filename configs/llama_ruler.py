"""RULER with a Llama-architecture model: what do four eviction methods and trained gates lose against the full cache?

    python launch.py --config=configs/llama_ruler.py
    python launch.py --config=configs/llama_ruler.py:length=4096
    python launch.py --config=configs/llama_ruler.py:methods=all,n=50
    python launch.py --config=configs/llama_ruler.py:dtype=float32
    python launch.py --config=configs/llama_ruler.py:model=/path/to/llama,length=8192,n=100

The embedded model (SmolLM2-135M-Instruct, fetched once and checked) on five needle tasks, 10 examples each. Question
unknown while the cache is compressed, streaming, question and answer inside the budget. Writes report.html (.md, .csv)
to the run folder; a run that is killed continues where it stopped when it is started again.
Differs from base.py: tasks, methods, ratios, dtype.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

BASELINES = ("full", "streaming_llm", "snapkv", "keydiff", "h2o")


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # tasks: the ones on which this model's full cache has something to lose
    config.eval.tasks = ("niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multivalue", "niah_multiquery")

    # methods: the full cache, four baselines, and gates trained for the embedded model
    config.eval.methods = (*BASELINES, "global_retention", "trimkv")
    config.eval.ratios = (0.10, 0.25)  # share of the length

    # time: matrices in bfloat16 (dtype=float32 for none of it), ten examples share every product; these answers need at
    # most 45 tokens of RULER's 128, rambling is cut short
    config.model.dtype = "fast"
    config.eval.batch_size = 10
    config.eval.max_new_tokens = 48

    return base.with_options(config, options)
