"""RULER in the protocol of most papers: full prefill, one eviction, then decoding under the budget.

    python launch.py --config=configs/oneshot_ruler.py
    python launch.py --config=configs/oneshot_ruler.py:question_mode=query_aware
    python launch.py --config=configs/oneshot_ruler.py:methods=full,snapkv,laprox,kvzip,n=40

The embedded model, length 1024, three tasks, 16 examples each; every method that has what it needs for the model,
question unknown at the cut. Set this table beside the streaming one of configs/systems_ruler.py before a paper's
claim is compared: memory is not at the budget until the cut. Differs from systems_ruler.py: protocol.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base, systems_ruler


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = systems_ruler.get_config()
    config.eval.protocol = "oneshot"
    return base.with_options(config, options)
