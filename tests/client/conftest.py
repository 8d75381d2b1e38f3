"""One real server for the tests of the SDK."""

from collections.abc import Iterator

import pytest

from tests.client.doors import HttpDoor


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpDoor]:
    """A server in a thread of its own."""
    with HttpDoor() as door:
        yield door


@pytest.fixture
def http_door(http_server: HttpDoor) -> HttpDoor:
    """The server, without a session."""
    http_server.renew()
    return http_server
