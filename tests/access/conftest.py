"""What the tests of access share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.support import ServerHarness, running_server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A place for a tokens file."""
    return tmp_path / "tokens.toml"


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    """A server without tokens."""
    async with running_server() as here:
        yield here
