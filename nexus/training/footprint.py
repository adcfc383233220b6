"""What a training of gates needs on every device: bytes and floating-point operations, from configs alone.

    python -m nexus.training.footprint                        # Llama-3.1-8B, rows of 32,768 tokens, 16 devices
    python -m nexus.training.footprint --fsdp 8 --row 16384 --batch 8

Counted, per device: parameters in bfloat16 divided by fsdp x model (and one layer gathered whole); gates and AdamW in
float32; what enters each layer, kept for the backward pass; one layer computed again; soft cuts (what one layer's keys
are worth after every cut, its gradient, and as one block of queries sees it; all layers' rates, whether they live, and
what enters the gates of the teacher's pass); logits of a block of positions.
FLOPs: teacher forward, student forward, the student again, and its backward pass through activations (no weight of
the model has a gradient), each 2 x parameters x tokens and the attention. An estimate for planning, not measured.
"""

from __future__ import annotations

import argparse
import dataclasses

import jax

from nexus import gates, rope
from nexus.gates import GateConfig
from nexus.models import transformer
from nexus.models.config import ModelConfig
from nexus.training.attention import block_size
from nexus.training.losses import ROWS
from nexus.training.retention import Recipe
from nexus.training.sharding import MeshShape

LLAMA_31_8B = ModelConfig(
    name="Llama-3.1-8B", family="llama", num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, dim=4096,
    ffn_dim=14336, vocab_size=128256, max_position=131072, rms_eps=1e-5, rope=rope.RopeConfig(theta=500000.0),
    tied_embeddings=False, dtype="bfloat16",
)  # fmt: skip
WIDE = 2  # bytes of bfloat16
PASSES = 4  # teacher, student, student again, backward through activations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one device, and FLOPs of one step on one device."""

    parameters: int
    gathered_layer: int
    gates_and_optimizer: int
    layer_inputs: int
    one_layer: int
    soft_cuts: int
    logits: int
    flops: float

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "flops")


def footprint(cfg: ModelConfig, gate: GateConfig, mesh: MeshShape, row: int, batch: int) -> Footprint:
    """Raises ValueError when the rows of a step cannot be shared by the devices."""
    sharers = mesh.data * mesh.fsdp
    if batch % sharers:
        raise ValueError(f"a batch of {batch} rows cannot be shared by {sharers} devices")
    rows = batch // sharers
    shapes = transformer.param_shapes(cfg)
    count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))  # noqa: E731
    blocks, whole = count(shapes["blocks"]), count(shapes)
    trained = count(jax.eval_shape(lambda: gates.init(cfg, gate, jax.random.key(0))))
    tokens = rows * row
    heads = cfg.num_heads // mesh.model if cfg.num_heads % mesh.model == 0 else cfg.num_heads
    width = (cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim + 3 * cfg.ffn_dim
    attention = 4 * cfg.num_layers * cfg.num_heads * cfg.head_dim * batch * row * row / 2
    if row > 2048:
        attention *= 2  # long rows meet all keys, see training/attention.py
    products = 2 * blocks * batch * row
    return Footprint(
        parameters=WIDE * whole // (mesh.fsdp * mesh.model),
        gathered_layer=WIDE * blocks // cfg.num_layers // mesh.model,
        gates_and_optimizer=4 * 3 * trained,
        layer_inputs=WIDE * cfg.num_layers * tokens * cfg.dim,
        one_layer=WIDE * tokens * (width // mesh.model + 4 * cfg.dim) + 4 * 3 * rows * heads * block_size(row) * row,
        soft_cuts=_soft_cuts(cfg, rows, row),
        logits=4 * 2 * rows * ROWS * cfg.vocab_size,
        flops=PASSES * (products + attention) / (sharers * mesh.model),
    )


def _soft_cuts(cfg: ModelConfig, rows: int, row: int) -> int:
    """Rates and cuts are not divided by a model axis: a global threshold needs all heads."""
    K, C = cfg.num_kv_heads, -(-row // Recipe().cut_every) + Recipe().cut_marks
    worth = 4 * rows * K * row * (2 * C + block_size(row))
    rates = (4 + 1) * cfg.num_layers * rows * K * row
    return worth + rates + WIDE * cfg.num_layers * rows * row * cfg.dim


def table(found: Footprint) -> str:
    """Markdown for a person."""
    lines = ["| on each device | GB |", "|---|---:|"]
    names = [field.name for field in dataclasses.fields(found) if field.name != "flops"]
    lines += [f"| {name.replace('_', ' ')} | {getattr(found, name) / 1e9:.2f} |" for name in names]
    lines += [f"| **total** | **{found.total / 1e9:.2f}** |", "", f"{found.flops / 1e15:.2f} PFLOP a step"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value, about in (
        ("data", 1, "devices along data"), ("fsdp", 16, "devices along fsdp"), ("model", 1, "devices along model"),
        ("row", 32768, "tokens of a row"), ("batch", 16, "rows of a step, all devices"), ("width", 512, "of the gates"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{about} (default {value})")
    given = parser.parse_args()
    mesh = MeshShape(data=given.data, fsdp=given.fsdp, model=given.model)
    gate = GateConfig(kind="three_layer", width=given.width, tied=True, bias=8.0)
    print(f"{LLAMA_31_8B.name}, {given.batch} rows of {given.row} tokens, mesh {mesh}\n")
    print(table(footprint(LLAMA_31_8B, gate, mesh, given.row, given.batch)))


if __name__ == "__main__":
    main()
