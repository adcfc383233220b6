"""The other side of the benchmark is the same model and the same cut, in the environment of requirements-parity.txt."""

import numpy as np
import pytest
import torch

from experiments.bench import theirs
from nexus.models.load import load_model
from tests.models import dense


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama2", "tiny-llama31"])
def test_their_model_has_our_weights(name):
    model = load_model(name, dtype="float32")
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, 300))
    with torch.inference_mode():
        expected = theirs.build(model)(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(dense.all_logits(model.config, model.params, tokens), expected, atol=2e-4, rtol=1e-3)


def test_a_mixed_model_gives_its_rounded_matrices():
    """Theirs in float32 on those is as near to ours as rounding what goes into a product allows; in bfloat16, less."""
    model = load_model("tiny-llama", dtype="mixed")
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, 200))
    ours = dense.all_logits(model.config, model.params, tokens)
    off = {}
    for dtype in theirs.DTYPES:
        with torch.inference_mode():
            other = theirs.build(model, dtype)
            assert {str(p.dtype) for p in other.parameters()} == {f"torch.{dtype}"}
            off[dtype] = np.abs(other(torch.tensor(tokens)).logits.float().numpy() - ours).mean() / ours.std()
    assert off["float32"] < off["bfloat16"] < 0.05


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a package that kvpress imports
def test_the_press_keeps_the_budget_and_answers():
    model = load_model("tiny-llama", dtype="float32")
    other = theirs.build(model)
    ids = np.random.default_rng(0).integers(0, 256, 600).tolist()
    press = theirs.SnapKV(model=other, budget=100, window=32, kernel=5, eos_ids=())
    held = []
    hook = other.model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: held.append(kwargs["past_key_values"].get_seq_length()), with_kwargs=True
    )
    tokens = press.answer(ids, [1, 2, 3], 4)
    hook.remove()
    assert len(tokens) == 4 and held == [0, 100, 103, 104, 105]


def test_decoding_starts_from_the_same_length_every_time():
    decode = theirs.decoder(theirs.build(load_model("tiny-llama", dtype="float32")), [[1, 2, 3, 4]], 3)
    assert decode() > 0 and decode() > 0
