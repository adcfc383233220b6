"""Models and tokenizers against transformers itself, made fresh. Needs the environment of requirements-parity.txt.

python -m pytest tests/parity/test_models_live.py
"""

import numpy as np
import pytest
import torch
import transformers

from nexus import fetch
from nexus.models import load_gguf, tokenizer_gguf
from nexus.models.load import load_model
from tests.fixtures import make_model_fixtures
from tests.models import dense

SIZES = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, max_position_embeddings=512)
LLAMA3 = dict(
    rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
CASES = {
    "llama-linear": transformers.LlamaConfig(
        **SIZES, num_attention_heads=6, num_key_value_heads=2, rope_scaling=dict(rope_type="linear", factor=3.0)
    ),
    "llama-32": transformers.LlamaConfig(
        **SIZES, num_attention_heads=6, num_key_value_heads=6, rope_theta=5e5, rope_scaling=LLAMA3, head_dim=16
    ),
    "mistral": transformers.MistralConfig(**SIZES, num_attention_heads=8, num_key_value_heads=1, sliding_window=30),
    "qwen2": transformers.Qwen2Config(**SIZES, num_attention_heads=6, num_key_value_heads=2, rope_theta=1e6),
    "qwen2-window": transformers.Qwen2Config(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, use_sliding_window=True, sliding_window=20,
        max_window_layers=0,
    ),
    "qwen3": transformers.Qwen3Config(**SIZES, num_attention_heads=5, num_key_value_heads=1, head_dim=32),
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_fresh_models_agree(name, tied, tmp_path):
    config = CASES[name]
    config.tie_word_embeddings = tied
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    make_model_fixtures.randomise(model, seed=7)
    model.tie_weights()
    model.save_pretrained(tmp_path)
    make_model_fixtures.byte_level([]).save(str(tmp_path / "tokenizer.json"))
    ours = _without_tokenizer(tmp_path)
    tokens = torch.randint(0, 97, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens).logits.numpy()
    logits = dense.all_logits(*ours, tokens.numpy())
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


def _without_tokenizer(directory):
    from nexus.models import load_safetensors

    cfg = load_safetensors.config(directory, name="fresh", dtype="float32")
    return cfg, load_safetensors.params(directory, cfg)


@pytest.mark.parametrize("name", dense.NAMES)
def test_stored_logits_are_those_of_transformers(name):
    """The fixtures of the default suite have not drifted from what transformers computes today."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        dense.directory(name), dtype=torch.float32, attn_implementation="eager"
    )
    with np.load(dense.directory(name) / "logits.npz") as stored, torch.no_grad():
        logits = model(torch.tensor(stored["tokens"], dtype=torch.long)).logits.numpy()
        np.testing.assert_allclose(logits, stored["logits"], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in dense.NAMES if name != "mistral"])
def test_prompts_equal_apply_chat_template(name):
    """The two halves of a prompt are the ids transformers makes of the whole conversation."""
    reference = transformers.AutoTokenizer.from_pretrained(dense.directory(name))
    tokenizer = load_model(dense.directory(name)).tokenizer
    context, question = "The harbour is silent. 12345\n", "where is the boat?"
    messages = [{"role": "user", "content": context + question}]
    options = dict(add_generation_prompt=True, enable_thinking=False)
    assert tokenizer.chat(messages) == reference.apply_chat_template(messages, tokenize=False, **options)
    before, after = tokenizer.prompt(context, question, "")
    assert before + after == reference.apply_chat_template(messages, tokenize=True, **options)


def test_prompt_without_template_equals_the_tokenizer():
    reference = transformers.AutoTokenizer.from_pretrained(dense.directory("mistral"))
    before, after = load_model(dense.directory("mistral")).tokenizer.prompt("The harbour.\n", "where?", "")
    assert before + after == reference("The harbour.\nwhere?").input_ids


TEXTS = [
    make_model_fixtures.TEXT,
    "for i in range(1000):\n    print(f'{i:>5}', end='\\t')\n\n\n# caf\u00e9 \u4f60\u597d \U0001f600 3.14159",
]


@pytest.fixture(scope="module")
def embedded():
    path = fetch.fetch(fetch.SMOLLM2)
    return load_gguf.GGUFFile(path), make_model_fixtures.embedded_model(path)


def test_embedded_tokenizer_equals_transformers(embedded):
    path = fetch.fetch(fetch.SMOLLM2)
    reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = tokenizer_gguf.from_metadata(embedded[0].metadata, "embedded")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert reference.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    messages = [{"role": "user", "content": TEXTS[0]}]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.chat(messages) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_embedded_model_agrees(embedded, text):
    file, reference = embedded
    cfg = load_gguf.config(file, name="embedded", dtype="float32")
    tokens = tokenizer_gguf.from_metadata(file.metadata, "embedded").encode(text)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits.numpy()
    logits = dense.all_logits(cfg, load_gguf.params(file, cfg), np.asarray([tokens]))
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def test_embedded_greedy_continuation_agrees(embedded):
    """What is generated, token for token, with the full cache of transformers."""
    model = load_model("smollm2-135m-instruct", dtype="float32")
    before, after = model.tokenizer.prompt("The key is 48121. The lock is blue.\n", "What is the key?", "")
    ids = before + after
    with torch.no_grad():
        expected = embedded[1].generate(
            torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=list(model.config.eos_ids)
        )[0].tolist()  # fmt: skip
    length = len(expected)
    padded = np.zeros((1, length), np.int64)
    for at in range(len(ids), length):
        padded[0, : len(ids)] = ids
        ids.append(int(dense.all_logits(model.config, model.params, padded)[0, at - 1].argmax()))
    assert ids == expected
