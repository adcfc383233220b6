"""Every scoring system side by side on RULER: streaming, question unknown, two budgets, three tasks.

    python launch.py --config=configs/systems_ruler.py                            # a matter of hours on two CPU cores
    python launch.py --config=configs/systems_ruler.py:methods=full,snapkv,laprox,nexus_sampling
    python launch.py --config=configs/systems_ruler.py:ratio=0.25,n=40
    python launch.py --config=configs/systems_ruler.py:question_mode=query_aware

The embedded model, length 1024, 16 examples per task. `niah_words` is a task of ours whose values are words: a
number is written digit by digit and lost with one of them. A run that is killed continues when it is started again.
Differs from base.py: tasks, methods, ratios, number of examples, dtype.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()

    # tasks: a plain needle, one among four keys, and words for values
    config.eval.tasks = ("niah_single_2", "niah_multikey_1", "niah_words")

    # methods: all that have what they need for the model; the run says which it leaves out
    config.eval.methods = ("all",)
    config.eval.ratios = (0.10, 0.25)  # share of the length
    config.eval.num_examples = 16

    # time: matrices in bfloat16, and examples share every product
    config.model.dtype = "fast"
    config.eval.batch_size = 8
    config.eval.max_new_tokens = 32

    return base.with_options(config, options)
