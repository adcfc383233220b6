"""One process of a training, run by test_sharding.py: arguments are the run folder and, for a kill, a step to die at.

Whether it is alone or one of several, and with how many devices, is said by the environment.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configs import train_retention  # noqa: E402  (after the path)
from experiments import train  # noqa: E402
from experiments.training.progress import Steps  # noqa: E402
from nexus import record  # noqa: E402
from nexus.training import rows, texts  # noqa: E402
from tests.training.conftest import PROSE  # noqa: E402

folder, dies_at = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
texts.library = lambda: (PROSE,)  # type: ignore[assignment]
rows.BLOCK = 8
config = train_retention.get_config("model=tiny-llama,dtype=float32,steps=6,batch=4,row=1024,budget=8")
config.train.save_every, config.train.warmup, config.data.rows, config.dev.every = 2, 2, 8, 0
config.gate.width, config.gate.bias = 8, 2.0
config.mesh.distributed, config.mesh.fsdp = True, 2

advance = Steps.advance


def die(self: Steps, row: dict) -> None:
    advance(self, row)
    if row["step"] == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)


Steps.advance = die  # type: ignore[method-assign]
record.open_workdir(folder, train.resolve(config).to_dict())
train.run(config, folder)
