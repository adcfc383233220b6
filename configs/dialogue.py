"""Many questions on one cache: what does eviction lose turn by turn, and how far back can it still look?

    python launch.py --config=configs/dialogue.py
    python launch.py --config=configs/dialogue.py:n=20,questions=8,length=2048
    python launch.py --config=configs/dialogue.py:history=own,modes=multi_turn
    python launch.py --config=configs/dialogue.py:tasks=all,length=2048

multi_turn: one buffer lives over a whole conversation. Each question follows the earlier ones with their golden answers
(or, with history=own, the model's own). multi_request: the context is read once, every question is asked of that same
cached state. Tasks made here: facts_told (told early, asked late, talk in between), scb_kv, scb_prefix_suffix, scb_mf,
scb_vt (look-alikes of SCBench's, never to be called SCBench). Read from files in data_dir: scbench_* (<task>.jsonl),
longmemeval (longmemeval.json), mt_bench_101 (mtbench101.jsonl); L is then what contexts are cut to, in the middle.

The embedded model, one budget. Writes report.md (score per turn and by distance with 95 % intervals), a figure of both,
predictions.jsonl, metrics.jsonl, and answers/ for the official scorers of LongMemEval and MT-Bench-101. A run that is
killed continues where it stopped when it is started again. Where the full cache stays below the floor, nothing else is
run: the embedded model can do facts_told and none of the look-alikes; scb_kv needs more than 1024 tokens anyway.
Differs from base.py: tasks, methods, ratios, and the section dialogue.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

SHORT = base.SHORT | {name: f"dialogue.{name}" for name in ("modes", "history", "questions")}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()
    config.experiment = "dialogue"

    # dialogue
    config.dialogue = config_dict.ConfigDict()
    config.dialogue.modes = ("multi_turn", "multi_request")
    config.dialogue.history = "golden"  # golden: given answers stand in the history | own: the model's own
    config.dialogue.questions = 5  # asked turns of conversations that are made here

    # tasks: what the full cache of this model can do
    config.eval.tasks = ("facts_told",)

    # methods: the full cache, three baselines, and gates trained for the embedded model
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.25,)  # share of the length

    # time: conversations share every product; no answer of the look-alikes needs more tokens, rambling is cut short
    config.eval.num_examples = 12
    config.eval.batch_size = 12
    config.eval.max_new_tokens = 40

    return base.with_options(config, options, SHORT)
