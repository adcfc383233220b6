"""Scorers: one idea per file; `base.py` is the interface."""

from nexus.scorers.accumulated_attention import AccumulatedAttention
from nexus.scorers.base import Call, Entries, Scorer
from nexus.scorers.block_walk import BlockWalk
from nexus.scorers.counter_causal import CounterCausal
from nexus.scorers.critical_kv import CriticalKV
from nexus.scorers.eviction_order import EvictionOrder
from nexus.scorers.expected_attention import ExpectedAttention
from nexus.scorers.foresight import Foresight
from nexus.scorers.gkv import GlobalAttention
from nexus.scorers.key_difference import KeyDifference
from nexus.scorers.key_norm import KeyNorm
from nexus.scorers.lag import LagRelative
from nexus.scorers.laprox import LaProx
from nexus.scorers.random_draw import RandomDraw
from nexus.scorers.recency import Recency
from nexus.scorers.replay import Replay
from nexus.scorers.retention import Retention
from nexus.scorers.retrieval_heads import RetrievalHeads
from nexus.scorers.rkv import RedundancyAware
from nexus.scorers.soft_queries import SoftQueries
from nexus.scorers.unigram import Unigram
from nexus.scorers.window import WindowAttention

__all__ = [
    "AccumulatedAttention", "BlockWalk", "Call", "CounterCausal", "CriticalKV", "Entries", "EvictionOrder",
    "ExpectedAttention", "Foresight", "GlobalAttention", "KeyDifference", "KeyNorm", "LaProx", "LagRelative",
    "RandomDraw", "Recency", "RedundancyAware", "Replay", "Retention", "RetrievalHeads", "Scorer", "SoftQueries",
    "Unigram", "WindowAttention",
]  # fmt: skip
