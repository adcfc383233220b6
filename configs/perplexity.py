"""What does eviction cost in plain language modelling? Perplexity of the last third of long documents.

    python launch.py --config=configs/perplexity.py
    python launch.py --config=configs/perplexity.py:length=4096,n=8,methods=full,streaming_llm,snapkv
    python launch.py --config=configs/perplexity.py:data_dir=/path/to/texts,model=/path/to/model,length=8192

Documents are the essays, which no training of this project reads, or every .txt file of `data_dir`: the first `length`
tokens of each that is long enough. They are streamed under the budget, and every token is judged with what the cache
held before its chunk. Writes report.md and figures/perplexity.png to the run folder; a run that is killed continues.
About ten minutes on two cores. Trained gates come with the embedded model alone.
Differs from base.py: experiment, tasks, length, methods, ratios.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = base.get_config()
    config.experiment = "perplexity"
    config.eval.tasks = ("text",)  # the only one
    config.eval.lengths = (2048,)  # tokens of a document; its last third is judged
    config.eval.methods = ("full", "streaming_llm", "snapkv", "keydiff", "global_retention")
    config.eval.ratios = (0.10, 0.25)
    config.eval.num_examples = 12  # documents
    config.eval.batch_size = 4
    config.eval.full_floor = 0.0  # there is no score to reach
    return base.with_options(config, options)
