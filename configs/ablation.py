"""What in learned retention matters? Gates are trained in several ways, one change at a time, and compared with base.

    python launch.py --config=configs/ablation.py
    python launch.py --config=configs/ablation.py:variants=base+tied+per_head,steps=20
    python launch.py --config=configs/ablation.py:variants=lookahead_128+reservoir,gates=base=global_retention
    python launch.py --config=configs/ablation.py:length=1024,ratios=0.1+0.25,n=32,seed=0

base is configs/train_retention.py: one global budget, a gate of two layers per layer, four sinks, end to end under soft
cuts. Every other variant is base with the fields listed under `variant` changed, in training, in the evaluation, or in
both. Those that change the evaluation alone use the gates of the variant they are trained like. The full cache is
evaluated first (tasks on which it stays below eval.full_floor are dropped); then a variant is trained, evaluated and
reported before the next begins. Killed and started again it goes on in the middle of a training.

A matter of hours: a step of 2 x 1024 tokens takes 12 s on two cores, so a training of 150 steps takes half an hour, and
the eleven of them about 5 hours; the evaluations come on top. One training per variant says little about small
differences: the variants seed_1 and seed_2 show how much is chance.

`gates=VARIANT=FILE` gives gates that exist (a file, or the name of shipped ones) in the place of a training. Samples
have another seed than any reported table (seed=0 takes the reported ones). Another list of variants: copy this file.

Writes trainings/VARIANT/ and evaluations/VARIANT/ (folders of experiments train and evaluate, also for
`python -m experiments.report RUN/evaluations/*`), variants.jsonl, metrics.jsonl, kinds.jsonl (which kinds of tokens are
held), figures/ and report.md: scores with the paired 95 % interval of each variant against base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from configs import base, train_retention

TRAINING = ("gate", "loss", "data", "train", "mesh", "dev")  # sections of configs/train_retention.py
METHODS = ("global_retention", "trimkv")
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {  # name -> section -> field -> value; base changes nothing
    # whose budget
    "per_head": {"train": {"method": "trimkv"}},
    # the gate
    "tied": {"gate": {"tied": True}},
    "three_layer": {"gate": {"kind": "three_layer"}},
    "tied_three_layer": {"gate": {"tied": True, "kind": "three_layer"}},  # as in the published code
    "normalised": {"gate": {"normalised": True}},
    # the training
    "fading": {"loss": {"cut_most": 0.0}},  # keys fade with age, as in the papers; base is cut softly
    "no_sinks": {"loss": {"sinks": 0}, "cache": {"num_sinks": 0}},  # neither in training nor in the cache
    "regress_first": {"train": {"regress_steps": 20}},
    "seed_1": {"train": {"seed": 1}},  # of the gates' start, the rows and all draws
    "seed_2": {"train": {"seed": 2}},
    # the evaluation, with the gates of base
    "lookahead_2": {"method": {"global_retention": {"lookahead": 2}}},
    "lookahead_128": {"method": {"global_retention": {"lookahead": 128}}},
    "reservoir": {"method": {"global_retention": {"sampler": "reservoir"}}},
}
SHORT = {name: key for name, key in base.SHORT.items() if key not in ("eval.methods", "eval.show_examples")} | {
    "variants": "ablation.variants", "gates": "ablation.gates", "steps": "train.steps", "row": "data.row",
    "learning_rate": "train.learning_rate",
}  # fmt: skip


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()
    config.experiment = "ablation"

    config.ablation = config_dict.ConfigDict()
    config.ablation.variants = ("base", *VARIANTS)  # names of the section variant; base is always there
    config.ablation.gates = ()  # VARIANT=FILE: gates that are not trained here
    config.variant = _nested(VARIANTS)  # what each changes: gate, loss, data, train, cache and method

    config.model.dtype = "fast"  # matrices in bfloat16 on CPU, as in configs/train_retention.py

    # training
    for section in TRAINING:
        config[section] = train_retention.get_config()[section]
    config.dev.every = 0  # steps; 0: no small evaluations on the way

    # evaluation
    del config.eval.methods, config.eval.show_examples  # the one that is trained; all of them
    for name in METHODS:
        del config.method[name].gates  # those that are trained
    config.eval.tasks = ("niah_single_2", "niah_multikey_1", "niah_multivalue")
    config.eval.ratios = (0.25,)
    config.eval.num_examples = 16
    config.eval.seed = 1000  # no reported table uses these samples; 0: the reported ones
    config.eval.batch_size = 8
    config.eval.max_new_tokens = 48
    return base.with_options(config, options, SHORT)


def _nested(fields: Mapping[str, Any]) -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    for name, value in fields.items():
        config[name] = _nested(value) if isinstance(value, Mapping) else value
    return config
