"""What the tests of the context are given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs_agents.context import ContextFileSystem
from tests.agents.context.support import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `files`."""
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path, clock: ManualClock) -> Iterator[ContextFileSystem]:
    """A session on disk; in the end index and files agree, and a new start finds the same."""
    with ContextFileSystem(tmp_path / "context", now=clock, reserve=0) as files:
        yield files
        assert files.check_integrity() == []
        before = files.history()
    with ContextFileSystem(files.root, files.session_id) as again:
        assert again.history() == before
        assert again.check_integrity() == []
