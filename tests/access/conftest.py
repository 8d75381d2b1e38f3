"""What the tests of access share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.support import House, house


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A place for a tokens file."""
    return tmp_path / "tokens.toml"


@pytest.fixture
async def home() -> AsyncIterator[House]:
    """A server without tokens."""
    async with house() as here:
        yield here
