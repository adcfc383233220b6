"""A side pass sees what the sequence sees and leaves nothing behind; methods that do not look pay nothing for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import decode
from nexus.evict import evict
from nexus.side import Side
from tests import tiny

LENGTHS = (21, 3, 13)


def fed(case: str = "snapkv", *lengths: int):
    s = tiny.session(tiny.build(case))
    s.feed(tiny.prompts(*(lengths or LENGTHS)))
    return s


def side(s) -> Side:
    return Side(cfg=tiny.CFG, params=s.params, buffer=s.buffer)


def ids(n: int, seed: int = 5) -> jax.Array:
    return jnp.asarray([tiny.prompt(n, seed + row) for row in range(tiny.BATCH)], jnp.int32)


def nothing(layer, into, q, k, part):
    return into


def follow(s, tokens, valid=None):
    """Tokens [B,T] or embeddings run behind a session's sequence; all are real unless told otherwise."""
    valid = jnp.ones(tokens.shape[:2], bool) if valid is None else valid
    return side(s).follow(tokens, side(s).positions(valid), nothing, ())


@pytest.mark.parametrize("case", ["snapkv", "knorm-global"])
def test_tokens_behind_the_sequence_are_what_they_would_be_if_they_were_fed(case):
    """Wrong positions, a tail that is not seen, or tokens that see what follows them change the hidden states."""
    s = fed(case)
    tokens = ids(6)
    hidden, _ = jax.jit(lambda t: follow(s, t))(tokens)
    for n in (2, 6):
        real = s.fork()
        real.feed(np.asarray(tokens)[:, :n].tolist())
        np.testing.assert_allclose(np.asarray(hidden)[:, n - 1], real.hidden, atol=1e-5)


def test_embeddings_stand_for_their_tokens():
    """Soft tokens have no id."""
    s, tokens = fed(), ids(4)
    by_id, _ = follow(s, tokens)
    by_row, _ = follow(s, s.params["embed"][tokens])
    np.testing.assert_array_equal(by_id, by_row)


def test_padding_changes_nothing():
    """A row that is shorter than its neighbours must not see their padding."""
    s, tokens = fed(), ids(5)
    short = jnp.arange(5) < jnp.asarray([[3], [5], [0]])
    padded, _ = follow(s, jnp.where(short, tokens, 0), short)
    whole, _ = follow(s, tokens)
    np.testing.assert_allclose(padded[0, :3], whole[0, :3], atol=1e-6)
    np.testing.assert_allclose(padded[1], whole[1], atol=1e-6)
    assert np.isfinite(padded).all()


def test_many_side_tokens_go_in_blocks():
    """More than one block of queries gives what one piece gives."""
    s = fed()
    tokens = jnp.concatenate([ids(96), ids(96, 50), ids(64, 90)], axis=1)  # 256 = 2 blocks
    hidden, _ = jax.jit(lambda t: follow(s, t))(tokens)
    for n in (100, 130):
        part, _ = follow(s, tokens[:, :n])
        np.testing.assert_allclose(hidden[:, n - 1], part[:, n - 1], atol=1e-5)


@pytest.mark.parametrize("case", ["snapkv", "h2o-global"])
def test_methods_that_do_not_look_compile_nothing_for_it(case):
    """The program of a cut is the eviction's alone."""
    s = fed(case)
    with_look = jax.make_jaxpr(lambda p, b: decode.cut(tiny.CFG, s.method, p, b))(s.params, s.buffer)
    alone = jax.make_jaxpr(lambda p, b: evict(s.method, p, b))(s.params, s.buffer)
    assert str(with_look) == str(alone)
    assert not s.buffer.token and not s.buffer.tail_token
