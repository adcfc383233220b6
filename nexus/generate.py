"""Sessions: a batch of sequences on one buffer, from the host's side.

    Session.foresee   tell a control what will be asked and answered
    Session.feed      stream tokens in (a context, a question, a turn)
    Session.score     the same, and how likely each token was
    Session.compress  the one cut of the oneshot protocol
    Session.generate  decode until end tokens
    Session.fork      the same state again: many questions on one context

Protocols: `streaming` holds the budget (plus one chunk) from the first token on; `oneshot` prefills with full
attention, then cuts once. Tail: `counted` keeps question and answer inside the budget with eviction on; `free` adds
them on top and never evicts them.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nexus import buffer as kv
from nexus import decode, programs
from nexus.methods import Method
from nexus.models.load import Model
from nexus.shapes import EMPTY, Layout

PROTOCOLS = ("streaming", "oneshot")
TAILS = ("counted", "free")
Ids = Sequence[Sequence[int]]
PADDED = 8192  # tokens: prompts up to this length share one compiled program; longer ones go to the next power of two
STEPS = 128  # likewise for generated tokens
SAMPLING = 0x7EED0000  # folds the keys that draw tokens away from those of evictions, which count from 0
SHORT = 128  # tokens: a question up to this length does not pay for a longer chunk; by default they share a program
FULL_CHUNK = 512  # tokens per step where nothing is evicted: the result does not depend on it, long products are faster


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How the cache is run."""

    protocol: str = "streaming"
    tail: str = "counted"
    chunk: int = 128  # C, tokens between two evictions of a prompt
    evict_every: int = 32  # generated tokens between two evictions

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol {self.protocol!r}; allowed: {', '.join(PROTOCOLS)}")
        if self.tail not in TAILS:
            raise ValueError(f"tail {self.tail!r}; allowed: {', '.join(TAILS)}")
        for name in ("chunk", "evict_every"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be an integer, got {getattr(self, name)!r}")
        if self.chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {self.chunk}")
        if not 1 <= self.evict_every <= self.chunk:
            raise ValueError(f"evict_every must lie between 1 and chunk={self.chunk}, got {self.evict_every}")


class Session:
    """A batch on one buffer. Holds the state between calls; the functions it calls are pure.

    Args:
        capacity: tokens that the full cache, or the full prefill of `oneshot`, must hold; unused otherwise.
        rng: one typed PRNG key; every sequence draws from its own fold of it.

    Raises:
        ValueError: batch below 1, or capacity missing where it is needed.
    """

    def __init__(
        self,
        model: Model,
        method: Method,
        settings: Settings,
        batch: int,
        *,
        capacity: int | None = None,
        rng: jax.Array | None = None,
    ):
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        most = model.config.max_position
        if method.budget > most and not method.full:
            raise ValueError(f"budget {method.budget} is more than model {model.config.name!r} ever holds: {most}")
        method = dataclasses.replace(method, scorer=method.scorer.bind(model.tokenizer))
        self.model, self.method, self.settings, self.batch = model, method, settings, batch
        self.params = decode.with_weights(model.config, method, model.params)
        self.compile_s, self.peak_bytes, self.prefill_s, self.decode_s = 0.0, 0, 0.0, 0.0
        self.lengths = np.zeros(batch, np.int64)
        full_first = method.full or settings.protocol == "oneshot"
        self.chunk = max(settings.chunk, FULL_CHUNK) if full_first else settings.chunk
        self.layout = self._full_layout(capacity) if full_first else method.layout(model.config, tail=settings.chunk)
        self.evicting = not full_first
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0) if rng is None else rng, jnp.arange(batch))
        self.buffer = decode.init_buffer(method, self.layout, batch, keys)
        self.hidden = jnp.zeros((batch, model.config.dim), jnp.dtype(model.config.activations))
        self.rng = jax.vmap(jax.random.fold_in, (0, None))(keys, SAMPLING)
        self.frozen = False
        self.told = not method.scorer.foresees
        self.ended = np.zeros(batch, bool)  # rows whose answer met an end token; a new turn takes them up again

    def _full_layout(self, capacity: int | None) -> Layout:
        if capacity is None:
            raise ValueError(f"method {self.method.name!r}, protocol {self.settings.protocol!r}: a capacity is needed")
        dense = self.method.layout(self.model.config, tail=self.chunk, budget=-(-capacity // self.chunk) * self.chunk)
        return dataclasses.replace(dense, pools=dense.owners)

    def _program(self, make: Callable[..., programs.Program], *args: Any) -> programs.Program:
        """A compiled program of this session's model and method; the wait for the compiler is counted apart."""
        began = time.perf_counter()
        program = make(self.model.config, self.method, *args)
        self.compile_s += time.perf_counter() - began
        self.peak_bytes = max(self.peak_bytes, program.peak_bytes)
        return program

    # --- what a session does -----------------------------------------------------------------------------

    def foresee(self, after: Sequence[int], questions: Ids, answers: Ids) -> None:
        """Tells a method that is a control what will be asked and answered; others have no ear for it.

        Args:
            after: tokens of each row before its question. questions, answers: token ids per row.

        Raises:
            ValueError: another method, an empty answer, or more tokens than its option `longest`.
        """
        if not self.method.scorer.foresees:
            raise ValueError(f"method {self.method.name!r} takes no future; only controls such as 'oracle' do")
        self.buffer = dataclasses.replace(self.buffer, state=self.method.scorer.told(after, questions, answers))
        self.told = True

    def feed(self, tokens: Ids) -> None:
        """Streams tokens in, lists of unequal length, evicting as the protocol says.

        Raises:
            ValueError: a wrong number of rows, a token outside the vocabulary, more tokens than model or capacity take.
        """
        self._check_told()
        ids, length = self._padded(tokens)
        self._check_room(length, columns=ids.shape[1])
        if not self.frozen:
            self._prefill(ids, length, scored=False)
            return
        program = self._program(programs.feed, self.layout, self.layout.tail, self.batch, ids.shape[1])
        began = time.perf_counter()
        self.buffer, hidden = program.run(self.params, self.buffer, jnp.asarray(ids), jnp.asarray(length))
        self.hidden = jnp.where((length > 0)[:, None], hidden, self.hidden)
        self._fed(length, began)

    def score(self, tokens: Ids) -> list[np.ndarray]:
        """Feeds tokens and returns the log-probability (nats) of each, [row][token] float32.

        A token is judged with the cache as it was before its chunk, and the chunk up to it; the very first token of a
        sequence follows nothing and gets NaN. Raises ValueError as `feed`, and after `free_tail`.
        """
        if self.frozen:
            raise ValueError("score needs a cache that evicts; after free_tail nothing is evicted any more")
        self._check_told()
        ids, length = self._padded(tokens)
        self._check_room(length)
        first = self.lengths == 0
        log_p = np.array(self._prefill(ids, length, scored=True))
        log_p[first, 0] = np.nan
        return [row[:n] for row, n in zip(log_p, length, strict=True)]

    def _prefill(self, ids: np.ndarray, length: np.ndarray, scored: bool) -> jax.Array:
        """Streams padded tokens in; returns their log-probabilities."""
        if int(self.buffer.fill):
            self.compress()
        shape = self.layout, self._step(int(length.max())), self.evicting, self.batch, ids.shape[1], scored
        program = self._program(programs.prefill, *shape)
        began = time.perf_counter()
        given = jnp.asarray(ids), jnp.asarray(length), self.hidden
        self.buffer, self.hidden, log_p = program.run(self.params, self.buffer, *given)
        self._fed(length, began)
        return log_p

    def _step(self, longest: int) -> int:
        """Tokens per step of a text: short ones, and turns of a full cache, do not pay for the whole of a long step."""
        if longest <= SHORT:
            return min(self.chunk, SHORT)
        return self.chunk if 2 * longest > self.chunk else min(self.settings.chunk, self.chunk)

    def _fed(self, length: np.ndarray, began: float) -> None:
        self.hidden.block_until_ready()
        self.prefill_s += time.perf_counter() - began
        self.lengths += length
        self.ended &= length == 0

    def compress(self) -> None:
        """Cuts table and tail to the method's budget: the one cut of `oneshot`, and an emptied tail in `streaming`."""
        if self.method.full:
            target = self.layout
        else:
            self.chunk = self.settings.chunk
            target = self.method.layout(self.model.config, tail=self.chunk)
        program = self._program(programs.compress, self.layout, target, self.batch)
        self.buffer, self.layout = program.run(self.params, self.buffer), target
        self.evicting = not self.method.full

    def free_tail(self, columns: int) -> None:
        """From here on nothing is evicted: the tail gets room for this many more tokens."""
        self.compress()
        more = max(columns - self.layout.tail, 0)
        self.layout = dataclasses.replace(self.layout, tail=self.layout.tail + more)
        self.buffer = kv.grow_tail(self.buffer, self.layout)
        self.frozen = True

    def generate(
        self, max_new_tokens: int, *, temperature: float = 0.0, end: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Decodes up to max_new_tokens per row; a row stops at any end token, which is not returned.

        temperature 0 is greedy. The last token of a row that was cut is in the cache, an end token is not.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        self._check_room(np.full(self.batch, max_new_tokens))
        cfg = self.model.config
        ends = tuple(cfg.eos_ids if end is None else end) or (EMPTY - 1,)
        evict_every = 0 if self.frozen else self.settings.evict_every
        steps = _bucket(max_new_tokens, STEPS)
        program = self._program(programs.generate, self.layout, steps, evict_every, self.batch, len(ends))
        began = time.perf_counter()
        done = jnp.asarray(self.ended | (self.lengths == 0))  # a row that never received a token has nothing to go on
        state = decode.Decoding(buffer=self.buffer, hidden=self.hidden, done=done, rng=self.rng)
        numbers = jnp.int32(max_new_tokens), jnp.asarray(ends, jnp.int32), jnp.float32(temperature)
        state, tokens = program.run(self.params, state, *numbers)
        out = np.asarray(tokens)
        self.decode_s += time.perf_counter() - began
        self.buffer, self.hidden, self.rng = state.buffer, state.hidden, state.rng
        self.ended = np.asarray(state.done) & (self.lengths > 0)
        rows = [row[row != EMPTY] for row in out]
        self.lengths += [int((~np.isin(row, ends)).sum()) for row in rows]
        return [[int(t) for t in row if t not in ends] for row in rows]

    def fork(self) -> Session:
        """An independent session in the same state."""
        twin = copy.copy(self)
        twin.buffer, twin.lengths = self.buffer.copy(), self.lengths.copy()
        twin.ended = self.ended.copy()
        twin.hidden, twin.rng = jnp.copy(self.hidden), jnp.copy(self.rng)
        return twin

    # --- looking ----------------------------------------------------------------------------------------------------

    def counts(self) -> np.ndarray:
        """Entries held by each head, [B,L,K] int32, the tail's included."""
        tail = np.asarray((self.buffer.tail_pos != EMPTY).sum(axis=1))
        return np.asarray(self.buffer.count) + tail[:, None, None]

    def kept(self) -> list[list[list[np.ndarray]]]:
        """Positions held, [row][layer][kv head] -> increasing int32 array."""
        pos, start, count = (np.asarray(x) for x in (self.buffer.pos, self.buffer.start, self.buffer.count))
        tail = np.asarray(self.buffer.tail_pos)

        def head(b: int, layer: int, k: int) -> np.ndarray:
            first = start[b, layer, k]
            return np.concatenate([pos[b, first : first + count[b, layer, k]], tail[b][tail[b] != EMPTY]])

        B, L, K = count.shape
        return [[[head(b, layer, k) for k in range(K)] for layer in range(L)] for b in range(B)]

    def shares(self) -> list[np.ndarray]:
        """For every token fed so far, the share (0-1) of the L * K heads that hold it: [row] -> [tokens] float64."""
        cfg = self.model.config
        rows = [np.concatenate([pos for layer in row for pos in layer]) for row in self.kept()]
        heads = cfg.num_layers * cfg.num_kv_heads
        return [np.bincount(pos, minlength=n) / heads for pos, n in zip(rows, self.lengths, strict=True)]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _padded(self, tokens: Ids) -> tuple[np.ndarray, np.ndarray]:
        if len(tokens) != self.batch:
            raise ValueError(f"expected {self.batch} rows of tokens, got {len(tokens)}")
        length = np.asarray([len(row) for row in tokens], np.int32)
        longest = int(length.max(initial=0))
        step, least = (32, max(longest, 1)) if self.frozen else (self.chunk, _bucket(longest, PADDED))
        padded = -(-least // step) * step
        ids = np.zeros((self.batch, padded), np.int32)
        for row, out in zip(tokens, ids, strict=True):
            out[: len(row)] = row
        if ids.min() < 0 or ids.max() >= self.model.config.vocab_size:
            raise ValueError(f"tokens must lie in 0..{self.model.config.vocab_size - 1}, got {ids.min()}..{ids.max()}")
        return ids, length

    def _check_told(self) -> None:
        if not self.told:
            raise ValueError(f"method {self.method.name!r} must be told question and answer first: Session.foresee")

    def _check_room(self, more: np.ndarray, columns: int = 0) -> None:
        cfg, total = self.model.config, int((self.lengths + more).max())
        limit = min(cfg.max_position, cfg.sliding_window or cfg.max_position)
        if total > limit:
            raise ValueError(f"{total} tokens are more than model {cfg.name!r} takes: {limit}")
        if not self.evicting and not self.frozen and total > self.layout.budget:
            raise ValueError(f"{total} tokens do not fit the full cache of {self.layout.budget}; raise its budget")
        if self.frozen and int(self.buffer.fill) + max(columns, int(more.max())) > self.layout.tail:
            raise ValueError(f"{int(more.max())} more tokens do not fit the free tail of {self.layout.tail}")


def _bucket(n: int, least: int) -> int:
    """The next power of two, at least `least`: few shapes, few compilations."""
    return max(least, 1 << max(n - 1, 0).bit_length())
