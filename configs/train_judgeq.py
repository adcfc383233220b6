"""Trains the soft tokens of Judge Q: a few embedding rows that look where the model's own responses will look.

    python launch.py --config=configs/train_judgeq.py
    python launch.py --config=configs/train_judgeq.py:model=/path/to/model,steps=2000 --config.data.length=4096

Writes responses.jsonl (what the model answered, made once), train.jsonl (one line per step), checkpoints/ and
judgeq.safetensors to the run folder; the same command goes on where it stopped. Use the rows with
`--config.method.judgeq.probes=RUN_FOLDER/judgeq.safetensors`. The training text is fetched by npm once.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

SHORT = {
    "model": "model.name", "dtype": "model.dtype", "steps": "train.steps", "batch": "train.batch",
    "seed": "train.seed", "learning_rate": "train.learning_rate", "length": "data.length", "examples": "data.examples",
}  # fmt: skip


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.experiment = "train_judgeq"

    config.model = config_dict.ConfigDict()
    config.model.name = "smollm2-135m-instruct"
    config.model.dtype = "fast"  # float32 | bfloat16 | mixed | fast: mixed on CPU, else bfloat16

    config.data = config_dict.ConfigDict()
    config.data.length = 512  # tokens of a prompt, question included, at most
    config.data.response = 48  # tokens of an answer, at most
    config.data.examples = 512
    config.data.kinds = ("facts", "tracking")  # see nexus/training/records.py

    config.train = config_dict.ConfigDict()
    config.train.rows = 32  # soft tokens
    config.train.steps = 400
    config.train.batch = 4
    config.train.learning_rate = 1e-3  # AdamW without weight decay, cosine to a tenth
    config.train.warmup = 10  # steps
    config.train.clip = 1.0  # global norm
    config.train.seed = 0
    config.train.save_every = 20  # steps

    return base.with_options(config, options, SHORT)
