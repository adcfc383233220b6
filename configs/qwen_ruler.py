"""RULER with a Qwen model from a folder or the hub.

    python launch.py --config=configs/qwen_ruler.py
    python launch.py --config=configs/qwen_ruler.py:model=/path/to/Qwen2.5-0.5B-Instruct,length=4096

Qwen2 and Qwen3 checkpoints alike; thinking is switched off. Same grid as llama_ruler.py, so the reports can be read
side by side.
Differs from llama_ruler.py: the model, no trained gates.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base, llama_ruler


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = llama_ruler.get_config()
    config.eval.methods = llama_ruler.BASELINES  # no gates are shipped for it
    config.model.name = "Qwen/Qwen3-0.6B"  # folder or hub name
    return base.with_options(config, options)
