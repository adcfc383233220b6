"""The same question on a model: which positions of a text are still cached, chunk after chunk?

Every text stands in the batch several times, and each row draws by its own key. Survival is measured from the first
chunk that meets a full cache on, leaving the sink block out: of the entries of a layer ("one layer"), and of positions
that at least one layer still holds ("any layer"). All kv heads of a layer hold the same positions here.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from nexus.generate import Session, Settings
from nexus.methods import Method
from nexus.models.load import Model

GROUPS = ("one layer", "any layer")


def survival(
    model: Model, method: Method, texts: list[list[int]], rows: int, chunk: int, ages: int, seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """group -> share alive after 1 ... A evictions, [texts,A] float64; mean over the rows of a text.

    Args:
        texts: token ids of equal length, a multiple of `chunk`.
        rows: copies of each text in the batch.
    """
    batch = [text for text in texts for _ in range(rows)]
    settings = Settings(chunk=chunk, evict_every=chunk)
    session = Session(model, method, settings, len(batch), rng=jax.random.key(seed))
    chunks = len(texts[0]) // chunk
    of_layers = np.zeros((chunks, len(batch), model.config.num_layers, chunks))  # evictions, rows, layers, born in
    of_any = np.zeros((chunks, len(batch), chunks))
    for event in range(chunks):
        session.feed([text[event * chunk : (event + 1) * chunk] for text in batch])
        for row, layers in enumerate(session.kept()):
            held = [heads[0] for heads in layers]
            of_layers[event, row] = [np.bincount(pos // chunk, minlength=chunks) for pos in held]
            of_any[event, row] = np.bincount(np.unique(np.concatenate(held)) // chunk, minlength=chunks)
        if (event + 1) % 8 == 0:
            say(f"{(event + 1) * chunk} of {chunks * chunk} tokens")
    full = -(-method.budget // chunk)
    cohort = range(full, chunks - ages + 1)
    one = _follow(of_layers.mean(axis=2), cohort, ages) / chunk
    some = _follow(of_any, cohort, ages) / chunk
    by_text = lambda x: x.reshape(len(texts), rows, ages).mean(axis=1)  # noqa: E731
    return {"one layer": by_text(one), "any layer": by_text(some)}


def _follow(alive: np.ndarray, cohort: range, ages: int) -> np.ndarray:
    """alive [evictions,rows,born in] -> mean over the chunks of a cohort, by age: [rows,A]."""
    return np.stack([[alive[born + age, :, born] for age in range(ages)] for born in cohort]).mean(axis=0).T
