"""One real server for the tests of the SDK."""

from collections.abc import Iterator

import pytest

from tests.client.harness import HttpHarness


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpHarness]:
    """A server in a thread of its own."""
    with HttpHarness() as harness:
        yield harness


@pytest.fixture
def http_harness(http_server: HttpHarness) -> HttpHarness:
    """The server, without a session."""
    http_server.renew()
    return http_server
