"""Perplexity of the last third of documents that are streamed under a budget: see configs/perplexity.py.

    nll(d) = mean of -log p(x_t | cache) over the last third of document d,    perplexity = exp(mean over documents)

A run leaves config.json, env.json, documents.jsonl (one line per document and cell as they finish), report.md and
figures/perplexity.png. Started again on the same folder it goes on with the documents that are missing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import config_dict

from experiments import folder, models, perplexity_report, plan
from experiments.plan import Cell, ConfigError
from experiments.progress import time_left
from experiments.rows import shared_fields
from nexus import record
from nexus.generate import Session
from nexus.models.load import Model
from nexus.models.tokenizer import Tokenizer
from nexus.tasks import haystacks

TASK = "text"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Document:
    """The first tokens of a text, with the token that begins a text where the model has one."""

    name: str
    tokens: list[int]


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """Checks and fills in the config; nothing is loaded. Raises ValueError or KeyError."""
    resolved = plan.resolve(config, _tasks)
    ev = resolved.eval
    if plan.FULL not in ev.methods:
        raise ValueError(f"eval.methods={','.join(ev.methods)} lacks full, which the others are compared with")
    if (ev.protocol, ev.question_mode, ev.tail) != ("streaming", "query_agnostic", "counted"):
        raise ValueError(
            f"eval.protocol={ev.protocol}, question_mode={ev.question_mode}, tail={ev.tail}: a text is read in "
            "streaming, without a question (query_agnostic, counted)"
        )
    if len(ev.lengths) > 1 or ev.lengths[0] < 3:
        raise ValueError(f"eval.lengths={ev.lengths} must be one length of at least 3 tokens")
    return resolved


def _tasks(ev: config_dict.ConfigDict) -> tuple[str, ...]:
    if tuple(ev.tasks) != (TASK,):
        raise ValueError(f"eval.tasks={ev.tasks} has no meaning here; texts are chosen by eval.data_dir")
    return (TASK,)


def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Reads what the folder still lacks, then writes the report."""
    started, every = time.monotonic(), plan.asks_for_all(config)
    config = resolve(config)
    ev, results = config.eval, workdir / "documents.jsonl"
    record.check_workdir(workdir, config.to_dict())
    model = models.load(config, eval__lengths=ev.lengths[0])
    cells = models.runnable(config, model, plan.cells(config), every)
    found = documents(model.tokenizer, ev.data_dir, ev.lengths[0], plan.num_examples(ev))
    folder.claim(workdir, config, model, {"the texts": folder.text_hash(found)})  # only now: see there
    environment = record.start_process(workdir)
    fields = shared_fields(config, model, environment["git_commit"])
    done = {_key(row) for row in record.read_rows(results)}
    batches = [found[i : i + ev.batch_size] for i in range(0, len(found), ev.batch_size)]
    todo = [
        (cell, batch)
        for cell in cells
        for batch in batches
        if any((cell.method, cell.budget, document.name) not in done for document in batch)
    ]
    began = time.monotonic()
    for number, (cell, batch) in enumerate(todo, 1):
        new = [fields | row for row in _read(config, model, cell, batch)]
        record.append_rows(results, [row for row in new if _key(row) not in done])
        here = np.exp(np.mean([row["nll"] for row in new]))
        left = time_left(began, number, len(todo) - number)
        print(f"{cell.method} @ {cell.budget}: {here:.2f} on {len(new)} documents, {left} left", flush=True)
    record.finish_process(workdir, environment, time.monotonic() - started)
    print(perplexity_report.write(workdir), flush=True)


def documents(tokenizer: Tokenizer, folder: str, length: int, count: int) -> list[Document]:
    """The first `length` tokens of the first `count` texts, by name, that have as many.

    Raises ConfigError when there are not so many; it says how many there are.
    """
    try:
        texts = haystacks.folder_texts(folder) if folder else haystacks.package_texts()
    except ValueError as error:
        raise ConfigError(f"eval.data_dir={folder!r}: {error}") from error
    found = []
    for name, text in texts.items():
        tokens = tokenizer.with_bos(tokenizer.encode(text))
        if len(tokens) >= length:
            found.append(Document(name, tokens[:length]))
        if len(found) == count:
            return found
    raise ConfigError(
        f"eval.num_examples={count}: only {len(found)} of {len(texts)} texts in {folder or 'the essays'} have "
        f"eval.lengths={length} tokens"
    )


def _read(config: config_dict.FrozenConfigDict, model: Model, cell: Cell, batch: Sequence[Document]) -> list[Row]:
    """One row per document."""
    rng = jax.random.key(config.eval.seed)
    method, settings = plan.build(config, cell), plan.settings(config)
    session = Session(model, method, settings, len(batch), capacity=cell.length, rng=rng)
    log_p = session.score([document.tokens for document in batch])
    first = 2 * cell.length // 3
    return [
        {
            "document": document.name,
            "method": cell.method,
            "budget": cell.budget,
            "ratio": cell.ratio,
            "length": cell.length,
            "nll": float(-values[first:].astype(np.float64).mean()),
            "judged_tokens": cell.length - first,
            "kept_mean": float(counts.mean()),
        }
        for document, values, counts in zip(batch, log_p, session.counts(), strict=True)
    ]


def _key(row: Row) -> tuple[str, int, str]:
    return row["method"], row["budget"], row["document"]
