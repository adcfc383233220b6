"""Writes a checkpoint fixture as a GGUF file, the way the converter of llama.cpp does."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

from nexus.models.load_gguf import checkpoint_name
from tests.models import dense

NAMES = ["token_embd.weight", "output_norm.weight", "output.weight"]
PARTS = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rotate-halves to interleaved rows, as llama.cpp's convert_hf_to_gguf.py writes architecture llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gpt2_metadata(writer: gguf.GGUFWriter, name: str, pre: str) -> None:
    """Vocabulary and merges of the fixture's tokenizer.json; its special tokens as control tokens."""
    spec = json.loads((dense.directory(name) / "tokenizer.json").read_text(encoding="utf-8"))
    specials = {token["content"]: token["id"] for token in spec["added_tokens"]}
    vocab = spec["model"]["vocab"] | specials
    tokens = sorted(vocab, key=vocab.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in specials else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    writer.add_eos_token_id(vocab.get("<|im_end|>", 0))
    writer.add_chat_template(CHATML)


def write(
    path: Path,
    name: str,
    architecture: str,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    rope_factors: np.ndarray | None = None,
    drop: tuple[str, ...] = (),
    changes: dict[str, int] | None = None,
) -> Path:
    """`kind` quantises the matrices; `drop` leaves tensors out; `changes` overrides sizes of the metadata."""
    hf = json.loads((dense.directory(name) / "config.json").read_text(encoding="utf-8"))
    heads, kv_heads = hf["num_attention_heads"], hf["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {"head_count": heads, "head_count_kv": kv_heads, "feed_forward_length": hf["intermediate_size"]}
    sizes |= {"embedding_length": hf["hidden_size"], "block_count": hf["num_hidden_layers"], "context_length": 256}
    for key, value in (sizes | (changes or {})).items():
        getattr(writer, f"add_{key}")(value)
    writer.add_key_length(hf.get("head_dim") or hf["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    writer.add_rope_freq_base(hf["rope_theta"])
    gpt2_metadata(writer, name, pre)
    stored = {}
    for file in dense.directory(name).glob("*.safetensors"):
        stored |= safetensors.numpy.load_file(file)
    layers = [f"blk.{n}.{part}" for n in range(hf["num_hidden_layers"]) for part in PARTS]
    for tensor in [*NAMES, *(f"{stem}.{end}" for stem in layers for end in ("weight", "bias"))]:
        if checkpoint_name(tensor) not in stored or tensor in drop:
            continue
        value = stored[checkpoint_name(tensor)].astype(np.float32)
        if architecture == "llama" and (".attn_q." in tensor or ".attn_k." in tensor):
            value = permute(value, heads if ".attn_q." in tensor else kv_heads)
        if value.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor, gguf.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, value)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
