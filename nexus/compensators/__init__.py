"""Compensators: what evicted entries leave behind. One idea per file; `base.py` is the interface."""

from nexus.compensators.base import Compensator, Nothing

__all__ = ["Compensator", "Nothing"]
