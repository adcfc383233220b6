"""Needle maps: at which depth of a text, and at which length, does a method lose a sentence that the full cache finds?

    python launch.py --config=configs/niah.py
    python launch.py --config=configs/niah.py:lengths=512,1024,2048,depths=0,10,50,90,100,needles=12
    python launch.py --config=configs/niah.py:methods=all,ratios=0.1,0.25
    python launch.py --config=configs/niah.py:limit=1,lengths=512,depths=50,100

The embedded model; one invented sentence in essays, 3 different ones (of 12) for each length and depth, then the
question about it. The answer is free text: `score` is the share of key phrases in it, `rouge1_recall` the share of the
needle's words. The report shows a map of depth and length per method and budget, and its difference to the full cache.
The first depth, 0 %, stands in the maps but not in the means: at the very start methods protect tokens whatever they
are worth. No floor: a map would have holes. With data_dir=FOLDER the haystack is FOLDER/essays/*.txt instead of the
essays package. After the colon `depths` are whole per cents, `needles` is another name of n.
Differs from base.py: tasks, lengths, methods, ratio, examples, floor.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

SHORT = base.SHORT | {"needles": "eval.num_examples", "depths": "eval.tasks"}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # grid: a task per depth
    config.eval.lengths = (512, 1024, 1536)
    config.eval.tasks = ("0", "25", "50", "75", "100")
    config.eval.num_examples = 3
    config.eval.full_floor = 0.0

    # methods
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.25,)  # share of the length

    # time: the needles of a cell are answered together
    config.eval.batch_size = 3

    config = base.with_options(config, options, SHORT)
    config.eval.tasks = tuple(f"needle_map_{task}" if task.isdigit() else task for task in config.eval.tasks)
    return config
