"""Trains retention gates beside a frozen model: what will be needed later, said when a token is written.

    python launch.py --config=configs/train_retention.py                                   # global_retention
    python launch.py --config=configs/train_retention.py:method=trimkv                     # one budget per head
    python launch.py --config=configs/train_retention.py:model=/path/to/model,steps=1000 --config.data.row=16384

Writes train.jsonl (one line per step), checkpoints/ (newest and best), gates.safetensors, report.md and figures/ to the
run folder; SIGTERM saves and ends, and the same command goes on with the same losses. Use the gates with
`--config.method.global_retention.gates=RUN_FOLDER/gates.safetensors`. The training text is fetched by npm once.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

SHORT = {
    "model": "model.name", "dtype": "model.dtype", "method": "train.method", "steps": "train.steps",
    "batch": "train.batch", "seed": "train.seed", "row": "data.row", "budget": "loss.budget",
    "learning_rate": "train.learning_rate", "regress_steps": "train.regress_steps",
}  # fmt: skip


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.experiment = "train"

    config.model = config_dict.ConfigDict()
    config.model.name = "smollm2-135m-instruct"
    config.model.dtype = "fast"  # float32 | bfloat16 | mixed | fast: mixed on CPU, else bfloat16

    config.gate = config_dict.ConfigDict()
    config.gate.kind = "two_layer"  # two_layer | three_layer
    config.gate.width = 64
    config.gate.tied = False  # one final projection for all layers
    config.gate.bias = 5.0  # before training; sigmoid(5) is a half-life of about 100 tokens
    config.gate.activation = "silu"  # silu | gelu | relu
    config.gate.normalised = False  # the gates' input is layer-normalised first

    config.loss = config_dict.ConfigDict()
    config.loss.budget = 96  # M of the capacity hinge: entries per layer and kv head
    config.loss.kl = 1.0  # answers, teacher to student
    config.loss.context_kl = 0.5  # sampled other positions
    config.loss.ntp = 1.0  # cross-entropy of answers
    config.loss.cap = 1.0  # counts beta^age, also under cuts, where it only keeps the scale of the scores
    config.loss.context_positions = 32  # per row
    config.loss.answer_positions = 96  # per row, at most
    config.loss.hinge_positions = 64  # per step
    config.loss.sinks = 4  # first tokens of a document never fade
    config.loss.cut_least = 0.04  # share of a row's tokens that soft cuts leave, at least: it is drawn for every step
    config.loss.cut_most = 0.25  # ... and at most; 0: no cuts, keys fade with age as in the papers
    config.loss.cut_every = 128  # tokens between cuts
    config.loss.cut_marks = 16  # more of them, behind texts and before and in answers, at most so many in a row
    config.loss.cut_width = 0.25  # of a cut, in units of log(-score); towards 0 it is the hard one of inference
    config.loss.regress_age = 256  # of the first stage, where train.regress_steps asks for one
    config.loss.remat = True  # False: a fifth faster where memory holds every activation of a row

    config.data = config_dict.ConfigDict()
    config.data.mix = "facts=0.75,dialogue=0.1,text=0.1,tracking=0.05"  # kind=share
    config.data.row = 1024  # tokens of a packed row
    config.data.shares = (1.0, 0.5)  # lengths of documents as shares of a row
    config.data.rows = 1024  # distinct rows; longer trainings see them again in another order

    config.train = config_dict.ConfigDict()
    config.train.method = "global_retention"  # whose budget: global_retention | trimkv
    config.train.steps = 150
    config.train.regress_steps = 0  # the first of them that regress log future attention instead
    config.train.batch = 2  # rows per step, of all devices together
    config.train.accumulate = 1  # steps whose gradients are averaged before the gates move
    config.train.learning_rate = 3e-3
    config.train.warmup = 10  # steps
    config.train.b2 = 0.98
    config.train.weight_decay = 0.0
    config.train.clip = 1.0  # global norm
    config.train.seed = 0
    config.train.save_every = 20  # steps

    config.mesh = config_dict.ConfigDict()  # devices along each axis, see nexus/training/sharding.py
    config.mesh.data = -1  # -1: all that are left
    config.mesh.fsdp = 1
    config.mesh.model = 1
    config.mesh.distributed = False  # True: joins the processes of a pod, see docs/pods.md

    config.dev = config_dict.ConfigDict()  # a small evaluation on the way, with other samples than any reported one
    config.dev.every = 40  # steps; 0: none
    config.dev.tasks = ("niah_single_2", "niah_multikey_1", "niah_multivalue")
    config.dev.length = 1024
    config.dev.ratios = (0.1, 0.25)
    config.dev.num_examples = 8
    config.dev.seed = 1000

    return base.with_options(config, options, SHORT)
