"""Rows of training tokens: documents packed to one length, made once as tensorflow-datasets, read through grain.

A row holds whole documents one after another; what is left over at its end is padding (doc = -1). Rows are kept in
blocks named after everything they depend on, so a second training on the same data starts at once. Which process reads
what, and the order of every epoch, follow from the seed: a training that is continued at step s sees what an
uninterrupted one would.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Any

import grain
import numpy as np
import tensorflow_datasets as tfds

from nexus import fetch
from nexus.models.tokenizer import Tokenizer
from nexus.tasks.prepare import build
from nexus.training import records, texts

BLOCK = 64  # rows
LEAST = 192  # tokens of a document; a shorter rest of a row stays padding
_log = logging.getLogger(__name__)
Row = dict[str, np.ndarray]
"""tokens, doc, place [T] int32; answer, cut [T] bool."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
    """What rows are made of. Raises ValueError for an empty mix, an unknown kind, or rows too short."""

    kinds: tuple[tuple[str, float], ...]  # (kind, share)
    row: int  # T
    seed: int = 0
    shares: tuple[float, ...] = (1.0, 0.5)  # of a row: lengths of documents, drawn equally often

    def __post_init__(self) -> None:
        for kind, share in self.kinds:
            if kind not in records.KINDS:
                raise ValueError(f"data kind {kind!r}; allowed: {', '.join(records.KINDS)}")
            if not 0 <= share < math.inf:
                raise ValueError(f"the share of data kind {kind!r} must be a finite number of at least 0, got {share}")
        if not any(share > 0 for _, share in self.kinds):
            raise ValueError("the data mix is empty: give at least one kind a share above 0")
        if self.row < LEAST:
            raise ValueError(f"a row must hold at least {LEAST} tokens, got {self.row}")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"document lengths are shares of a row between 0 and 1, got {self.shares}")


def make_row(mix: Mix, tokenizer: Tokenizer, index: int) -> Row:
    """Row `index` of a mix; a rest too short for a document is padding. Raises TooShort where not even one fits."""
    rng = np.random.default_rng([mix.seed, index, 1])
    names = [kind for kind, _ in mix.kinds]
    weights = np.array([share for _, share in mix.kinds])
    documents: list[records.Document] = []
    left = mix.row
    while left >= LEAST:
        length = min(left, max(LEAST, int(mix.row * rng.choice(mix.shares))))
        kind = names[rng.choice(len(names), p=weights / weights.sum())]
        try:
            made = records.document(kind, tokenizer, length, mix.seed, 1000 * index + len(documents))
        except records.TooShort:
            if not documents:
                raise
            break
        documents.append(made)
        left -= len(made.tokens)
    return pack(documents, mix.row)


def pack(documents: list[records.Document], T: int) -> Row:
    """Documents one after another. Raises ValueError if they do not fit."""
    total = sum(len(d.tokens) for d in documents)
    if total > T:
        raise ValueError(f"documents of {total} tokens do not fit a row of {T}")
    row = {"tokens": np.zeros(T, np.int32), "doc": np.full(T, -1, np.int32), "place": np.zeros(T, np.int32)}
    row |= {"answer": np.zeros(T, bool), "cut": np.zeros(T, bool)}
    start = 0
    for number, document in enumerate(documents):
        n = len(document.tokens)
        where = slice(start, start + n)
        for name in ("tokens", "answer", "cut"):
            row[name][where] = getattr(document, name)
        row["doc"][where], row["place"][where] = number, np.arange(n)
        start += n
    return row


# --- storage ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class BlockConfig(tfds.core.BuilderConfig):
    """One block. `rows` is empty where the block is only read."""

    rows: tuple[Row, ...] = dataclasses.field(default=(), repr=False)
    row_tokens: int = 0


class TrainingRows(tfds.core.GeneratorBasedBuilder):
    """Packed rows of one mix, in the order of their index."""

    VERSION = tfds.core.Version(records.VERSION)

    def _info(self) -> tfds.core.DatasetInfo:
        T = (self.builder_config.row_tokens,)
        features = {name: tfds.features.Tensor(shape=T, dtype=np.int32) for name in ("tokens", "doc", "place")}
        features |= {name: tfds.features.Tensor(shape=T, dtype=np.bool_) for name in ("answer", "cut")}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True,
            description=self.builder_config.description,
        )  # fmt: skip

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        yield from enumerate(self.builder_config.rows)


def source(mix: Mix, tokenizer: Tokenizer, count: int, data_dir: Path | None = None) -> grain.MapDataset:
    """The first `count` rows, in order; what is missing is made first."""
    root = Path(data_dir) if data_dir is not None else fetch.cache_dir() / "tfds"
    blocks = []
    for first in range(0, count, BLOCK):
        name = f"{mix_key(mix, tokenizer)}-{first:06d}"
        path = root / TrainingRows.name / name / records.VERSION
        if not path.exists():
            _log.info("making training rows %d to %d of %d tokens in %s", first, first + BLOCK, mix.row, root)
            made = tuple(make_row(mix, tokenizer, first + i) for i in range(BLOCK))
            config = BlockConfig(name=name, description=name, rows=made, row_tokens=mix.row)
            build(TrainingRows, config, root, path)
        blocks.append(grain.MapDataset.source(tfds.builder_from_directory(path).as_data_source(split="train")))
    return grain.MapDataset.concatenate(blocks)[:count]


def mix_key(mix: Mix, tokenizer: Tokenizer) -> str:
    """A name for everything that decides what the rows are."""
    sources = [carrier.sha256 for carrier in texts.SOURCES]
    parts = json.dumps([dataclasses.asdict(mix), tokenizer.fingerprint, sources, records.VERSION])
    return f"rows{mix.row}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"


def in_order(data: grain.MapDataset, seed: int) -> grain.MapDataset:
    """The rows of an endless training: epoch after epoch, each in an order of its own."""
    return data.seed(seed).shuffle().repeat(None)


def share(order: grain.MapDataset, step: int, batch: int, process: int = 0, processes: int = 1) -> Row:
    """A process's rows of a step, stacked: step s holds rows s * batch ... of the order, however many processes read.

    Raises ValueError when the processes cannot share a batch equally.
    """
    if batch % processes:
        raise ValueError(f"a batch of {batch} rows cannot be shared by {processes} processes")
    each = batch // processes
    first = step * batch + process * each
    found = [order[first + i] for i in range(each)]
    return {name: np.stack([row[name] for row in found]) for name in found[0]}
