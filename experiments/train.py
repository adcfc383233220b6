"""Trains retention gates; see configs/train_retention.py.

A run leaves config.json, env.json, train.jsonl (one line per step), dev.jsonl (one line per small evaluation),
checkpoints/, gates.safetensors, report.md and figures/loss.png. Started again on the same folder it goes on from the
newest checkpoint, with the losses an uninterrupted run would have had: data and draws follow from seed and step alone.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import config_dict

from experiments import folder, models
from experiments.plan import ConfigError
from experiments.training import dev, processes, report, settings
from experiments.training.progress import Steps
from experiments.training.resume import resume
from nexus import gates, record
from nexus.checkpoint import Checkpoints
from nexus.models.load import Model
from nexus.training import regression, retention, rows, sharding
from nexus.training.retention import Batch, State

Row = dict[str, Any]
resolve = settings.resolve


class Stopped(Exception):
    """SIGTERM arrived and the state is saved."""


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Trains what is missing and writes gates and report."""
    config = settings.resolve(config)
    processes.start(config.mesh.distributed)
    mesh = _mesh(config)
    model = models.load(config, data__row=config.data.row)
    started, environment = time.monotonic(), None
    samples = dev.samples(config, model)
    if processes.first():
        folder.claim(workdir, config, model)  # only now: a refused model claims no folder
        environment = record.start_process(workdir)
    model = dataclasses.replace(model, params=processes.spread(mesh, model.params))
    data = rows.source(settings.mix(config), model.tokenizer, config.data.rows)
    optimizer, rate = make_optimizer(config)
    state = first_state(config, model, optimizer, mesh)
    checkpoints = Checkpoints(workdir / "checkpoints")
    training = Training(
        config=config, workdir=workdir, model=model, mesh=mesh, checkpoints=checkpoints, rate=rate,
        order=rows.in_order(data, config.train.seed),
        step=compiled_step(config, model, optimizer, state, retention.make_step),
        first_stage=compiled_step(config, model, optimizer, state, regression.make_step),
        samples=samples, commit=record.git_commit(),
    )  # fmt: skip
    try:
        state, done = resume(checkpoints, state, training.log, writes=processes.first())
        _say(f"{done} of {config.train.steps} steps are done")
        train(training, state, done)
    except Stopped as stopped:
        _say(str(stopped))
        return
    finally:
        checkpoints.close()
        if environment is not None:
            record.finish_process(workdir, environment, time.monotonic() - started)
    if processes.first():
        _say(report.write(workdir))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What every step shares."""

    config: config_dict.FrozenConfigDict
    workdir: Path
    model: Model
    mesh: Mesh
    checkpoints: Checkpoints
    order: Any  # rows in the order of the training
    step: Callable[..., Any]
    first_stage: Callable[..., Any]  # the step of the first train.regress_steps
    rate: Callable[[int], Any]
    samples: dev.Samples  # of the small evaluations
    commit: str  # of the code, when the process started

    @property
    def log(self) -> Path:
        return self.workdir / "train.jsonl"

    def batch(self, step: int) -> Batch:
        """The batch of a step; each process reads its own rows."""
        mine = rows.share(self.order, step, self.config.train.batch, jax.process_index(), jax.process_count())
        fields: Any = (mine[name] for name in Batch._fields)
        return processes.joined(self.mesh, Batch(*fields))


def compiled_step(
    config: config_dict.FrozenConfigDict, model: Model, optimizer: optax.GradientTransformation, state: State,
    make: Callable[..., Callable[..., Any]],
) -> Callable[..., Any]:  # fmt: skip
    """A jitted step of `make`; the state stays where it lies on the mesh, and its memory is used again."""
    step = make(model.config, settings.gate(config), settings.recipe(config), optimizer)
    return jax.jit(step, donate_argnums=1, out_shardings=(jax.tree.map(lambda x: x.sharding, state), None))


def train(t: Training, state: State, done: int) -> None:
    """The loop. Raises ConfigError at a loss that is not a number; the last checkpoint is left.

    After SIGTERM it saves the step at hand and raises Stopped, after Ctrl-C KeyboardInterrupt; a second Ctrl-C does not
    wait for the step.
    """
    total, dev_every = t.config.train.steps, t.config.dev.every
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if number == signal.SIGINT and asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Steps(total, done, quiet=not processes.first()) as progress:
            for step in range(done, total):
                began = time.monotonic()
                chosen = t.first_stage if step < t.config.train.regress_steps else t.step
                state, numbers = chosen(t.model.params, state, t.batch(step))
                row = _row(t, step, numbers, began)
                if processes.first():
                    record.append_rows(t.log, [row])
                progress.advance(row)
                stop = processes.any_of(bool(asked))
                if (step + 1) % t.config.train.save_every == 0 or step + 1 == total or stop:
                    t.checkpoints.save(step + 1, state, row["loss"])
                if signal.SIGINT in asked:
                    raise KeyboardInterrupt
                if stop:
                    raise Stopped(f"stopped by SIGTERM after step {step}; the same command goes on from there")
                if dev_every and ((step + 1) % dev_every == 0 or step + 1 == total):
                    save_gates(t, state, step + 1)
                    progress.note(dev.evaluate(t.config, t.model, t.samples, t.workdir, step + 1))
        save_gates(t, state, total)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _row(t: Training, step: int, numbers: dict[str, jax.Array], began: float) -> Row:
    """The line of a step. Raises ConfigError for a loss that is not a number."""
    row = {name: float(value) for name, value in numbers.items()}
    wrong = next((name for name in ("loss", "grad_norm") if not math.isfinite(row.get(name, 0.0))), None)
    if wrong:
        raise ConfigError(
            f"the {wrong} of step {step} is {row[wrong]} (batch {step} of seed {t.config.train.seed}); "
            f"the newest checkpoint in {t.workdir / 'checkpoints'} is of step {t.checkpoints.latest()}"
        )
    return {"step": step, "rate": float(t.rate(step)), **row, "seconds": round(time.monotonic() - began, 3)}


def _say(text: str) -> None:
    if processes.first():
        print(text, flush=True)


def make_optimizer(config: config_dict.FrozenConfigDict) -> tuple[optax.GradientTransformation, Callable[[int], Any]]:
    """AdamW on the gates with warm-up, cosine to a tenth, clipping; gradients of `accumulate` steps are averaged."""
    train = config.train
    updates = -(-train.steps // train.accumulate)
    warmup = -(-train.warmup // train.accumulate)
    peak = train.learning_rate
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(updates, warmup + 1), peak / 10)
    clipped = optax.chain(
        optax.clip_by_global_norm(train.clip),
        optax.adamw(rate, b2=train.b2, weight_decay=train.weight_decay, mask=_decayed),
    )
    wrapped = optax.MultiSteps(clipped, train.accumulate).gradient_transformation() if train.accumulate > 1 else clipped
    return wrapped, lambda step: rate(step // train.accumulate)


def _decayed(tree: Any) -> Any:
    """Matrices are decayed, biases are not."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key.startswith("w"), tree)


def first_state(
    config: config_dict.FrozenConfigDict, model: Model, optimizer: optax.GradientTransformation, mesh: Mesh
) -> State:
    """Untrained gates, and what the optimiser remembers of them."""
    key = jax.random.key(config.train.seed)
    fresh = gates.init(model.config, settings.gate(config), jax.random.fold_in(key, 0))
    draws = jax.random.key_data(jax.random.fold_in(key, 1))
    state = State(jnp.zeros((), jnp.int32), fresh, optimizer.init(fresh), draws)
    return processes.spread(mesh, state)


def save_gates(t: Training, state: State, steps: int) -> None:
    """Writes gates.safetensors with where it comes from."""
    about = {
        "method": t.config.train.method, "steps": steps, "git_commit": t.commit,
        "config_hash": record.config_hash(t.config.to_dict()), "config": record.plain(t.config.to_dict()),
    }  # fmt: skip
    found = processes.whole(state.gates)
    if processes.first():
        gates.save(t.workdir / "gates.safetensors", found, settings.gate(t.config), t.model.config, about)


def _mesh(config: config_dict.FrozenConfigDict) -> Mesh:
    """Raises ConfigError for a mesh that the devices or the batch do not fit."""
    try:
        mesh = sharding.make_mesh(settings.mesh(config))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.train.batch % sharding.row_shards(mesh):
        raise ConfigError(
            f"train.batch={config.train.batch} rows cannot be shared by {sharding.row_shards(mesh)} devices "
            "(mesh.data x mesh.fsdp)"
        )
    if config.train.batch % jax.process_count():
        raise ConfigError(f"train.batch={config.train.batch} cannot be shared by {jax.process_count()} processes")
    if config.dev.every and jax.process_count() > 1:
        raise ConfigError("several processes train without small evaluations: set dev.every=0")
    return mesh
