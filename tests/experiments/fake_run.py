"""A made-up run folder with plausible numbers, written through the real row functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from configs import llama_ruler
from experiments import plan, rows
from nexus import record
from nexus.answers import Answers
from nexus.tasks.example import Example

FIELDS = {
    "model": "fake", "dtype": "float32", "protocol": "streaming", "question_mode": "query_agnostic", "tail": "counted",
    "seed": 0, "tokenizer_hash": "f" * 64, "weights_hash": "ef" * 6, "config_hash": "0123456789ab",
    "git_commit": "c" * 40,
}  # fmt: skip
ENV = {
    "started": "2000-01-01T00:00:00+00:00", "git_commit": "c" * 40, "python": "3.11.0", "platform": "fake", "cpus": 2,
    "device": "1 x cpu", "backend": "cpu", "versions": {"jax": "0"}, "command": [], "wall_s": 12.0,
}  # fmt: skip
SHAPE = (30, 3)  # layers, kv heads


def write(
    folder: Path,
    options: str = "",
    full_scores: dict[str, float] | None = None,
    cells: int | None = None,
    fields: dict | None = None,
    rename: dict[str, str] | None = None,
):
    """Fills `folder` as evaluate does for configs/llama_ruler.py:options. `cells`: stop after so many.

    fields: of every row, over those of FIELDS and the config. rename: in texts of predictions and tokens, old -> new.
    """
    config = plan.resolve(llama_ruler.get_config(options))
    record.open_workdir(folder, config.to_dict())
    record.write_json(folder / "env.json", {"runs": [ENV]})
    skipped = {task for task, score in (full_scores or {}).items() if score < config.eval.full_floor}
    for cell in plan.cells(config)[:cells]:
        if cell.task in skipped and cell.method != plan.FULL:
            continue
        full = (full_scores or {}).get(cell.task, 80.0)
        said = {name: config.eval[name] for name in ("protocol", "question_mode", "tail", "seed")} | (fields or {})
        made = [_prediction(cell, index, full) | said for index in range(config.eval.num_examples)]
        tokens = [_tokens(cell, index) for index in range(config.eval.show_examples)]
        for old, new in (rename or {}).items():
            for row in made:
                row["prediction"] = row["prediction"].replace(old, new)
            for row in tokens:
                row["tokens"] = [token.replace(old, new) for token in row["tokens"]]
        if tokens:
            record.append_rows(folder / "tokens.jsonl", tokens)
        record.append_rows(folder / "predictions.jsonl", made)
        record.append_rows(folder / "kept.jsonl", [rows.kept_row(cell, made)])
        row = rows.metrics_row(cell, made, (len(config.eval.tasks), 13), "da" * 6)
        record.append_rows(folder / "metrics.jsonl", [row])
    return config


def _prediction(cell: plan.Cell, index: int, full: float) -> dict:
    rng = np.random.default_rng([index, cell.budget, *f"{cell.method} {cell.task}".encode()])
    fraction = min(1.0, cell.budget / cell.length)
    quality = full / 100 * (1 if cell.method == plan.FULL else fraction ** (0.3 + 0.1 * (len(cell.method) % 5)))
    right = (np.arange(4) < round(full / 25)) if cell.method == plan.FULL else rng.random(4) < quality
    context = cell.length - 160
    even = np.full(SHAPE, min(cell.budget, context))
    kept = even if len(cell.method) % 2 else np.clip(even * rng.gamma(4, 0.25, SHAPE), 1, context).astype(int)
    size = int(np.prod(SHAPE)) * 64 * 4 * 2  # bytes of one entry in every head
    answers = Answers(
        tokens=[[1, 2, 3]], cut=[bool(index == 3)], kept=kept[None].astype(np.int32),
        context_tokens=np.array([context]), kv_bytes_allocated=(cell.budget + 128) * size,
        kv_bytes_live=float(kept.mean() * size),
        peak_bytes=900_000_000, prefill_seconds=1.0 + fraction, decode_seconds=0.5,
        compile_seconds=2.0 if index == 0 else 0.0, prefill_tokens=context, decode_tokens=int(30 - 12 * fraction),
    )  # fmt: skip
    example = _example(cell, index)
    text = " ".join(r for r, hit in zip(example.references, right, strict=True) if hit) + f" {cell.method}"
    return rows.prediction_row(cell, example, answers, 0, text=text, question_tokens=20, limit=128, fields=FIELDS)


def _example(cell: plan.Cell, index: int) -> Example:
    return Example(
        task=cell.task, index=index, context="c", question="q", answer_prefix="a",
        references=("111", "222", "333", "444"), max_new_tokens=128, metric="all", length=cell.length,
        variant="ruler-nexus", template_hash="ab" * 32, prompt_tokens=cell.length - 130,
    )  # fmt: skip


def _tokens(cell: plan.Cell, index: int) -> dict:
    """Words, of which every fifth is a reference; the first stays everywhere, the second nowhere."""
    words = ["<|im_start|>", "gone", *(f" {111 * (1 + i // 5 % 4)}" if i % 5 == 4 else " word" for i in range(38))]
    rng = np.random.default_rng([index, cell.budget])
    shares = np.ones(40) if cell.method == plan.FULL else np.array([1.0, 0.0, *rng.random(38)])
    return rows.tokens_row(cell, _example(cell, index), words, shares, "q a")
