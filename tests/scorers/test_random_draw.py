"""The control: draws that can be replayed."""

from __future__ import annotations

import jax
import numpy as np

from nexus.scorers import RandomDraw
from tests import tiny
from tests.scorers.views import filled


def test_draws_are_uniform_and_of_each_sequence():
    """One shared draw would keep the same slots in every sequence of a batch."""
    entries, _ = filled(1)
    keys = jax.random.split(jax.random.key(3), 2)
    score = np.asarray(RandomDraw().score(entries, {}, keys))
    np.testing.assert_array_equal(score, RandomDraw().score(entries, {}, keys))
    assert not (score[0] == score[1]).any() and (0 <= score).all() and (score < 1).all()
    assert len(np.unique(score)) == score.size, "drawn in float32: no ties"
    np.testing.assert_array_equal(score[1], jax.random.uniform(keys[1], score.shape[1:]))


def kept(seed: int, **changes) -> list[list[int]]:
    s = tiny.session(tiny.build("random", **changes), rng=jax.random.key(seed))
    s.feed(tiny.prompts(37, 5, 20))
    return [pos.tolist() for row in s.kept() for layer in row for pos in layer]


def test_the_key_decides():
    """A run is replayed from its key; another key is another run; heads draw apart."""
    assert kept(0) == kept(0)
    assert kept(0) != kept(1)
    assert len({tuple(pos) for pos in kept(0)[:4]}) == 4


def test_sticky_luck_is_drawn_once():
    """Drawn anew at every cut a token must win every time; a sticky draw is kept with its entry: the survivors are
    the best draws of all tokens ever seen, plus the sinks."""
    s = tiny.session(tiny.build("random", sticky=True), rng=jax.random.key(5))
    s.feed(tiny.prompts(37, 5, 20))
    row_key = s.buffer.rng[0]
    for layer, heads in enumerate(s.kept()[0]):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(row_key, layer), np.arange(37))
        draws = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys))
        for head, pos in enumerate(heads):
            best = np.argsort(-draws[2:, head])[: tiny.BUDGET - 2] + 2
            assert pos.tolist() == [0, 1, *sorted(best)]
