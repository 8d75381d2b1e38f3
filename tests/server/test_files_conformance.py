"""The test kit for file systems, held against what the server makes of files (G6, G8).

Over HTTP it runs for the workspaces only: there a write to a session is answered by the engine, so what is stored after
it depends on when one looks. The sessions' files by REST have tests of their own in `test_files.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from cfs_filesystem import RouterFileSystem
from cfs_filesystem.testing import FileSystemConformance
from cfs_server.domain.ids import SESSIONS, WORKSPACES
from cfs_server.sessions.filesystem import SessionFileSystem
from cfs_server.workspaces.workspaces import DiskWorkspaces
from tests.server.files_client import RemoteFileSystem
from tests.server.support import running_server
from tests.sessions.support import running_store, transcript


class TestWorkspaces(FileSystemConformance):
    prefix = "/workspaces/main/"

    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> DiskWorkspaces:
        return DiskWorkspaces(tmp_path)


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[RouterFileSystem]:
    """What each principal of the server has a handle for, but that no model answers."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(running_store()) as d:
        sessions = portal.call(lambda: SessionFileSystem(d.store, generate=False))
        yield RouterFileSystem({SESSIONS: sessions, WORKSPACES: DiskWorkspaces(tmp_path)})


class TestSessionsBehindTheRouter(FileSystemConformance):
    prefix = SESSIONS
    nested = False
    binary = False
    empty_directories = False
    moves_over = False

    @pytest.fixture
    def filesystem(self, composed: RouterFileSystem) -> RouterFileSystem:
        return composed

    def stored(self, *writes: str) -> str:
        return transcript(*writes)


class TestWorkspacesBehindTheRouter(FileSystemConformance):
    prefix = "/workspaces/main/"

    @pytest.fixture
    def filesystem(self, composed: RouterFileSystem) -> RouterFileSystem:
        return composed


class TestWorkspacesByRest(FileSystemConformance):
    prefix = "/workspaces/main/"
    complete = False

    @pytest.fixture
    def filesystem(self) -> Iterator[RemoteFileSystem]:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(running_server()) as server,
            httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client,
        ):
            yield RemoteFileSystem(client, server, portal)
