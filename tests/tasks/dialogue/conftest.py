"""A tokenizer whose tokens are bytes: places can be read off."""

from __future__ import annotations

import pytest

from nexus.models.tokenizer import byte_tokenizer


@pytest.fixture(scope="session")
def bytes_tokenizer():
    return byte_tokenizer()
