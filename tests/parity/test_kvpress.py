"""Kept entries and answers against kvpress, run by kvpress itself on a transformers model with the same weights.

python -m pytest tests/parity/test_kvpress.py

Compared in protocol `oneshot` (kvpress cuts once, after a full forward) with the protection of its presses: no sinks,
and as recent entries SnapKV's window, TOVA's last token. Named differences, switched off or allowed for here:

    sinks      our rows protect 4 sinks in every method; kvpress protects them in StreamingLLM alone
    window     our SnapKV defaults to W = 32, kvpress to 64
    budget     we count kept slots; kvpress removes a ratio, and keeps floor(P * (1 - ratio)) of P
    ties       we keep the newer entry; kvpress leaves a tie to torch.topk. Two sets may differ in entries whose scores
               lie within TIE of the last score kept, and in nothing else
    order      kvpress stores entries by score, we by position: sets are compared
    refusals   kvpress refuses prompts no longer than the window, we score with the queries there are; we refuse a
               window larger than the budget, kvpress drops some of it
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
import transformers

from nexus import fetch, methods
from nexus.answers import answer_batch
from nexus.generate import Session, Settings
from nexus.models import load_safetensors
from nexus.models.load import Model, load_model
from nexus.models.tokenizer import byte_tokenizer
from tests.fixtures import make_model_fixtures

with warnings.catch_warnings():  # one of its packages imports a deprecated module, and warnings are errors here
    warnings.simplefilter("ignore", DeprecationWarning)
    import kvpress

TIE = 1e-5  # relative to the last score kept
VOCAB = 640
SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, max_position_embeddings=1024)
FAMILIES = {
    "llama": transformers.LlamaConfig(**SIZES, num_attention_heads=6, num_key_value_heads=2),
    "llama-scaled": transformers.LlamaConfig(
        **SIZES, num_attention_heads=4, num_key_value_heads=4, rope_theta=5e5, head_dim=16,
        rope_scaling=make_model_fixtures.LLAMA3_ROPE,
    ),
    "qwen2": transformers.Qwen2Config(**SIZES, num_attention_heads=6, num_key_value_heads=2),
    "qwen3": transformers.Qwen3Config(**SIZES, num_attention_heads=6, num_key_value_heads=3, head_dim=16),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One method, the press it is compared with, and what the press protects."""

    method: str
    press: type
    options: dict[str, int] = dataclasses.field(default_factory=dict)  # ours
    press_options: dict[str, int] = dataclasses.field(default_factory=dict)
    num_sinks: int = 0

    def ours(self, budget: int) -> methods.Method:
        """With the row's own recent entries: snapkv its window, tova the last token, the others none."""
        return methods.build(self.method, budget=budget, num_sinks=self.num_sinks, **self.options)

    def theirs(self, budget: int, length: int) -> kvpress.ScorerPress:
        """Half an entry more than the budget, so that kvpress' floor is the budget whatever its rounding does."""
        return self.press(compression_ratio=1 - (budget + 0.5) / length, **self.press_options)


def snapkv(window: int, kernel: int) -> Case:
    return Case(
        "snapkv", kvpress.SnapKVPress, dict(window=window, kernel=kernel), dict(window_size=window, kernel_size=kernel)
    )


CASES = {
    "snapkv": snapkv(16, 5),
    "keydiff": Case("keydiff", kvpress.KeyDiffPress),
    "knorm": Case("knorm", kvpress.KnormPress),
    "tova": Case("tova", kvpress.TOVAPress),
    "streaming_llm": Case("streaming_llm", kvpress.StreamingLLMPress, num_sinks=4),
}


# --- both sides --------------------------------------------------------------------------------------------------


def kept_by_kvpress(
    model: transformers.PreTrainedModel, press: kvpress.ScorerPress, ids: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions kept [L,K,M], increasing, and scores [L,K,P] of one real forward under the press.

    The press sorts positions in the place of values: none of these presses reads a value.
    """
    seen: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    class Recorded(type(press)):  # type: ignore[misc]
        def compress(self, module, hidden_states, keys, values, attentions, kwargs):
            scores = self.score(module, hidden_states, keys, values, attentions, kwargs)
            positions = torch.arange(keys.shape[2], dtype=torch.float32)[:, None].expand(keys.shape)
            out = super().compress(module, hidden_states, keys, positions, attentions, kwargs)
            kept = out[1][0, :, :, 0].to(torch.int64).sort(dim=-1).values
            at = kept[None, :, :, None].expand(1, -1, -1, keys.shape[-1])
            seen[module.layer_idx] = kept.numpy(), scores[0].float().numpy()
            return keys.gather(2, at), values.gather(2, at)

    cache = transformers.DynamicCache()
    with torch.no_grad(), Recorded(**dataclasses.asdict(press))(model):
        model.model(torch.tensor([ids]), past_key_values=cache)
    return tuple(np.stack([seen[layer][part] for layer in sorted(seen)]) for part in (0, 1))  # type: ignore[return-value]


def kept_by_us(model: Model, method: methods.Method, ids: list[int]) -> np.ndarray:
    """Positions kept [L,K,M], increasing."""
    session = Session(model, method, Settings(protocol="oneshot"), 1, capacity=len(ids))
    session.feed([ids])
    session.compress()
    return np.asarray(session.kept()[0])


def assert_same_sets(ours: np.ndarray, theirs: np.ndarray, scores: np.ndarray) -> int:
    """Equal sets for every (layer, head), ties apart; returns how many heads needed that allowance."""
    assert ours.shape == theirs.shape
    tied = 0
    for layer, head in np.ndindex(*ours.shape[:2]):
        score = scores[layer, head]
        last = score[theirs[layer, head]].min()
        differ = np.setxor1d(ours[layer, head], theirs[layer, head])
        off = np.abs(score[differ] - last)
        assert (off <= TIE * abs(last)).all(), f"{layer=} {head=} {differ=} {off=} {last=}"
        tied += len(differ) > 0
    return tied


def compare(pair: tuple[transformers.PreTrainedModel, Model], case: Case, ids: list[int], budget: int) -> int:
    reference, model = pair
    theirs, scores = kept_by_kvpress(reference, case.theirs(budget, len(ids)), ids)
    assert theirs.shape[-1] == budget
    return assert_same_sets(kept_by_us(model, case.ours(budget), ids), theirs, scores)


# --- random weights ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """family, attention -> (transformers model, ours with the same weights)."""
    made: dict[tuple[str, str], tuple[transformers.PreTrainedModel, Model]] = {}

    def get(family: str, attention: str = "eager"):
        if (family, attention) not in made:
            directory = tmp_path_factory.mktemp(family)
            fresh = transformers.AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation=attention)
            make_model_fixtures.randomise(fresh, seed=3)
            fresh.eval().save_pretrained(directory)
            cfg = load_safetensors.config(directory, name=family, dtype="float32")
            ours = Model(cfg, load_safetensors.params(directory, cfg), byte_tokenizer(bos=False))
            made[family, attention] = fresh, ours
        return made[family, attention]

    return get


def distinct(length: int, seed: int = 0) -> list[int]:
    """No token twice: the norm of a first-layer key is a function of its token, and would tie."""
    return np.random.default_rng(seed).permutation(VOCAB)[:length].tolist()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])  # eager hands its probabilities to the press
@pytest.mark.parametrize(("length", "budget"), [(96, 40), (540, 101)])  # 540: a second chunk that cuts the window
@pytest.mark.parametrize("name", CASES)
def test_same_entries(name, length, budget, attention, pairs):
    """Heads averaged as (G, K), a window renormalised after the cut, another border of the pool, keys before RoPE: each
    changes the sets."""
    assert compare(pairs("llama", attention), CASES[name], distinct(length), budget) == 0


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama"])
@pytest.mark.parametrize("name", CASES)
def test_same_entries_in_every_family(name, family, pairs):
    """Scaled frequencies, biases, qk-norm and other ratios of heads reach the scores."""
    assert compare(pairs(family), CASES[name], distinct(96, seed=1), 40) == 0


@pytest.mark.parametrize(
    ("window", "kernel", "length", "budget"),
    [(64, 5, 96, 80), (64, 5, 540, 270), (16, 1, 96, 40), (16, 7, 96, 17), (1, 5, 96, 40), (16, 5, 17, 16)],
)
def test_same_entries_at_every_window(window, kernel, length, budget, pairs):
    """kvpress' defaults, no pooling, room for one entry beside the window, a prompt one longer than the window."""
    assert compare(pairs("llama"), snapkv(window, kernel), distinct(length, seed=2), budget) == 0


@pytest.mark.parametrize("changes", [dict(kernel=7), dict(window=15), dict(pool="max")])
def test_the_comparison_can_fail(changes, pairs):
    """Sets that agreed under other settings would say nothing about the rule."""
    case = dataclasses.replace(CASES["snapkv"], options=CASES["snapkv"].options | changes)
    with pytest.raises(AssertionError, match="layer="):
        compare(pairs("llama"), case, distinct(96), 40)


# --- the embedded model ------------------------------------------------------------------------------------------

THINGS = ["ropes", "two lamps", "a broken oar", "paint", "charts of the bay", "his coat", "letters"]
CONTEXT = make_model_fixtures.TEXT + " He wrote the numbers of the lockers on the wall of the shed:\n" + "".join(
    f"locker {3 * n + 1} opens with {(7919 * n * n + 48121) % 100000}, {what};\n"
    for n, what in enumerate(THINGS)
)  # fmt: skip
QUESTION = "\nWhich locker holds the charts of the bay, and what did the old man repair?"


@pytest.fixture(scope="module")
def embedded():
    ours = load_model(fetch.SMOLLM2.name, dtype="float32")
    reference = make_model_fixtures.embedded_model(fetch.fetch(fetch.SMOLLM2))
    reference.generation_config.eos_token_id = list(ours.config.eos_ids)
    return reference, ours


@pytest.fixture(scope="module")
def prompt(embedded):
    return embedded[1].tokenizer.prompt(CONTEXT, QUESTION, "")


@pytest.mark.parametrize("name", CASES)
def test_same_entries_of_the_embedded_model(name, embedded, prompt):
    """Thirty layers of trained weights and a text with repeated tokens, so first-layer norms do tie in knorm."""
    context = prompt[0]
    assert 250 < len(context) < 350
    compare(embedded, CASES[name], context, len(context) // 2)


class Numbers:
    """A tokenizer for kvpress' pipeline that leaves answers as numbers."""

    @staticmethod
    def decode(ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


def answer_of_kvpress(model, press, context: list[int], question: list[int], tokens: int) -> list[int]:
    """The forward of kvpress' pipeline on ids: prefill under the press, then question and answer at true positions."""
    pipeline = kvpress.KVPressTextGenerationPipeline.__new__(kvpress.KVPressTextGenerationPipeline)
    pipeline.model, pipeline.tokenizer = model, Numbers()
    inputs = {"context_ids": torch.tensor([context]), "questions_ids": [torch.tensor([question])]}
    with torch.no_grad():
        (answer,) = pipeline._forward(inputs, max_new_tokens=tokens, press=press)
    return [int(token) for token in answer.split()]


@pytest.mark.parametrize("name", ["snapkv", "streaming_llm"])
def test_same_answer(name, embedded, prompt):
    """Greedy, at half of the context: question and answer go on top of what was kept (tail `free`), at the positions
    they have in the whole text. Not for knorm, whose ties in the first layer leave a choice."""
    (reference, model), (context, question) = embedded, prompt
    budget, tokens = len(context) // 2, 16
    expected = answer_of_kvpress(reference, CASES[name].theirs(budget, len(context)), context, question, tokens)
    settings = Settings(protocol="oneshot", tail="free")
    got = answer_batch(model, CASES[name].ours(budget), settings, [context], [question], tokens)
    assert (got.kept == budget).all()
    assert got.tokens[0] == [token for token in expected if token not in model.config.eos_ids]
