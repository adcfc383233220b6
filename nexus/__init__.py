"""nexus: streaming KV-cache eviction under a fixed budget, in JAX. `nexus.load(name)` is the door, see `lm.py`."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from nexus.lm import LM


def load(name_or_path: str, dtype: str | None = None) -> LM:
    """A language model by local path, embedded or preset name, or hub name; see `nexus.lm.load`."""
    from nexus import lm  # here, so that importing one module of the package does not import all

    return lm.load(name_or_path, dtype)
