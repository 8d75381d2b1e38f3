"""The file system passes the tests that fsspec has for every file system, in a workspace of a real server (C11)."""

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS

from cfs_fsspec import CFSFileSystem
from pytest_cfs import ScriptedServer


def some_globs(test: Callable[..., None]) -> Callable[..., None]:
    """Leave most patterns of a test to `--slow`: fsspec itself expands them, by the same listings."""

    @wraps(test)
    def shortened(*arguments: Any, **fixtures: Any) -> None:
        test(*arguments, **fixtures)

    patterns = [
        pytest.param(*values, marks=pytest.mark.slow if number % 10 else ())
        for number, values in enumerate(GLOB_EDGE_CASES_TESTS["argvalues"])
    ]
    mark = pytest.mark.parametrize(GLOB_EDGE_CASES_TESTS["argnames"], patterns)
    shortened.pytestmark = [mark.mark]  # type: ignore[attr-defined] # in place of the one of fsspec
    return shortened


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

    test_copy_glob_edge_cases = some_globs(AbstractCopyTests.test_copy_glob_edge_cases)


class TestGet(AbstractGetTests, WorkspaceFixtures):  # type: ignore[misc]
    """Copies to this machine."""

    test_get_glob_edge_cases = some_globs(AbstractGetTests.test_get_glob_edge_cases)


class TestPut(AbstractPutTests, WorkspaceFixtures):  # type: ignore[misc]
    """Copies from this machine."""

    test_put_glob_edge_cases = some_globs(AbstractPutTests.test_put_glob_edge_cases)


class TestOpen(AbstractOpenTests, WorkspaceFixtures):  # type: ignore[misc]
    """Files that must be new."""


class TestPipe(AbstractPipeTests, WorkspaceFixtures):  # type: ignore[misc]
    """Whole files."""
