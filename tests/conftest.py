"""What all tests share: programs are compiled quickly, and do not pile up.

Nearly all time of the tests is compiling programs that run for milliseconds: XLA optimises them as little as it can
here, which halves it. `XLA_FLAGS= python -m pytest` tests what users run; so does tests/parity.

A process that holds thousands of programs runs out of memory maps and dies. Tests of one case (one method) stand
together, and what was compiled for it goes when the next one begins.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from nexus import programs

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

_last: dict[str, Any] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a file, by case; tests without one come first, in their order."""
    files = {item.path: number for number, item in reversed(list(enumerate(items)))}
    cases: dict[Any, int] = {}
    for item in items:
        cases.setdefault(_case(item), len(cases))
    items.sort(key=lambda item: (files[item.path], -1 if _case(item) is None else cases[_case(item)]))


def _case(item: Any) -> Any:
    found = getattr(item, "callspec", None)
    return repr(found.params["case"]) if found and "case" in found.params else None


@pytest.fixture(autouse=True)
def _programs_go_with_their_case(request: pytest.FixtureRequest) -> Iterator[None]:
    now = request.node.path, _case(request.node)
    if _last.setdefault("at", now) != now:
        _last["at"] = now
        for cache in (programs.prefill, programs.feed, programs.compress, programs.generate):
            cache.cache_clear()
        jax.clear_caches()
        gc.collect()
    yield
