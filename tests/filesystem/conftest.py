"""What several test files of this directory are given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filesystem.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A disk; in the end nothing outside has been touched, and no unfinished file is left."""
    place = Place(tmp_path)
    yield place
    place.check_outside()
    assert place.temporaries() == []
