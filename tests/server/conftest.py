"""Servers that many tests share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pacing.gate import Gate
from tests.server.metrics import Series, series_of
from tests.server.restarting import Restarting
from tests.server.support import Process, ServerHarness, running_server, serving


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    """A server in the test's loop, whose engine says what it is told."""
    async with running_server() as here:
        yield here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Restarting]:
    """A server with its data in the test's folder, which the test kills and starts again."""
    with ExitStack() as stack:
        yield Restarting(tmp_path, stack)


@pytest.fixture(scope="session")
def model_server(model_gate: Gate) -> Iterator[Process]:
    """`cfs serve` with the embedded model, one for all tests: each uses sessions of its own."""
    with serving(**model_gate.environment) as process:
        yield process


@pytest.fixture(scope="session")
def series(model_server: Process) -> Series:
    """What can be asked about a server: its metrics with their labels."""
    return series_of(model_server)
