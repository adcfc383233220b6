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

from experiments.plan import ConfigError
from experiments.training import dev, report, settings
from experiments.training.progress import Steps
from nexus import gates, record
from nexus.checkpoint import Checkpoints
from nexus.models.load import Model, load_model
from nexus.training import retention, rows, sharding
from nexus.training.retention import Batch, State

Row = dict[str, Any]
resolve = settings.resolve


class Stopped(Exception):
    """SIGTERM arrived and the state is saved."""


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Trains what is missing and writes gates and report."""
    config = settings.resolve(config)
    mesh = _mesh(config)
    model = _load(config, mesh)
    started, log = time.monotonic(), workdir / "train.jsonl"
    environment = record.start_process(workdir)
    data = rows.source(settings.mix(config), model.tokenizer, config.data.rows)
    batches = rows.batches(data, config.train.batch, config.train.seed)
    optimizer, rate = make_optimizer(config)
    state = first_state(config, model, optimizer, mesh)
    step_fn = compiled_step(config, model, optimizer, state)
    checkpoints = Checkpoints(workdir / "checkpoints")
    try:
        state, done = _continue(checkpoints, state, log)
        print(f"{done} of {config.train.steps} steps are done", flush=True)
        train(config, model, step_fn, batches, state, done, checkpoints, log, rate, mesh)
    except Stopped as stopped:
        print(stopped, flush=True)
        return
    finally:
        checkpoints.close()
        record.finish_process(workdir, environment, time.monotonic() - started)
    print(report.write(workdir), flush=True)


def compiled_step(
    config: config_dict.FrozenConfigDict, model: Model, optimizer: optax.GradientTransformation, state: State
) -> Callable[..., Any]:
    """The jitted step; the state stays where it lies on the mesh, and its memory is used again."""
    step = retention.make_step(model.config, settings.gate(config), settings.recipe(config), optimizer)
    return jax.jit(step, donate_argnums=1, out_shardings=(jax.tree.map(lambda x: x.sharding, state), None))


def train(
    config: config_dict.FrozenConfigDict, model: Model, step_fn: Callable[..., Any], batches: Any, state: State,
    done: int, checkpoints: Checkpoints, log: Path, rate: Callable[[int], Any], mesh: Mesh,
) -> None:  # fmt: skip
    """The loop. Raises Stopped after SIGTERM, ConfigError at a loss that is not a number; both leave a checkpoint."""
    total, workdir = config.train.steps, log.parent
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    try:
        with Steps(total, done) as progress:
            for step in range(done, total):
                began = time.monotonic()
                batch = jax.device_put(Batch(*(batches[step][name] for name in Batch._fields)), sharding.by_rows(mesh))
                last, (state, numbers) = state, step_fn(model.params, state, batch)
                del last
                row = {name: float(value) for name, value in numbers.items()}
                if not math.isfinite(row["loss"]):
                    raise ConfigError(
                        f"the loss of step {step} is {row['loss']} (batch {step} of seed {config.train.seed}); "
                        f"the newest checkpoint in {workdir / 'checkpoints'} is of step {checkpoints.latest()}"
                    )
                row = {"step": step, "rate": float(rate(step)), **row, "seconds": round(time.monotonic() - began, 3)}
                record.append_rows(log, [row])
                progress.advance(row)
                if (step + 1) % config.train.save_every == 0 or step + 1 == total or asked:
                    checkpoints.save(step + 1, state, row["loss"])
                if asked:
                    raise Stopped(f"stopped by SIGTERM after step {step}; the same command goes on from there")
                if config.dev.every and ((step + 1) % config.dev.every == 0 or step + 1 == total):
                    save_gates(config, model, state, workdir, step + 1)
                    progress.note(dev.evaluate(config, model, workdir, step + 1))
        save_gates(config, model, state, workdir, total)
    finally:
        signal.signal(signal.SIGTERM, before)


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
    return jax.device_put(state, sharding.of(mesh, state))


def _continue(checkpoints: Checkpoints, state: State, log: Path) -> tuple[State, int]:
    """The newest state and its number of steps; what was logged after it is dropped, it will be computed again."""
    done = checkpoints.latest()
    if done is None:
        log.unlink(missing_ok=True)
        return state, 0
    state = checkpoints.restore(done, jax.tree.map(ocp_shape, state))
    kept = [row for row in record.read_rows(log) if row["step"] < done]
    log.unlink(missing_ok=True)
    record.append_rows(log, kept)
    return state, done


def ocp_shape(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def save_gates(config: config_dict.FrozenConfigDict, model: Model, state: State, workdir: Path, steps: int) -> None:
    """Writes gates.safetensors with where it comes from."""
    about = {
        "method": config.train.method, "steps": steps, "git_commit": record.git_commit(),
        "config_hash": record.config_hash(config.to_dict()), "config": record.plain(config.to_dict()),
    }  # fmt: skip
    gates.save(workdir / "gates.safetensors", state.gates, settings.gate(config), model.config, about)


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
    return mesh


def _load(config: config_dict.FrozenConfigDict, mesh: Mesh) -> Model:
    try:
        model = load_model(config.model.name, dtype=config.model.dtype or None)
    except (KeyError, ValueError, FileNotFoundError) as error:
        raise ConfigError(f"model.name={config.model.name!r}: {error}") from error
    if config.data.row > model.config.max_position:
        raise ConfigError(
            f"data.row={config.data.row} goes beyond the {model.config.max_position} positions of {config.model.name}"
        )
    return dataclasses.replace(model, params=jax.device_put(model.params, sharding.of(mesh, model.params)))
