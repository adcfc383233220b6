"""Compiled programs are kept on disk: the second start with the same shapes compiles nothing.

They lie in the cache of `nexus.fetch`, in a folder named after the processor: XLA compiles for the one it runs on, and
a cache may be shared between machines. JAX_COMPILATION_CACHE_DIR names another folder. launch.py does this; a library
does not, so in a notebook call `keep_programs()` before the first model is loaded.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import jax

from nexus import fetch

LARGEST = 2**30  # bytes of the folder; what was not used for longest goes first
CPU_INFO = Path("/proc/cpuinfo")


def keep_programs() -> Path:
    """From now on programs are read from and written to this folder."""
    named = jax.config.values["jax_compilation_cache_dir"]
    if named:
        return Path(named)
    folder = fetch.cache_dir() / "xla" / processor()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many small ones are most of a short start
    return folder


def processor() -> str:
    """A name for what the processor can do."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    said = sorted({line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features")})
    text = "\n".join(said) or platform.processor() or platform.machine()
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
