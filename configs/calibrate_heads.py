"""Finds the retrieval heads of a model and how much each layer suffers from compression, for the method compresskv.

    python launch.py --config=configs/calibrate_heads.py
    python launch.py --config=configs/calibrate_heads.py:model=/path/to/model,lengths=1024,2048,4096,depths=10

Writes trials.jsonl (one line per text, as it finishes) and calibration.json; the same command continues a run that was
stopped. Use the file with `--config.method.compresskv.calibration=RUN_FOLDER/calibration.json`. Minutes on two cores
for the embedded model. Texts are generated and disjoint from every evaluation; a folder of .txt files may take the
place of the filler, and is refused where an evaluation uses it.
"""

from __future__ import annotations

from ml_collections import config_dict

from configs import base

OPTIONS = ("needles", "lengths", "depths", "samples", "heads", "kept", "answer", "recall", "folder", "seed")
SHORT = {name: f"calibrate.{name}" for name in OPTIONS} | {
    "length": "calibrate.lengths",
    "model": "model.name",
    "dtype": "model.dtype",
}


def get_config(options: str = "") -> config_dict.ConfigDict:
    config = config_dict.ConfigDict()
    config.experiment = "calibrate_heads"

    config.model = config_dict.ConfigDict()
    config.model.name = "smollm2-135m-instruct"
    config.model.dtype = ""  # float32 | bfloat16 | mixed | fast; empty: float32 on CPU, else bfloat16

    config.calibrate = config_dict.ConfigDict()
    config.calibrate.needles = 3  # each in a text of its own
    config.calibrate.lengths = (256, 512)  # tokens of a text, about
    config.calibrate.depths = 5  # places of the needle, from the beginning to the end
    config.calibrate.samples = 8  # texts for the error of the layers, longest length, other needles and filler
    config.calibrate.heads = 4  # listed heads of every layer
    config.calibrate.kept = 32  # entries a layer reads when its error is measured, the last 8 included
    config.calibrate.answer = 16  # generated tokens, at most
    config.calibrate.recall = 0.5  # an answer counts above this share of the needle's words
    config.calibrate.folder = ""  # of .txt files: filler in the place of generated sentences
    config.calibrate.seed = 0
    return base.with_options(config, options, SHORT)
