"""LongBench, and a look-alike that needs no data: which kinds of tasks does an eviction method hurt?

    python launch.py --config=configs/longbench.py
    python launch.py --config=configs/longbench.py:methods=all,n=20
    python launch.py --config=configs/longbench.py:tasks=longbench,length=8192,n=500 --config.eval.data_dir=/data/lb
    python launch.py --config=configs/longbench.py:tasks=longbench_e,length=8192,n=100 --config.eval.data_dir=/data/lb

The first command needs no data and no accelerator: the embedded model on six kinds of tasks made here
(`longbench_like`: questions on one text and on several, few-shot topics, counting and finding paragraphs, code), 1024
tokens, 10 examples each, the question unknown while the cache is compressed. A 135M model does not solve all of them;
where its full cache stays below the floor nothing is compared.

LongBench itself (`longbench`: the 16 English and code tasks; `longbench_e`: 13 of them, in three buckets of length)
is read from <data_dir>/<task>.jsonl and <data_dir>/<task>_e.jsonl, or without data_dir from the hub (THUDM/LongBench).
`length` limits prompt and answer together; longer texts lose their middle, and the run says how many. n=500 takes every
record, batch=1 saves memory. The wording is ours, so scores are not those of papers;
--config.eval.strict_upstream=True scores trec with the slip of LongBench's own code.

Writes report.md, report.html, report.csv and figures to the run folder; a run that is killed continues where it
stopped. Differs from base.py: tasks, methods, ratio, batches.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # tasks: six kinds, made here
    config.eval.tasks = ("longbench_like",)

    # methods: the full cache, three baselines, and gates trained for the embedded model
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.25,)  # share of the length

    # time: ten examples share every product
    config.eval.batch_size = 10

    return base.with_options(config, options)
