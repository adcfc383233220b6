"""The Python door: what a notebook calls."""

from __future__ import annotations

import numpy as np
import pytest

import nexus


@pytest.fixture(scope="module")
def lm():
    return nexus.load("tiny-llama")


def test_a_budget_above_the_prompt_gives_the_full_answer(lm):
    """Methods once changed answers although nothing had to go (NVIDIA/kvpress#134)."""
    full = lm.generate("hello there", max_new_tokens=12)
    same = lm.generate("hello there", method="knorm", budget=128, max_new_tokens=12)
    assert full.tokens and full.tokens == same.tokens and str(full) == full.text


def test_kept_positions_respect_the_budget_and_the_sinks(lm):
    """What `kept` shows is what the cache holds: within budget and tail, sinks first, increasing."""
    out = lm.generate("x" * 300, method="streaming_llm", budget=16, max_new_tokens=4, chunk=32, evict_every=8)
    assert out.prompt_tokens > 300
    for layer in out.kept:
        for head in layer:
            assert 16 <= len(head) <= 16 + 8
            assert head[:4].tolist() == [0, 1, 2, 3] and (np.diff(head) > 0).all()


def test_streamed_pieces_join_to_the_generated_text(lm):
    """A streaming generator that evicted at other times than the compiled loop would drift from it."""
    options = {"method": "knorm", "budget": 24, "max_new_tokens": 21, "chunk": 32, "evict_every": 8}
    whole = lm.generate("a" * 100, **options)
    chat = lm.session("knorm", 24, max_new_tokens=21, chunk=32, evict_every=8)
    pieces = list(chat.stream("a" * 100, every=5))
    assert len(pieces) > 1 and "".join(pieces) == whole.text


def test_a_second_turn_goes_on_from_the_first(lm):
    """Turns that restart the positions turn to gibberish (google-deepmind/gemma#368)."""
    chat = lm.session("full", max_new_tokens=5, budget=400)
    first = chat.ask("one")
    second = chat.ask("two")
    longest = max(len(head) for layer in second.kept for head in layer)
    assert longest == first.prompt_tokens + 5 + second.prompt_tokens + 5
    with pytest.raises(ValueError, match="can only open"):
        chat.ask([{"role": "user", "content": "three"}])


def test_temperature_replays_with_its_seed(lm):
    """Sampling takes an explicit key: the same seed gives the same text, another one does not."""
    options = {"max_new_tokens": 16, "temperature": 1.0}
    a, b, c = (lm.generate("abc", seed=seed, **options).tokens for seed in (1, 1, 2))
    assert a == b and a != c


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "snap", "budget": 8}, "known: full"),
        ({"method": "snapkv"}, "needs a budget"),
        ({"method": "snapkv", "budget": 8}, "do not fit the budget of 8"),
        ({"method": "knorm", "budget": 8, "window": 3}, "no option 'window'"),
        ({"method": "knorm", "budget": 8, "protocol": "twoshot"}, "streaming, oneshot"),
        ({"method": "knorm", "budget": 0}, "budget must be an integer of at least 1, got 0"),
        ({"method": "knorm", "budget": 10**8}, "more than model"),
        ({"max_new_tokens": "5"}, "max_new_tokens must be an integer"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"seed": "a"}, "seed must be an integer"),
    ],
)
def test_bad_arguments_are_named_before_any_work(lm, options, message):
    """One clear line with what is allowed, before a prompt is tokenised."""
    with pytest.raises((KeyError, ValueError), match=message):
        lm.generate("hello", **options)


@pytest.mark.parametrize(
    "prompt", ["", [], None, 5, b"hi", ["a", "b"], [{"role": "user"}], [{"role": "user", "content": 5}]]
)
def test_a_prompt_that_is_none_is_refused(lm, prompt):
    """A list of prompts was once taken for one malformed conversation and answered."""
    with pytest.raises(ValueError, match="a prompt is a non-empty text"):
        lm.generate(prompt)
