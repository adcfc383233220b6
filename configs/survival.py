"""How long does an entry live? Survival over many evictions when blocks are ranked against when they are drawn.

    python launch.py --config=configs/survival.py
    python launch.py --config=configs/survival.py:parts=simulation
    python launch.py --config=configs/survival.py:length=4096,budget=256,texts=8
    python launch.py --config=configs/survival.py:model=tiny-llama,length=256,budget=32,chunk=16,ages=4,texts=2,rows=2

The first part is a simulation: entries of lognormal worth that is seen through noise at every eviction. The second is
nexus_sampling on the embedded model, reading essays in chunks, with the same samplers. About five minutes on two cores.
Expected: in the simulation light entries are gone after one or two evictions under `top`; the reservoir gives them and
the middle ones a tail, and keeps fewer of the heavy ones over many evictions. On the embedded model the curves of one
layer are close to each other; at medium ages more positions are held by some layer when blocks are drawn.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

OPTIONS = (
    "parts", "powers", "draws", "ages", "seed", "kept", "arrivals", "cohorts", "repeats", "spread", "noise", "length",
    "budget", "chunk", "texts", "rows",
)  # fmt: skip
SHORT = {name: f"survival.{name}" for name in OPTIONS} | {"model": "model.name", "dtype": "model.dtype"}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.experiment = "survival"

    config.model = config_dict.ConfigDict()
    config.model.name = "smollm2-135m-instruct"
    config.model.dtype = "float32"

    config.survival = config_dict.ConfigDict()
    config.survival.parts = ("simulation", "model")
    config.survival.powers = (1.0, 2.0)  # reservoirs to compare with top: exponents of the weight
    config.survival.draws = 1  # n of the reservoir
    config.survival.ages = 16  # evictions an entry is followed over
    config.survival.seed = 0

    # simulation
    config.survival.kept = 64  # entries kept at every eviction
    config.survival.arrivals = 16  # new ones between two evictions
    config.survival.cohorts = 16  # evictions whose arrivals are followed
    config.survival.repeats = 200  # independent caches
    config.survival.spread = 1.0  # standard deviation of the log worth of entries
    config.survival.noise = 0.5  # ... and of the log noise at every eviction

    # model
    config.survival.length = 1024  # tokens read
    config.survival.budget = 128  # kept entries per layer and kv head
    config.survival.chunk = 32  # tokens between two evictions
    config.survival.texts = 4  # different pieces of the essays
    config.survival.rows = 2  # draws of every text
    return base.with_options(config, options, SHORT)
