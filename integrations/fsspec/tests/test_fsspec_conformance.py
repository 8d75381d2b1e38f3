"""The file system passes the tests that fsspec has for every file system, in a workspace of a real server (C11)."""

import os
from collections.abc import Callable, Iterator

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from cfs_fsspec import CFSFileSystem
from pytest_cfs import ScriptedServer


class WorkspaceFixtures(AbstractFixtures):  # type: ignore[misc] # fsspec has no types
    """A workspace of a server."""

    @pytest.fixture
    def fs(self, cfs_server: ScriptedServer) -> Iterator[CFSFileSystem]:
        """The file system of that server."""
        fs = CFSFileSystem(base_url=cfs_server.url, skip_instance_cache=True)
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self) -> str:
        """Where the tests work."""
        return "workspaces/main"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        """How paths are joined."""
        return os.path.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        """As in an object store, a folder is there while a file is in it."""
        return False


class TestCopy(AbstractCopyTests, WorkspaceFixtures):  # type: ignore[misc]
    """Copies within the file system."""


class TestGet(AbstractGetTests, WorkspaceFixtures):  # type: ignore[misc]
    """Copies to this machine."""


class TestPut(AbstractPutTests, WorkspaceFixtures):  # type: ignore[misc]
    """Copies from this machine."""


class TestOpen(AbstractOpenTests, WorkspaceFixtures):  # type: ignore[misc]
    """Files that must be new."""


class TestPipe(AbstractPipeTests, WorkspaceFixtures):  # type: ignore[misc]
    """Whole files."""
