"""A small evaluation on the way of a training: RULER samples of a seed that no report uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import config_dict

from experiments import plan
from nexus import answers, generate, methods, metrics, record
from nexus.models.load import Model
from nexus.tasks import catalog
from nexus.tasks.example import Example

Samples = dict[str, Sequence[Example]]


def samples(config: config_dict.FrozenConfigDict, model: Model) -> Samples:
    """The examples of each task, made before the first step. Raises ConfigError for a task that cannot be made."""
    dev = config.dev
    request = catalog.Request(tokenizer=model.tokenizer, length=dev.length, n=dev.num_examples, seed=dev.seed)
    return {task: _made(task, request) for task in dev.tasks} if dev.every else {}


def _made(task: str, request: catalog.Request) -> Sequence[Example]:
    try:
        return catalog.examples(task, request)
    except ValueError as error:
        raise plan.of_task(task, request.length, error) from error


def evaluate(config: config_dict.FrozenConfigDict, model: Model, of: Samples, workdir: Path, step: int) -> str:
    """Scores the gates of the run folder, appends a line per budget to dev.jsonl and returns lines for a person."""
    return "\n".join(_at_budget(config, model, of, workdir, step, ratio) for ratio in config.dev.ratios)


def _at_budget(
    config: config_dict.FrozenConfigDict, model: Model, of: Samples, workdir: Path, step: int, ratio: float
) -> str:
    dev = config.dev
    gates = str(workdir / "gates.safetensors")
    method = methods.build(config.train.method, budget=round(ratio * dev.length), gates=gates)
    scores = {task: _score(config, model, method, examples) for task, examples in of.items()}
    about = {"step": step, "budget": method.budget, "length": dev.length, "n": dev.num_examples, "seed": dev.seed}
    record.append_rows(workdir / "dev.jsonl", [about | scores])
    mean, each = float(np.mean(list(scores.values()))), ", ".join(f"{task} {x:.1f}" for task, x in scores.items())
    return f"dev after {step} steps, budget {method.budget}: mean {mean:.1f}; {each}"


def _score(
    config: config_dict.FrozenConfigDict, model: Model, method: methods.Method, examples: Sequence[Example]
) -> float:
    prompts = [model.tokenizer.prompt(e.context, e.question, e.answer_prefix) for e in examples]
    contexts, questions = [list(ids) for ids in zip(*prompts, strict=True)]
    limit = min(examples[0].max_new_tokens, 48)
    rng = jax.random.key(config.dev.seed)
    found = answers.answer_batch(model, method, generate.Settings(), contexts, questions, limit, rng=rng)
    texts = [model.tokenizer.decode(tokens) for tokens in found.tokens]
    return float(np.mean([metrics.score(example, text) for example, text in zip(examples, texts, strict=True)]))
