"""Smoke run: the whole path from config to report in seconds, on a preset with random weights.

    python launch.py --config=configs/tiny.py
    python launch.py --config=configs/tiny.py:methods=all

Nothing is downloaded. The scores mean nothing, random weights answer no question; so the floor is off.
Differs from base.py: model, length, tasks, number of examples, floor.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # model
    config.model.name = "tiny-llama"

    # evaluation
    config.eval.tasks = ("niah_single_1", "niah_multikey_2")  # no essays: nothing to download
    config.eval.lengths = (1024,)  # its tokens are bytes
    config.eval.methods = ("full", "streaming_llm", "snapkv")
    config.eval.ratios = (0.25,)
    config.eval.num_examples = 2
    config.eval.batch_size = 2
    config.eval.max_new_tokens = 8
    config.eval.full_floor = 0.0

    return base.with_options(config, options)
