"""Prepared samples: made once as tensorflow-datasets in array_record files, read through grain.

Samples are kept in blocks of `BLOCK`, each a data set of its own, so that asking for more samples later adds blocks and
never touches the first ones. A block is named after everything its samples depend on (task, length, seed, tokenizer,
wording, code version, word lists, essays, files); it is written to a temporary folder and renamed when complete, so a
killed run leaves nothing that is taken for data. No TensorFlow is needed. The samples are reproducible; the bytes of a
file are not, because the library writes the fields of a record in any order: `example.data_hash` compares samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import absl.logging
import grain
import numpy as np
import tensorflow_datasets as tfds

from nexus import fetch
from nexus.tasks import generated, haystacks, words
from nexus.tasks.example import Example
from nexus.tasks.fit import Tokenizer
from nexus.tasks.generated import Generated

BLOCK = 10  # samples
LAYOUT = "1.1.0"  # of the stored fields; the version of the samples themselves is part of a block's name
SPLIT = "test"
_FIELD_TYPES = {
    "str": tfds.features.Text,
    "int": lambda: tfds.features.Scalar(np.int64),
    "bool": lambda: tfds.features.Scalar(np.bool_),
}
_READ: dict[str, Callable[[Any], Any]] = {"str": bytes.decode, "int": int, "bool": bool}  # a stored value
_LISTS = ("references", "choices")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class BlockConfig(tfds.core.BuilderConfig):
    """One block. `examples` is empty where the block is only read."""

    examples: tuple[Example, ...] = dataclasses.field(default=(), repr=False)


class NexusSamples(tfds.core.GeneratorBasedBuilder):
    """Samples of one (task, length, seed, tokenizer), in the order of their index."""

    VERSION = tfds.core.Version(LAYOUT)

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            field.name: _FIELD_TYPES.get(str(field.type), lambda: tfds.features.Sequence(tfds.features.Text()))()
            for field in dataclasses.fields(Example)
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.builder_config.description,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {SPLIT: self._generate_examples()}

    def _generate_examples(self) -> Any:
        for example in self.builder_config.examples:
            yield example.index, dataclasses.asdict(example) | {name: list(getattr(example, name)) for name in _LISTS}


def examples(
    task: Generated,
    tokenizer: Tokenizer,
    length: int,
    n: int,
    seed: int,
    data_dir: str | Path | None = None,
    essays: haystacks.EssayText | None = None,
) -> list[Example]:
    """The first n samples of a task at L = `length` tokens, from `data_dir` (default: `tfds` in the cache folder).

    What is missing is made first. ValueError when n < 1 or a sample does not fit into L; nothing of its block is
    written then.
    """
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1 example of {task.name}")
    root = Path(data_dir) if data_dir is not None else fetch.cache_dir() / "tfds"
    sources = []
    for first in range(0, n, BLOCK):
        name = f"{block_key(task, tokenizer, length, seed, essays)}-{first:06d}"
        path = root / NexusSamples.name / name / LAYOUT
        if not path.exists():
            _log.info("making %s[%d:%d] at %d tokens in %s", task.name, first, first + BLOCK, length, root)
            # All of a block is made before any of it is written: a sample that does not fit raises here.
            made = [generated.make_example(task, tokenizer, length, first + i, seed, essays) for i in range(BLOCK)]
            config = BlockConfig(name=name, description=f"{task.variant} {name}", examples=tuple(made))
            build(NexusSamples, config, root, path)
        sources.append(grain.MapDataset.source(tfds.builder_from_directory(path).as_data_source(split=SPLIT)))
    return list(grain.MapDataset.concatenate(sources)[:n].map(_to_example))


def block_key(
    task: Generated, tokenizer: Tokenizer, length: int, seed: int, essays: haystacks.EssayText | None = None
) -> str:
    """A name for everything that decides what the samples are."""
    essay_hash = fetch.ESSAYS.sha256 if essays is None else essays.sha256
    parts = [task.version, tokenizer.fingerprint, task.template_hash, words.words_hash()]
    parts += [essay_hash if task.uses_essays else "", *([task.material] if task.material else [])]
    return f"{task.name}-{length}-seed{seed}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:16]}"


def build(
    builder: Callable[..., tfds.core.DatasetBuilder], config: tfds.core.BuilderConfig, root: Path, path: Path
) -> None:
    """Writes a block to `path`. Another process may finish the same block first; it holds the same."""
    try:
        with _quiet():
            builder(config=config, data_dir=root, file_format="array_record").download_and_prepare()
    except OSError:
        if not path.exists():
            raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library from announcing a download that does not happen."""
    tfds.disable_progress_bar()
    level = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        absl.logging.set_verbosity(level)


def _to_example(row: dict[str, Any]) -> Example:
    """A stored row as an Example; text comes back as bytes, a list as an array of them."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Example)}
    lists: dict[str, Any] = {name: tuple(text.decode() for text in row[name]) for name in _LISTS}
    return Example(**{name: _READ[kinds[name]](row[name]) for name in row if name not in _LISTS}, **lists)
