"""Servers that many tests share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pacing.gate import Gate
from tests.server.metrics import Series, series_of
from tests.server.places import BucketFolder, Folder, bucket, files, flags_of  # noqa: F401 - fixtures
from tests.server.restarting import Restarting
from tests.server.support import Process, ServerHarness, running_server, serving


@pytest.fixture
async def server(files: Folder) -> AsyncIterator[ServerHarness]:  # noqa: F811
    """A server in the test's loop, whose engine says what it is told."""
    if isinstance(files, BucketFolder):
        opening = running_server(workspaces=str(files), may_block=True)  # s3fs reads files in a loop of its own
    else:
        opening = running_server()
    async with opening as here:
        yield here


@pytest.fixture
def here(tmp_path: Path, files: Folder) -> Iterator[Restarting]:  # noqa: F811
    """A server with its data in the test's folder, which the test kills and starts again."""
    with ExitStack() as stack:
        yield Restarting(tmp_path, stack, *flags_of(files))


@pytest.fixture(scope="session")
def model_server(model_gate: Gate) -> Iterator[Process]:
    """`cfs serve` with the embedded model, one for all tests: each uses sessions of its own."""
    with serving(**model_gate.environment) as process:
        yield process


@pytest.fixture(scope="session")
def series(model_server: Process) -> Series:
    """What can be asked about a server: its metrics with their labels."""
    return series_of(model_server)
