"""Trains the soft tokens of Judge Q; see configs/train_judgeq.py.

First the model answers every prompt, greedily and with a full cache; then the rows are fitted. Which example is in
which step follows from the seed alone, so a training that is continued has the losses an uninterrupted one would.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import config_dict

from experiments import folder, models, values
from experiments.plan import ConfigError
from experiments.progress import time_left
from experiments.training.resume import resume
from nexus import methods, probes, record
from nexus.checkpoint import Checkpoints
from nexus.generate import Session, Settings
from nexus.models.config import ASKED
from nexus.models.load import Model
from nexus.training import records, soft_queries
from nexus.training.soft_queries import Batch, State

ANSWERED = 8  # prompts answered together
BLOCK = 128  # prompts are padded to a multiple: their attention goes in blocks
PRINT_EVERY = 5  # steps
Example = dict[str, list[int]]


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The checked config. Raises ValueError for anything that cannot run."""
    data, train = config.data, config.train
    for name, value, least in (
        ("data.length", data.length, 64), ("data.response", data.response, 1), ("data.examples", data.examples, 1),
        ("train.rows", train.rows, 1), ("train.steps", train.steps, 1), ("train.batch", train.batch, 1),
        ("train.warmup", train.warmup, 0), ("train.seed", train.seed, 0), ("train.save_every", train.save_every, 1),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    for name in ("learning_rate", "clip"):
        if not train[name] > 0:
            raise ValueError(f"train.{name} must be above 0, got {train[name]}")
    if train.batch > data.examples:
        raise ValueError(f"train.batch={train.batch} is more than data.examples={data.examples}")
    if train.warmup >= train.steps:
        raise ValueError(f"train.warmup={train.warmup} must be below train.steps={train.steps}")
    if unknown := set(data.kinds) - set(records.KINDS):
        raise ValueError(f"data.kinds {', '.join(sorted(unknown))}; allowed: {', '.join(records.KINDS)}")
    values.one_of("model.dtype", config.model.dtype, ("", *ASKED))
    return config_dict.FrozenConfigDict(config)


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Answers what is not answered yet, trains what is missing, and writes judgeq.safetensors."""
    config = resolve(config)
    model = models.load(config, data__length=config.data.length + config.data.response)
    folder.claim(workdir, config, model)  # only now: a refused model claims no folder
    started, environment = time.monotonic(), record.start_process(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints")
    try:
        rows = train(config, model, answered(config, model, workdir / "responses.jsonl"), checkpoints, workdir)
    finally:
        checkpoints.close()
        record.finish_process(workdir, environment, time.monotonic() - started)
    about = {"steps": config.train.steps, "git_commit": record.git_commit(), "config": record.plain(config.to_dict())}
    probes.save(workdir / "judgeq.safetensors", rows, model.config, about)
    print(workdir / "judgeq.safetensors", flush=True)


# --- data ---------------------------------------------------------------------------------------------------------


def prompt(config: config_dict.FrozenConfigDict, model: Model, index: int) -> list[int]:
    """Tokens of example `index` up to the model's first answer."""
    kind = config.data.kinds[index % len(config.data.kinds)]
    made = records.document(kind, model.tokenizer, config.data.length, config.train.seed, index)
    return made.tokens[: int(np.argmax(made.answer))].tolist()


def answered(config: config_dict.FrozenConfigDict, model: Model, path: Path) -> list[Example]:
    """All examples; answers are kept in `path` as they come."""
    done: list[Example] = record.read_rows(path)
    method, total = methods.build("full", budget=1), config.data.examples
    capacity = -(-config.data.length // BLOCK) * BLOCK + config.data.response
    began, fresh = time.monotonic(), len(done)
    while len(done) < total:
        prompts = [prompt(config, model, i) for i in range(len(done), min(len(done) + ANSWERED, total))]
        session = Session(model, method, Settings(), len(prompts), capacity=capacity)
        session.feed(prompts)
        answers = session.generate(config.data.response)
        new = [{"prompt": p, "response": a or [p[-1]]} for p, a in zip(prompts, answers, strict=True)]
        record.append_rows(path, new)
        done += new
        print(
            f"{len(done)} of {total} prompts answered, {time_left(began, len(done) - fresh, total - len(done))} left",
            flush=True,
        )
    return done


def batch(config: config_dict.FrozenConfigDict, examples: list[Example], step: int) -> Batch:
    """The batch of a step: each epoch in an order of its own."""
    B, n = config.train.batch, len(examples)
    per_epoch = n // B
    order = np.random.default_rng([config.train.seed, step // per_epoch]).permutation(n)
    chosen = [examples[i] for i in order[step % per_epoch * B :][:B]]
    P = -(-config.data.length // BLOCK) * BLOCK

    def padded(name: str, width: int) -> tuple[jax.Array, jax.Array]:
        out = np.zeros((B, width), np.int32)
        for row, example in zip(out, chosen, strict=True):
            row[: len(example[name])] = example[name]
        return jnp.asarray(out), jnp.asarray([len(example[name]) for example in chosen], jnp.int32)

    return Batch(*padded("prompt", P), *padded("response", config.data.response))


# --- training -----------------------------------------------------------------------------------------------------


def train(
    config: config_dict.FrozenConfigDict, model: Model, examples: list[Example], checkpoints: Checkpoints, workdir: Path
) -> jax.Array:
    """The rows after all steps. Raises ConfigError at a loss that is not a number."""
    settings, log = config.train, workdir / "train.jsonl"
    rate = optax.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, settings.warmup, settings.steps, settings.learning_rate / 10
    )
    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip), optax.adamw(rate, weight_decay=0.0))
    step_fn = jax.jit(soft_queries.make_step(model.config, optimizer))
    rows = probes.init(model.params["embed"], settings.rows, settings.seed)
    state, done = resume(checkpoints, State(rows, optimizer.init(rows)), log)
    began = time.monotonic()
    for step in range(done, settings.steps):
        state, loss = step_fn(model.params, state, batch(config, examples, step))
        if not math.isfinite(value := float(loss)):
            raise ConfigError(
                f"the loss of step {step} is {value}; the newest checkpoint is of step {checkpoints.latest()}"
            )
        record.append_rows(log, [{"step": step, "loss": value, "rate": float(rate(step))}])
        if (step + 1) % settings.save_every == 0 or step + 1 == settings.steps:
            checkpoints.save(step + 1, state, value)
        if step % PRINT_EVERY == 0 or step + 1 == settings.steps:
            left = time_left(began, step + 1 - done, settings.steps - step - 1)
            print(f"step {step:>5}  loss {value:.5f}  {left} left", flush=True)
    return state.rows
