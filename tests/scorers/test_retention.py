"""Retention scores. Kept sets over whole runs: tests/test_decode.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nexus import methods
from nexus.scorers import Retention
from nexus.scorers.retention import log_utility
from tests import oracle_retention, tiny
from tests.scorers.views import by_head, filled


def entries_with(rate: float | None = None, pools: int = 4):
    """Entries whose log_beta is `rate` everywhere, or drawn."""
    entries, _ = filled(pools, aux=("log_beta",))
    buf = entries.buffer
    if rate is not None:
        table, tail = jnp.full_like(buf.aux["log_beta"], rate), jnp.full_like(buf.tail_aux["log_beta"], rate)
    else:
        rng = np.random.default_rng(0)
        draw = lambda x: jnp.asarray(-rng.uniform(0.001, 0.5, x.shape), jnp.float32)  # noqa: E731
        table, tail = draw(buf.aux["log_beta"]), draw(buf.tail_aux["log_beta"])
    buf = dataclasses.replace(buf, aux={"log_beta": table}, tail_aux={"log_beta": tail})
    return dataclasses.replace(entries, buffer=buf)


@pytest.mark.parametrize("lookahead", [1, 2, 16, 100_000])
@pytest.mark.parametrize("rate", [-1e-9, -1e-4, -0.03, -2.0])
def test_the_logarithm_of_a_sum_over_the_future(lookahead, rate):
    """log1mexp cancels at both ends; the sum is taken term by term in float64."""
    age = np.array([2.0, 3.0, 50.0, 3000.0])
    got = log_utility(jnp.full(4, rate, jnp.float32), jnp.asarray(age + 1, jnp.float32), lookahead)
    n = np.arange(lookahead)
    top = np.float64(np.float32(rate)) * (age[:, None] + 1 + n)
    want = np.log(np.exp(top - top.max(axis=1, keepdims=True)).sum(axis=1)) + top.max(axis=1)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_the_newest_entry_has_age_two():
    """n_seen + 1 - pos, as published; another convention changes ranks between rates."""
    entries = entries_with(-0.25)
    got = by_head(entries, Retention().score(entries, {}, jax.random.key(0)))
    pos = by_head(entries, entries.pos)
    seen = np.asarray(entries.buffer.seen)
    for (b, owner), values in got.items():
        np.testing.assert_allclose(values, -0.25 * (seen[b] + 1 - pos[b, owner]), rtol=1e-6)


def test_equal_rates_keep_the_newest():
    """A constant rate below one is a sliding window."""
    entries = entries_with(-0.1)
    for key, values in by_head(entries, Retention().score(entries, {}, jax.random.key(0))).items():
        pos = by_head(entries, entries.pos)[key]
        assert (np.diff(values[np.argsort(pos)]) > 0).all()


def test_no_fading_ties_everything():
    """A rate of one gives (nearly) zero for every age: ties, and the newest win them."""
    entries = entries_with(0.0)
    for values in by_head(entries, Retention().score(entries, {}, jax.random.key(0))).values():
        assert (np.abs(values) < 1e-6).all()


def test_rank_changes_with_age():
    """An old lasting entry (0.999) against a young fleeting one (0.9)."""
    rate = jnp.log(jnp.asarray([0.999, 0.9]))
    early, late = (rate * jnp.asarray(ages) for ages in ([100.0, 2.0], [1000.0, 2.0]))
    assert early[0] > early[1] and late[0] < late[1]


def test_a_cap_on_the_age_keeps_the_lasting_entry():
    """With a longest age of 200 the entry above survives any prompt."""
    entries, scorer = entries_with(), Retention(longest_age=3)
    got = by_head(entries, scorer.score(entries, {}, jax.random.key(0)))
    pos, rate = by_head(entries, entries.pos), by_head(entries, entries.aux("log_beta"))
    for (b, owner), values in got.items():
        age = np.minimum(int(entries.buffer.seen[b]) + 1 - pos[b, owner], 3)
        np.testing.assert_allclose(values, rate[b, owner] * age, rtol=1e-5)


@pytest.mark.parametrize("case", ["trimkv", "global_retention"])
def test_log_beta_travels_with_its_entry(case):
    """A column that stays behind when rows move scores other tokens (it did in more than one port)."""
    s = tiny.session(tiny.build(case))
    texts = tiny.prompts(37, 5, 20)
    s.feed(texts)
    s.generate(7, end=())
    full = tiny.stream(tiny.build(case))
    full.prefill(texts[0], tiny.CHUNK)
    buf, path = s.buffer, tiny.build(case).scorer.gates
    for layer, head in np.ndindex(tiny.CFG.num_layers, tiny.CFG.num_kv_heads):
        start, count = int(buf.start[0, layer, head]), int(buf.count[0, layer, head])
        pos = np.asarray(buf.pos[0, start : start + count])
        old = pos < 37
        want = oracle_retention.log_beta(path, layer, full.inputs[layer][pos[old]])[:, head]
        np.testing.assert_allclose(np.asarray(buf.aux["log_beta"][0, start : start + count])[old], want, rtol=1e-4)


@pytest.mark.parametrize("lookahead", [2, 7])
def test_lookahead_over_a_whole_run(lookahead):
    """The age is one larger with a lookahead, in the published code and here."""
    method = tiny.build("global_retention", lookahead=lookahead)
    s, row = tiny.session(method, batch=1), tiny.stream(method)
    s.feed(tiny.prompts(37))
    row.prefill(tiny.prompts(37)[0], tiny.CHUNK)
    tiny.assert_same(s, 0, row)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": 0}, "lookahead must be at least 1, got 0"),
        ({"longest_age": -1}, "longest_age must be at least 0 .* got -1"),
    ],
)
def test_values_out_of_range(options, message):
    """Refused before a model is loaded."""
    with pytest.raises(ValueError, match=message):
        methods.build("trimkv", budget=64, **options)
