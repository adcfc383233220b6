"""Run by test_sharding.py in a process of its own: prints losses on several meshes, and whether kept sets agree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax  # noqa: E402  (after the flag)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

from nexus import decode, gates  # noqa: E402
from nexus.gates import GateConfig  # noqa: E402
from nexus.training import retention, sharding  # noqa: E402
from nexus.training.retention import Batch, Recipe, State  # noqa: E402
from nexus.training.sharding import MeshShape  # noqa: E402
from tests import tiny  # noqa: E402

T, B, STEPS = 48, 8, 3
SHAPE = GateConfig(kind="three_layer", width=8, tied=True, bias=1.0)
RECIPE = Recipe(  # soft cuts, as trainings have by default: thresholds over all layers and heads
    budget=4, context_positions=6, answer_positions=8, hinge_positions=16, sinks=2,
    cut_least=0.2, cut_most=0.5, cut_every=16,
)  # fmt: skip


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    place = np.tile(np.arange(T), (B, 1))
    answer = place >= T - 5
    tokens = rng.integers(0, tiny.CFG.vocab_size, (B, T))
    return Batch(tokens.astype(np.int32), np.zeros((B, T), np.int32), place.astype(np.int32), answer, place == T - 5)


def losses(mesh: jax.sharding.Mesh) -> list[float]:
    params = tiny.model().params
    params = jax.device_put(params, sharding.of(mesh, params))
    optimizer = optax.adam(1e-2)
    fresh = gates.init(tiny.CFG, SHAPE, jax.random.key(0))
    state = State(jnp.int32(0), fresh, optimizer.init(fresh), jax.random.key_data(jax.random.key(1)))
    state = jax.device_put(state, sharding.of(mesh, state))
    step = jax.jit(
        retention.make_step(tiny.CFG, SHAPE, RECIPE, optimizer),
        out_shardings=(jax.tree.map(lambda x: x.sharding, state), None),
    )
    out = []
    for i in range(STEPS):
        state, numbers = step(params, state, jax.device_put(batch(i), sharding.by_rows(mesh)))
        out.append(float(numbers["loss"]))
    return out


# One of each kind: a global budget with unequal heads, keys that are rotated again, statistics of all queries, products
# with other matrices, draws.
METHODS = ("global_retention", "streaming_llm-cache", "h2o", "laprox", "nexus_sampling")


def kept(mesh: jax.sharding.Mesh, name: str) -> list[np.ndarray]:
    """Positions kept by a method after a prefill with the buffer split by sequence."""
    method = tiny.build(name)
    layout = method.layout(tiny.CFG, tail=tiny.CHUNK)
    params = decode.with_weights(tiny.CFG, method, tiny.model().params)
    params = jax.device_put(params, sharding.of(mesh, params))
    buf = decode.init_buffer(method, layout, B)
    buf = jax.device_put(buf, sharding.buffer(mesh, buf))
    lengths = jnp.asarray([37, 5, 20, 40, 33, 12, 8, 29])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, tiny.CFG.vocab_size, (B, 40)), jnp.int32)
    rows = sharding.by_rows(mesh)
    start = jnp.zeros((B, tiny.CFG.dim), jnp.float32)
    run = jax.jit(lambda p, b, t, n, h: decode.prefill(tiny.CFG, method, tiny.CHUNK, True, p, b, t, n, h)[0])
    out = run(params, buf, *(jax.device_put(x, rows) for x in (tokens, lengths, start)))
    return [np.asarray(out.pos), np.asarray(out.start), np.asarray(out.count)]


one = sharding.make_mesh(MeshShape(), jax.devices()[:1])
print("one", *losses(one))
for name, shape in {
    "data": MeshShape(),
    "fsdp": MeshShape(fsdp=8),
    "model": MeshShape(fsdp=4, model=2),
    "all": MeshShape(data=2, fsdp=2, model=2),
}.items():
    print(name, *losses(sharding.make_mesh(shape)))
several = sharding.make_mesh(MeshShape(data=4, fsdp=2))
for name in METHODS:
    same = all((a == b).all() for a, b in zip(kept(one, name), kept(several, name), strict=True))
    print(f"kept-{name}", "same" if same else "different")
