"""The attention on groups of entries against a dense softmax in NumPy, and groups that stand where their text does."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from experiments.dilute import needle
from experiments.plan import ConfigError
from nexus.models.config import ModelConfig
from nexus.models.load import Model
from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks import ruler_niah
from nexus.tasks.example import Example
from tests import oracle, tiny

CONTEXT, ASKED, ANSWER = 61, 7, 5
SPANS = {"sinks": (0, 4), "useful": (20, 33), "others": (40, 44)}
METHODS = ("full", "streaming_llm", "global_retention")


def labels() -> np.ndarray:
    found = np.full(tiny.CAPACITY, needle.OUTSIDE, np.int32)
    found[:CONTEXT] = needle.GROUPS.index("context")
    for name, (low, high) in SPANS.items():
        found[low:high] = needle.GROUPS.index(name)
    return found


def dense(s: oracle.Stream, rows: int) -> dict[str, np.ndarray]:
    """group -> [L,N,rows]: softmax of the newest rows over what their head held when they came."""
    cfg, G = tiny.CFG, tiny.CFG.num_groups
    at, group = np.arange(s.seen), labels()
    found = {name: np.zeros((cfg.num_layers, cfg.num_heads, rows)) for name in (*needle.GROUPS, needle.OWN)}
    for layer, n in np.ndindex(cfg.num_layers, cfg.num_heads):
        kept = s.kept()[layer][n // G]
        cached = np.isin(at, kept)
        q = s.queries[layer][n // G, n % G][-rows:]
        p = oracle.probabilities(q, at[-rows:], s.keys(layer, n // G, at), np.where(cached, at, -1))
        for j, name in enumerate(needle.GROUPS):
            found[name][layer, n] = p[:, group[: s.seen] == j].sum(axis=1)
        found[needle.OWN][layer, n] = 1 - sum(found[name][layer, n] for name in needle.GROUPS)
    return found


@pytest.mark.parametrize("case", METHODS)
def test_masses_are_those_of_a_dense_softmax(case):
    """Full and cut caches, heads of equal and unequal length; the sink of a probability in another group shows."""
    method = tiny.build(case)
    session, s = tiny.session(method, batch=1), tiny.stream(method)
    session.feed([tiny.prompt(CONTEXT)])
    before = session.kept()[0]
    rows = needle.read(session, tiny.prompt(ASKED, 3), labels())
    s.prefill(tiny.prompt(CONTEXT), tiny.CHUNK, evicting=not method.full)
    s.step(tiny.prompt(ASKED, 3))
    expected = dense(s, ASKED)
    assert rows.shape == (tiny.CFG.num_layers, tiny.CFG.num_heads, ASKED, len(needle.GROUPS))
    for j, name in enumerate(needle.GROUPS):
        np.testing.assert_allclose(rows[..., j], expected[name], atol=2e-5, err_msg=name)
    if method.full:
        assert rows[..., 1].min() > 0
    for was, now in zip(before, session.kept()[0], strict=True):
        for a, b in zip(was, now, strict=True):
            np.testing.assert_array_equal(a, b)  # looking leaves nothing behind


def test_a_look_reads_the_question_before_the_cut_and_the_answer_after_it():
    """The row that predicts the first token of the answer is the question's last; the others see what the cut left."""
    method = tiny.build("snapkv")
    context, asked, answer = tiny.prompt(CONTEXT), tiny.prompt(ASKED, 3), tiny.prompt(ANSWER, 4)
    prompt = needle.Prompt(context, asked, answer, labels())
    seen = needle.look(tiny.model(), method, tiny.SETTINGS, prompt, 6, jax.random.key(0), tiny.CAPACITY)
    s = tiny.stream(method)
    s.prefill(context, tiny.CHUNK)
    useful = np.arange(*SPANS["useful"])
    np.testing.assert_allclose(seen.held, [[np.isin(useful, pos).mean() for pos in heads] for heads in s.kept()])
    assert seen.kept == tiny.BUDGET
    s.step(asked)
    question = dense(s, ASKED)
    s.evict()
    s.step(answer[:-1])
    told = dense(s, ANSWER - 1)
    for name in (*needle.GROUPS, needle.OWN):
        predicting = np.concatenate([question[name][..., -1:], told[name]], axis=-1)
        np.testing.assert_allclose(seen.question[name], question[name].mean(axis=-1), atol=2e-5, err_msg=name)
        np.testing.assert_allclose(seen.answer[name], predicting.mean(axis=-1), atol=2e-5, err_msg=name)
    own = tiny.session(method, batch=1)
    own.feed([context])
    own.feed([asked])
    assert seen.said == own.generate(6)[0]


# --- groups -----------------------------------------------------------------------------------------------------------
BYTES = Model(ModelConfig(**{**tiny.CFG.__dict__, "vocab_size": 259}), {}, byte_tokenizer())


def example(context: str, *references: str) -> Example:
    return Example(
        task="niah_multikey_1", index=0, context=context, question="What?", answer_prefix=" It is",
        references=references, max_new_tokens=8, metric="all", length=512, variant="v", template_hash="h",
    )  # fmt: skip


def test_groups_stand_where_their_text_does():
    """The needle that is asked for and the others, whole sentences; characters of several bytes shift nothing."""
    asked, other = (ruler_niah.needle("number", key, value) for key, value in (("red-fox", "123"), ("old-é", "77")))
    prompt = needle.prompt_of(BYTES, example(f"Köln is big: yes. {other} More text. {asked} The end.", "123"), 400)
    found = {name: prompt.labels == j for j, name in enumerate(needle.GROUPS)}
    text = lambda mask: BYTES.tokenizer.decode(np.asarray(prompt.before)[np.flatnonzero(mask[: len(prompt.before)])])  # noqa: E731
    assert text(found["useful"]) == asked and text(found["others"]) == other
    assert found["sinks"].nonzero()[0].tolist() == [0, 1, 2, 3]
    assert (prompt.labels[len(prompt.before) :] == needle.OUTSIDE).all()
    assert BYTES.tokenizer.decode(prompt.answer) == " 123"
    assert BYTES.tokenizer.decode(prompt.after).endswith(" It is")


def test_several_needles_are_useful_where_several_are_asked_for():
    needles = [ruler_niah.needle("number", "red-fox", value) for value in ("123", "45")]
    prompt = needle.prompt_of(BYTES, example(f"Begin. {needles[0]} Then. {needles[1]} End.", "123", "45"), 400)
    useful = np.flatnonzero(prompt.labels == needle.GROUPS.index("useful"))
    assert len(useful) == sum(map(len, needles)) and BYTES.tokenizer.decode(prompt.answer) == " 123, 45"


def test_a_needle_that_is_not_found_is_refused():
    """Without its tokens the mass would be zero, and look like dilution."""
    with pytest.raises(ConfigError, match="0 of its 1 needles"):
        needle.prompt_of(BYTES, example("No needle at all.", "123"), 400)


def test_the_pattern_finds_every_kind_of_value():
    for value in ("1234567", "8d9f2b1c-0a0b-4c4d-9e9f-112233445566", "ad hoc-fish"):
        text = ruler_niah.needle("uuid", "pale-moon", value)
        assert [m["value"] for m in needle.NEEDLE.finditer(f"Before: one. {text} After.")] == [value]
