"""Servers that many tests share."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.server.support import House, Process, house, serving


@pytest.fixture
async def home() -> AsyncIterator[House]:
    """A server in the test's loop, whose engine says what it is told."""
    async with house() as here:
        yield here


@pytest.fixture(scope="session")
def model_server() -> Iterator[Process]:
    """`cfs serve` with the embedded model, one for all tests: each uses sessions of its own."""
    with serving() as process:
        yield process
