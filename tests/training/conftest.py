"""A small text in place of the library: tests need no network and no npm."""

from __future__ import annotations

import pytest

from nexus.training import texts

PROSE = tuple(
    tuple(f"Region {i} exports {thing} by sea and by rail every {season}." for thing in ("tin", "wool", "salt", "oats")
          for season in ("spring", "summer", "autumn", "winter"))
    for i in range(6)
)  # fmt: skip


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "library", lambda: (PROSE,))
