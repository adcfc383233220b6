"""Retrieval heads and layer weights of one model, for the method compresskv: see configs/calibrate_heads.py.

First every trial: a text with a needle, the model's greedy answer under its full cache, and the attention each head
paid to the needle while it answered. Heads are ranked inside each layer by the mean over trials that were answered.
Then every sample: how far each layer's output moves when it reads only what those heads keep. A run leaves
trials.jsonl and calibration.json; started again it does what is missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import config_dict

from experiments import calibration_text, folder, models, retrieval, values
from experiments.plan import ConfigError
from nexus import methods, record
from nexus.generate import Session, Settings
from nexus.models.config import ASKED
from nexus.models.load import Model

MARGIN = 256  # tokens of a prompt beside its text
Trial = dict[str, Any]  # phase, needle, length, depth
Row = dict[str, Any]


# --- config -----------------------------------------------------------------------------------------------------------
def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError for anything that cannot run; nothing is loaded."""
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    c = config.calibrate
    pieces = [c.lengths] if isinstance(c.lengths, str) else list(c.lengths)
    try:
        c.lengths = tuple(int(piece) for item in pieces for piece in str(item).split(",") if piece.strip())
    except ValueError:
        raise ValueError(f"calibrate.lengths takes whole numbers; got {c.lengths!r}") from None
    if not c.lengths or min(c.lengths) < 64:
        raise ValueError(f"calibrate.lengths={c.lengths!r} must be numbers of at least 64")
    least = {"needles": 1, "depths": 1, "samples": 1, "heads": 1, "answer": 1, "seed": 0, "kept": retrieval.WINDOW + 1}
    for name, low in least.items():
        if c[name] < low:
            raise ValueError(f"calibrate.{name}={c[name]} is out of range: at least {low}")
    if c.kept > min(c.lengths):
        raise ValueError(f"calibrate.kept={c.kept} must be at most the shortest of lengths={c.lengths}")
    if not -1 <= c.recall < 1:
        raise ValueError(f"calibrate.recall={c.recall} must lie between -1 (every answer counts) and 1")
    values.one_of("model.dtype", config.model.dtype, ("", *ASKED))
    return config_dict.FrozenConfigDict(config)


# --- run --------------------------------------------------------------------------------------------------------------
def run(config: config_dict.ConfigDict, workdir: Path) -> None:
    """Does the trials that are missing, then writes calibration.json."""
    config = resolve(config)
    record.check_workdir(workdir, config.to_dict())
    c = config.calibrate
    model = models.load(config, calibrate__lengths=max(c.lengths) + MARGIN + c.answer)
    if c.heads > model.config.num_heads:
        raise ConfigError(
            f"calibrate.heads={c.heads} is more than the {model.config.num_heads} query heads of the model"
        )
    folder.claim(workdir, config, model)
    runner = Runner(config, model, workdir / "trials.jsonl")
    scored = [row for row in runner.rows(heads_trials(config)) if row["counts"]]
    if not scored:
        raise ConfigError(
            f"model.name={config.model.name!r} answered no trial with a recall above {config.calibrate.recall}: it "
            "does not retrieve at these lengths; lower calibrate.lengths, or take a model that does"
        )
    scores = np.mean([row["scores"] for row in scored], axis=0)  # [L,N]
    heads = np.argsort(-scores, axis=1, kind="stable")[:, : config.calibrate.heads]
    samples = list(runner.rows(layer_trials(config), heads))
    errors = np.mean([np.asarray(row["errors"]) / sum(row["errors"]) for row in samples], axis=0)
    path = workdir / "calibration.json"
    record.write_json(path, calibration(config, model, runner, heads, errors / errors.sum(), scored))
    print(f"{len(scored)} of {runner.done['heads']} trials counted; {path}", flush=True)


def heads_trials(config: config_dict.FrozenConfigDict) -> list[Trial]:
    """Every needle at every length and depth."""
    c = config.calibrate
    depths = np.linspace(0, 1, c.depths).round(4).tolist()
    return [{"phase": "heads", "needle": n, "length": length, "depth": depth}
            for n in range(c.needles) for length in c.lengths for depth in depths]  # fmt: skip


def layer_trials(config: config_dict.FrozenConfigDict) -> list[Trial]:
    """Samples of the longest length, with needles and filler that no trial used."""
    c = config.calibrate
    depths = np.random.default_rng([c.seed, 3]).random(c.samples).round(4).tolist()
    return [{"phase": "layers", "needle": 1000 + i, "length": max(c.lengths), "depth": d} for i, d in enumerate(depths)]


class Runner:
    """Trials in order, each written when it is done; those of an earlier start are read."""

    def __init__(self, config: config_dict.FrozenConfigDict, model: Model, path: Path) -> None:
        self.config, self.model, self.path = config, model, path
        self.found = {_key(row): row for row in record.read_rows(path)}
        self.done: dict[str, int] = {}
        self.texts: list[str] = []

    def rows(self, trials: list[Trial], heads: np.ndarray | None = None) -> Iterator[Row]:
        """The rows of some trials."""
        began, fresh = time.monotonic(), 0
        for number, trial in enumerate(trials, 1):
            text, needle = text_of(self.config, self.model, trial)
            self.texts.append(text)
            if _key(trial) not in self.found:
                row = trial | self._measure(trial["length"], text, needle, heads)
                record.append_rows(self.path, [row])
                self.found[_key(trial)] = row
                fresh += 1
                left = (time.monotonic() - began) / fresh * (len(trials) - number)
                print(f"[{trial['phase']} {number} of {len(trials)}] {trial['length']} tokens, depth {trial['depth']}: "
                      f"recall {row['recall']:.2f}, {left:.0f} s left", flush=True)  # fmt: skip
            self.done[trial["phase"]] = number
            yield self.found[_key(trial)]

    def _measure(self, length: int, text: str, needle: calibration_text.Needle, heads: np.ndarray | None) -> Row:
        cfg, params, c = self.model.config, self.model.params, self.config.calibrate
        before, after = self.model.tokenizer.prompt(text, needle.question, needle.answer_prefix)
        prompt = [*before, *after]
        answer = self._answer(prompt)
        said = self.model.tokenizer.decode(answer)
        recall = rouge_recall(needle.place, said)
        tokens = [*prompt, *answer]
        blocks = -(-max(length + 128 + c.answer, len(tokens)) // retrieval.BLOCK)  # one program for a length
        padded = np.zeros(blocks * retrieval.BLOCK, np.int32)
        padded[: len(tokens)] = tokens
        rows = np.where(np.arange(c.answer) < len(answer), len(prompt) - 1 + np.arange(c.answer), -1)
        span = find_needle(self.model, before, needle.sentence)
        read = retrieval.Read(
            jnp.asarray(padded), jnp.asarray(rows, jnp.int32), jnp.int32(len(prompt)), jnp.asarray(span, jnp.int32)
        )
        row: Row = {"answer": said, "recall": round(recall, 4), "counts": recall > c.recall}
        if heads is None:
            masses = np.asarray(retrieval.mass(cfg, params, read))
            scores = retrieval.head_scores(np.asarray(prompt), span, answer, masses)
            return row | {"scores": scores.astype(float).round(6).tolist()}
        errors = np.asarray(retrieval.layer_error(cfg, params, read, jnp.asarray(heads), c.kept))
        return row | {"errors": errors.astype(float).round(6).tolist()}

    def _answer(self, prompt: list[int]) -> list[int]:
        """Greedy under the full cache, up to a newline; at least one token."""
        c, tokenizer = self.config.calibrate, self.model.tokenizer
        session = Session(self.model, methods.build("full", budget=1), Settings(), 1,
                          capacity=max(c.lengths) + 512 + c.answer)  # fmt: skip
        session.feed([prompt])
        end = sorted({*self.model.config.eos_ids, tokenizer.encode("\n")[-1]})
        return session.generate(c.answer, end=end)[0] or [end[0]]


def text_of(config: config_dict.FrozenConfigDict, model: Model, trial: Trial) -> tuple[str, calibration_text.Needle]:
    """The text of a trial: about `length` tokens of filler, the needle at the end of the sentence at its depth."""
    c = config.calibrate
    seed = c.seed + (trial["needle"] << 8)
    needle = calibration_text.needle(c.seed, trial["needle"])
    try:
        made = calibration_text.filler(seed, trial["length"] // 4, c.folder)
    except ValueError as error:
        raise ConfigError(f"calibrate.folder={c.folder!r}: {error}") from error
    sizes = [len(model.tokenizer.encode(" " + sentence)) for sentence in made.sentences]
    count = max(int(np.searchsorted(np.cumsum(sizes), trial["length"])), 2)
    at = round(trial["depth"] * count)
    sentences = [*made.sentences[:at], needle.sentence, *made.sentences[at:count]]
    return " ".join(sentences), needle


def find_needle(model: Model, prompt: list[int], sentence: str) -> tuple[int, int]:
    """Begin and end of the needle's tokens in the prompt. Its first and last token may have merged with a neighbour."""
    inner = model.tokenizer.encode(" " + sentence)[2:-1]
    for i in range(len(prompt) - len(inner) + 1):
        if prompt[i : i + len(inner)] == inner:
            return max(i - 1, 0), i + len(inner) + 1
    raise ConfigError(f"model.name={model.config.name!r}: its tokens of the needle are not found in the prompt")


def rouge_recall(reference: str, said: str) -> float:
    """ROUGE-1 recall: the share of the reference's words, with multiplicity, that were said."""
    words = lambda text: re.findall(r"\w+", text.casefold())  # noqa: E731
    wanted, there = words(reference), words(said)
    return sum(min(wanted.count(w), there.count(w)) for w in set(wanted)) / max(len(wanted), 1)


def calibration(
    config: config_dict.FrozenConfigDict, model: Model, runner: Runner, heads: np.ndarray, weight: np.ndarray,
    scored: list[Row],
) -> Row:  # fmt: skip
    """What `nexus/calibration.py` reads."""
    return {
        "model": config.model.name,
        "heads": heads.tolist(),
        "layer_weight": weight.round(8).tolist(),
        "provenance": {
            "data": config.calibrate.folder or "generated needle texts, experiments/calibration_text.py",
            "fingerprint": calibration_text.fingerprint(runner.texts),
            "settings": record.plain(config.calibrate.to_dict()),
            "trials_counted": len(scored),
            "trials": runner.done["heads"],
            "dtype": model.config.dtype,
            "tokenizer": model.tokenizer.fingerprint,
            "seed": config.calibrate.seed,
            "environment": record.environment(),
        },
    }


def _key(row: Row) -> tuple[Any, ...]:
    return row["phase"], row["needle"], row["length"], row["depth"]
