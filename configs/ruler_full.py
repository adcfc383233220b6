"""All of RULER: what is lost on each of its tasks when a quarter of the cache is kept?

    python launch.py --config=configs/ruler_full.py
    python launch.py --config=configs/ruler_full.py:length=4096,n=20
    python launch.py --config=configs/ruler_full.py --config.eval.tasks=ruler --config.eval.data_dir=FOLDER
    python launch.py --config=configs/ruler_full.py --config.eval.tasks=ruler --config.eval.ruler_source=kvpress

Two of the 13 tasks are made of other people's questions: qa_1 needs `dev-v2.0.json` (SQuAD v2.0), qa_2
`hotpot_dev_distractor_v1.json` (HotpotQA), in FOLDER (or the hub, where it can be reached); with them the set is
complete: the third command. Without them this config runs the other eleven and two look-alikes of our own,
`qa_nexus_1` and `qa_nexus_2`, which are reported by these names and never counted as RULER's. ruler_source=files reads
tasks made with NVIDIA/RULER (FOLDER/<task>/validation.jsonl), ruler_source=kvpress those of the kvpress data set.

Embedded model, length 1024, full cache and four methods at 25 %. Tasks on which the full cache of so small a model
stays below the floor are named and not compared. qa_2 needs its ten paragraphs: length 2048 or more as a rule.
Differs from base.py: tasks, methods, ratio, number of examples, batch.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # tasks: RULER's eleven that need no files, and look-alikes of the two that do
    config.eval.tasks = (
        "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
        "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_nexus_1", "qa_nexus_2",
    )  # fmt: skip
    config.eval.num_examples = 6

    # methods
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.25,)  # share of the length

    # time: examples share every product
    config.eval.batch_size = 6

    return base.with_options(config, options)
