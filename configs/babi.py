"""Facts of a small world in a long text: where is a person, an object, and where was the object before?

    python launch.py --config=configs/babi.py
    python launch.py --config=configs/babi.py:length=2048,n=20
    python launch.py --config=configs/babi.py --config.eval.tasks=babilong --config.eval.data_dir=FOLDER

After BABILong: several facts that belong together are scattered in essays, the latest counts, and the question comes
last. Unlike a needle, no single fact looks important when it is read. The default are the tasks of our own
(`babi_nexus_qa1..qa3`); the third command reads BABILong's (FOLDER/data/qa1/1k.json and so on, or the hub). Both are
scored by BABILong's strict rule: the right label alone in the first sentence.

Embedded model, lengths 512 and 1024, full cache and four methods at 25 %. Guessing a place is right in one case of
six, so the floor of 25 lies above it. Differs from base.py: tasks, lengths, methods, ratio, number of examples, batch.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # tasks
    config.eval.tasks = ("babi",)
    config.eval.lengths = (512, 1024)
    config.eval.num_examples = 16

    # methods
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.25,)  # share of the length

    # time: examples share every product
    config.eval.batch_size = 8

    return base.with_options(config, options)
