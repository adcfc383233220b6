"""nexus: streaming KV-cache eviction under a fixed budget, in JAX. `nexus.load(name)` is the door, see `lm.py`."""

from nexus.lm import load

__all__ = ["load"]
