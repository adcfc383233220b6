"""Scorers: one idea per file; `base.py` is the interface."""

from nexus.scorers.accumulated_attention import AccumulatedAttention
from nexus.scorers.base import Call, Entries, Scorer
from nexus.scorers.key_difference import KeyDifference
from nexus.scorers.key_norm import KeyNorm
from nexus.scorers.random_draw import RandomDraw
from nexus.scorers.recency import Recency
from nexus.scorers.window import WindowAttention

__all__ = [
    "AccumulatedAttention", "Call", "Entries", "KeyDifference", "KeyNorm", "RandomDraw", "Recency", "Scorer",
    "WindowAttention",
]  # fmt: skip
