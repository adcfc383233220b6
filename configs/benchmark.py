"""How fast and how small: the streaming cache beside our own full cache and, where installed, the torch packages.

    python launch.py --config=configs/benchmark.py
    python launch.py --config=configs/benchmark.py:parts=layout,repeats=9
    python launch.py --config=configs/benchmark.py:dtype=float32
    python launch.py --config=configs/benchmark.py:against_dtype=bfloat16
    python launch.py --config=configs/benchmark.py:model=tiny-llama,lengths=512,parts=prefill+decode+memory,against=

The embedded model. Everything is timed in turn (A B C A B C ...) after a warm-up, in one process, and reported as
ratios. transformers and kvpress are compared with where they can be imported (requirements-parity.txt); elsewhere the
report says that they are not installed. Close what else runs on the machine first.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

OPTIONS = (
    "parts", "against", "against_dtype", "budget", "equal", "unequal", "systems", "repeats", "seed", "lengths",
    "chunks", "batches", "decode_steps", "evict_every", "task", "cell_length", "cell_prompts", "cell_batch",
    "cell_repeats",
)  # fmt: skip
SHORT = {name: f"bench.{name}" for name in OPTIONS} | {
    "length": "bench.lengths",
    "model": "model.name",
    "dtype": "model.dtype",
}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.experiment = "benchmark"

    config.model = config_dict.ConfigDict()
    config.model.name = "smollm2-135m-instruct"
    config.model.dtype = "mixed"  # float32 | bfloat16 | mixed: what we compute in

    config.bench = config_dict.ConfigDict()
    config.bench.parts = ("prefill", "decode", "layout", "memory", "systems", "cell")
    config.bench.against = ("transformers", "kvpress")  # compared with where they are installed; empty: with neither
    config.bench.against_dtype = "float32"  # float32 | bfloat16: what they compute in, on the same weights
    config.bench.budget = 256  # kept entries per layer and kv head
    config.bench.equal = "streaming_llm"  # a method whose heads all hold the budget
    config.bench.unequal = "snapkv"  # one that is run with equal heads and with allocator=global
    config.bench.repeats = 5  # timings of each contender, in turn
    config.bench.seed = 0

    # prefill and decode
    config.bench.lengths = (4096,)  # tokens of a prompt
    config.bench.chunks = (128, 512)  # tokens of one prefill step; the first one wherever only one is used
    config.bench.batches = (1, 8)  # sequences decoded together
    config.bench.decode_steps = 64  # tokens generated in one timing
    config.bench.evict_every = 32  # decoded tokens between two evictions

    # layout: the same entries in heads of equal and of unequal length
    config.bench.spread = (15, 710)  # rows of the shortest and the longest head; their mean is the budget
    config.bench.chunk_at_most = 1.15  # unequal over equal that we allow ourselves, one chunk
    config.bench.decode_at_most = 1.1  # ... and decoding

    # memory: nothing runs, compiled programs tell
    config.bench.memory_prompts = (1024, 32768)  # tokens of a padded prompt, streaming
    config.bench.memory_full = (1024, 4096, 8192)  # the same for the full cache

    # systems: what every method costs beside the model
    config.bench.systems = ("all",)  # methods
    config.bench.method_at_most = 0.15  # share of a chunk that we allow a method

    # cell: one RULER cell from prompts to answers
    config.bench.task = "niah_single_2"
    config.bench.cell_length = 4096
    config.bench.cell_prompts = 16
    config.bench.cell_batch = 4  # prompts answered together on our side; kvpress takes one at a time
    config.bench.cell_repeats = 1
    return base.with_options(config, options, SHORT)
