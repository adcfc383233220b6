"""What tests of scorers share: a buffer with unequal and empty heads, seen as a scorer sees it."""

from __future__ import annotations

import functools

import numpy as np

from nexus import buffer as kv
from nexus.scorers import Entries
from nexus.shapes import Layout
from tests import tiny

L, K, G, H, M, C = 2, 2, 3, 4, 6, 5
COUNTS = np.array([[[0, 6], [3, 6]], [[1, 2], [6, 0]]])
TAIL = [C, 2]


@functools.cache
def filled(pools: int, dtype: str = "float32", aux: tuple[str, ...] = ()):
    """Entries and the same as lists [sequence][layer][head]; whatever holds nothing is NaN."""
    layout = Layout(num_layers=L, num_kv_heads=K, num_groups=G, head_dim=H, budget=M, tail=C, pools=pools, dtype=dtype)
    buf, lists = tiny.filled(layout, COUNTS, TAIL, dead=float("nan"), aux=aux)
    return Entries(buffer=buf, cand=kv.candidates(buf)), lists


def by_head(entries: Entries, x) -> dict[tuple[int, int], np.ndarray]:
    """(sequence, owner) -> what x [B,P,n,...] says about its entries, in order of position."""
    owner, valid = np.asarray(entries.cand.owner), np.asarray(entries.valid)
    x = np.broadcast_to(x, owner.shape + np.shape(x)[3:])
    return {(b, o): np.concatenate([x[b, p][valid[b, p] & (owner[b, p] == o)] for p in range(x.shape[1])])
            for b in range(2) for o in range(L * K)}  # fmt: skip
