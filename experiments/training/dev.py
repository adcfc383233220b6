"""A small evaluation on the way of a training: RULER samples of a seed that no report uses."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from ml_collections import config_dict

from nexus import answers, generate, methods, metrics, record
from nexus.models.load import Model
from nexus.tasks import catalog


def evaluate(config: config_dict.FrozenConfigDict, model: Model, workdir: Path, step: int) -> str:
    """Scores the gates of the run folder, appends a line per budget to dev.jsonl and returns lines for a person."""
    return "\n".join(_at_budget(config, model, workdir, step, ratio) for ratio in config.dev.ratios)


def _at_budget(config: config_dict.FrozenConfigDict, model: Model, workdir: Path, step: int, ratio: float) -> str:
    dev = config.dev
    gates = str(workdir / "gates.safetensors")
    method = methods.build(config.train.method, budget=round(ratio * dev.length), gates=gates)
    scores = {task: _score(config, model, method, task) for task in dev.tasks}
    about = {"step": step, "budget": method.budget, "length": dev.length, "n": dev.num_examples, "seed": dev.seed}
    record.append_rows(workdir / "dev.jsonl", [about | scores])
    mean, each = float(np.mean(list(scores.values()))), ", ".join(f"{task} {x:.1f}" for task, x in scores.items())
    return f"dev after {step} steps, budget {method.budget}: mean {mean:.1f}; {each}"


def _score(config: config_dict.FrozenConfigDict, model: Model, method: methods.Method, task: str) -> float:
    dev = config.dev
    request = catalog.Request(tokenizer=model.tokenizer, length=dev.length, n=dev.num_examples, seed=dev.seed)
    examples = catalog.examples(task, request)
    prompts = [model.tokenizer.prompt(e.context, e.question, e.answer_prefix) for e in examples]
    contexts, questions = [list(ids) for ids in zip(*prompts, strict=True)]
    limit = min(examples[0].max_new_tokens, 48)
    rng = jax.random.key(dev.seed)
    found = answers.answer_batch(model, method, generate.Settings(), contexts, questions, limit, rng=rng)
    texts = [model.tokenizer.decode(tokens) for tokens in found.tokens]
    return float(np.mean([metrics.score(example, text) for example, text in zip(examples, texts, strict=True)]))
