"""The static shape of a cache and its bytes."""

from __future__ import annotations

import pytest

from nexus import buffer as kv
from nexus.models.presets import PRESETS
from nexus.shapes import Layout

SIZES = dict(num_layers=2, num_kv_heads=3, num_groups=4, head_dim=8, budget=16, tail=4, pools=6)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_key_value_heads(name, dtype):
    """Heads repeated before caching cost G times the memory (FasterDecoding/SnapKV#29, FYYFU/HeadKV#3)."""
    cfg = PRESETS[name]
    L, K, H, M, C, B = cfg.num_layers, cfg.num_kv_heads, cfg.head_dim, 32, 8, 2
    for pools in {1, L, L * K}:
        layout = Layout(
            num_layers=L,
            num_kv_heads=K,
            num_groups=cfg.num_groups,
            head_dim=H,
            budget=M,
            tail=C,
            pools=pools,
            dtype=dtype,
        )
        expected = B * L * K * (M + C) * 2 * H * (2 if dtype == "bfloat16" else 4)
        assert layout.kv_bytes(B) == expected
        if dtype == "float32" and pools == 1:
            assert kv.init(layout, B).kv_bytes_allocated() == expected


def test_a_pool_is_shared_by_its_heads_only():
    """Rows of a pool: everything for one pool, K * M per layer, M per head."""
    rows = {pools: Layout(**SIZES | {"pools": pools}).pool_rows for pools in (1, 2, 6)}
    assert rows == {1: 96, 2: 48, 6: 16}
    assert [Layout(**SIZES | {"pools": pools}).dense for pools in (1, 2, 6)] == [False, False, True]


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "num_groups", "head_dim", "budget", "tail"])
def test_sizes_below_one_are_refused(name):
    """A budget of 0 once gave an empty cache and NaN without an error (NVIDIA/kvpress#264)."""
    with pytest.raises(ValueError, match=f"Layout.{name} must be at least 1, got 0"):
        Layout(**SIZES | {name: 0})


def test_pools_that_split_a_layer_are_refused():
    """Pools of half a layer would let segments of two layers overlap."""
    with pytest.raises(ValueError, match="pools must be 1, 2 or 6, got 3"):
        Layout(**SIZES | {"pools": 3})
