"""Dilution: how much attention is left for what matters when the cache grows, and does eviction give it back?

    python launch.py --config=configs/dilution.py
    python launch.py --config=configs/dilution.py:parts=theory
    python launch.py --config=configs/dilution.py:parts=model,lengths=1024,4096,budgets=256,methods=full,keydiff,n=20
    python launch.py --config=configs/dilution.py:parts=decay,text_length=4096,texts=16

Three parts, after "Make Each Token Count" (arXiv 2605.09649). Theory: synthetic logits, the mass on useful entries
against the number of distractors, beside the bound of Prop. 3.1, and a selective cache whose score is noisy. Model: the
attention that the embedded model pays a needle while it answers, with the full cache and under a budget, head by head,
and the score of its answer. Decay: attention by age on essays, a geometric law and a power law fitted to it, and what
the shipped gates say of the same tokens.
Writes report.md and figures/ to the run folder; a run that is killed continues where it stopped.
Differs from base.py: tasks, lengths, methods, budgets, no floor.
"""

from __future__ import annotations

import re

from ml_collections import config_dict

from configs import base

OPTIONS = (
    "parts", "useful", "margins", "noises", "distractors", "draws", "kept", "separations", "pilots", "heads",
    "text_length", "texts", "bins", "gates",
)  # fmt: skip
SHORT = base.SHORT | {name: f"dilution.{name}" for name in OPTIONS}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()
    config.experiment = "dilution"

    # model
    config.model.dtype = "float32"
    config.eval.tasks = ("niah_single_2", "niah_multikey_1")
    config.eval.lengths = (512, 1024, 2048)
    config.eval.methods = ("full", "streaming_llm", "keydiff", "global_retention")
    config.eval.budgets = (128,)  # the same at every length: what grows is the text
    config.eval.num_examples = 6
    config.eval.max_new_tokens = 32
    config.eval.full_floor = 0.0  # attention is looked at whatever the answer is
    config.eval.show_examples = 0

    config.dilution = config_dict.ConfigDict()
    config.dilution.parts = ("theory", "model", "decay")
    config.dilution.pilots = 4  # samples per task that only say which heads retrieve
    config.dilution.heads = 10  # of all query heads of the model, the ones that are followed

    # theory
    config.dilution.useful = 4  # m
    config.dilution.margins = (0.0, 2.0, 4.0)  # of useful logits over distractors, mean
    config.dilution.noises = (0.5, 1.0, 2.0)  # standard deviation of all logits
    config.dilution.distractors = (16, 64, 256, 1024, 4096, 16384)  # n
    config.dilution.draws = 200
    config.dilution.kept = 64  # M of the selective cache
    config.dilution.separations = (0.0, 1.0, 2.0, 4.0)  # of the score: useful against distractor, in its own noise

    # decay
    config.dilution.text_length = 2048  # tokens; ages up to half of it are measured
    config.dilution.texts = 8  # different pieces of the essays
    config.dilution.bins = 24  # ranges of ages
    config.dilution.gates = "global_retention"  # asked about the same tokens; empty: none

    config = base.with_options(config, options, SHORT)
    if config.model.name != base.EMBEDDED and not re.search(r"(^|,)\s*gates\s*=", options):
        config.dilution.gates = ""  # none are shipped; named ones stay, and are refused where they do not fit
    return config
