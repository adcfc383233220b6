"""Attention on a needle, head by head: what a cache leaves of it when the question comes and while it is answered.

The context goes into the cache as the method streams it. Then the question's tokens are run behind it in a side pass
(`nexus.side`), which leaves nothing behind, and the softmax of every query head is divided among groups of entries.
The question is fed for good, and the tokens of the right answer are run in the same way: all methods are asked about
the same tokens, whatever they would have said themselves. What they do say is generated afterwards and scored.

    sinks     the first 4 positions
    useful    the needles that are asked for, whole sentences: 1 - this is the dilution of arXiv 2605.09649
    others    the other needles
    context   the rest of the context
    own       what is not in the context: the question and the answer so far

A row is a token that looks: those of the question (its turn's end, header and prefix included), and those that
predict the answer, the first of which is the last of the question.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.plan import ConfigError
from nexus import attention
from nexus import buffer as kv
from nexus.generate import Session, Settings
from nexus.methods import Method
from nexus.models.config import ModelConfig
from nexus.models.load import Model
from nexus.side import Side
from nexus.tasks import ruler_niah
from nexus.tasks.example import Example

GROUPS = ("sinks", "useful", "others", "context")
OWN = "own"
NUM_SINKS = 4
OUTSIDE = -1  # of the context
FAR = np.iinfo(np.int32).max  # a position that no query sees
STEP = 32  # tokens: questions and answers are padded to multiples, so that few programs are compiled
NEEDLE = re.compile(
    re.escape(ruler_niah.needle("KIND", "KEY", "VALUE"))
    .replace("KIND", r"\w+").replace("KEY", "[^:]{1,80}?").replace("VALUE", "(?P<value>[^.]+)")
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A sample in tokens, and the group of every position."""

    before: list[int]  # up to the cut
    after: list[int]  # question, end of turn, header, answer prefix
    answer: list[int]  # the right one
    labels: np.ndarray  # [positions] int32, index of GROUPS or OUTSIDE


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen in one sample."""

    question: dict[str, np.ndarray]  # group -> [L,N], mean over the question's rows
    answer: dict[str, np.ndarray]  # group -> [L,N], mean over the rows that predict the answer
    held: np.ndarray  # [L,K] share of the useful entries that are cached when the question comes
    kept: float  # entries per head at that moment, mean
    said: list[int]


def prompt_of(model: Model, example: Example, positions: int) -> Prompt:
    """Tokens and groups of a sample. positions: size of the labels, at least what the prompt takes.

    Raises ConfigError when the needles are not found in the tokens, or the answer does not continue the prompt.
    """
    tokenizer = model.tokenizer
    before, after = tokenizer.prompt(example.context, example.question, example.answer_prefix)
    right = " " + ", ".join(example.references)
    longer = tokenizer.prompt(example.context, example.question, example.answer_prefix + right)[1]
    if longer[: len(after)] != after or len(longer) == len(after):
        raise ConfigError(f"{example.sample_id}: the answer's tokens do not continue those of the prompt")
    labels = np.full(positions, OUTSIDE, np.int32)
    labels[: len(before)] = _labels(tokenizer.pieces(before), example)
    return Prompt(before, after, longer[len(after) :], labels)


def _labels(pieces: list[str], example: Example) -> np.ndarray:
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = np.concatenate([[0], ends[:-1]])
    labels = np.full(len(pieces), GROUPS.index("context"), np.int32)
    found = 0
    for match in NEEDLE.finditer("".join(pieces)):
        useful = match["value"] in example.references
        found += useful
        labels[(starts < match.end()) & (ends > match.start())] = GROUPS.index("useful" if useful else "others")
    if found != len(example.references):
        raise ConfigError(f"{example.sample_id}: {found} of its {len(example.references)} needles found in its tokens")
    labels[:NUM_SINKS] = GROUPS.index("sinks")
    return labels


@functools.partial(jax.jit, static_argnums=0)
def masses(
    cfg: ModelConfig, params: Any, buf: kv.KVBuffer, tokens: jax.Array, valid: jax.Array, labels: jax.Array
) -> jax.Array:
    """[L,N,T,J] float32: the attention that tokens running behind one sequence pay to each of J groups of its table.

    Args:
        params: of `decode.with_weights`. buf: of one sequence, its tail empty, keys at true positions.
        tokens: [1,T] int32. valid: [1,T] bool, a prefix; rows behind it mean nothing. labels: [positions] int32.
    """
    side = Side(cfg=cfg, params=params, buffer=buf)
    N, T, J = cfg.num_heads, tokens.shape[1], len(GROUPS)
    rows = jnp.tile(side.positions(valid), (1, cfg.num_groups))
    group = jnp.where(buf.pos >= 0, labels[jnp.maximum(buf.pos, 0)], OUTSIDE)
    columns = [jnp.where(group == j, buf.pos, FAR) for j in range(J)]

    def collect(layer, into, q, k, whole):
        parts = [attention.table_softmax(q, rows, buf.k, at, kv.segments(buf, layer)) for at in columns]
        share = jnp.stack([part.total * jnp.exp(part.maximum - whole.maximum) for part in parts], axis=-1)
        share = share / jnp.where(whole.total > 0, whole.total, 1.0)[..., None]  # [1,K,G*T,J]
        return lax.dynamic_update_index_in_dim(into, share.reshape(N, T, J), layer, 0)

    return side.follow(tokens, side.positions(valid), collect, jnp.zeros((cfg.num_layers, N, T, J), jnp.float32))[1]


def look(
    model: Model, method: Method, settings: Settings, prompt: Prompt, limit: int, rng: jax.Array, capacity: int
) -> Look:
    """Streams a sample through a cache and looks. limit: tokens of the own answer. capacity: of the full cache."""
    session = Session(model, method, settings, 1, capacity=capacity, rng=rng)
    session.feed([prompt.before])
    if settings.protocol == "oneshot" and not method.full:
        session.compress()
    held, kept = _held(session, prompt.labels), float(session.counts().mean())
    asked = read(session, prompt.after, prompt.labels)
    session.feed([prompt.after])
    told = read(session, prompt.answer[:-1], prompt.labels)
    predicting = np.concatenate([asked[:, :, -1:], told], axis=2)
    said = session.generate(limit)[0]
    return Look(_by_group(asked), _by_group(predicting), held, kept, said)


def read(session: Session, tokens: list[int], labels: np.ndarray) -> np.ndarray:
    """[L,N,T,J]: what tokens would pay each group if they came next; the session stays as it is."""
    size = -(-max(len(tokens), 1) // STEP) * STEP
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(tokens)] = tokens
    valid = np.arange(size)[None] < len(tokens)
    cfg = session.model.config
    out = masses(cfg, session.params, session.buffer, jnp.asarray(padded), jnp.asarray(valid), jnp.asarray(labels))
    return np.asarray(out, np.float64)[:, :, : len(tokens)]


def _by_group(rows: np.ndarray) -> dict[str, np.ndarray]:
    mean = rows.mean(axis=2)
    return {name: mean[..., j] for j, name in enumerate(GROUPS)} | {OWN: 1 - mean.sum(axis=-1)}


def _held(session: Session, labels: np.ndarray) -> np.ndarray:
    useful = np.flatnonzero(labels == GROUPS.index("useful"))
    return np.array([[np.isin(useful, pos).mean() for pos in heads] for heads in session.kept()[0]])
