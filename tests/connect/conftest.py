"""A user's machine without any model."""

from pathlib import Path

import pytest

import make_random_gguf
from tests.connect.support import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with an empty home."""
    return Machine(tmp_path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 140,000 random weights that never ends a reply by itself."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "tiny.gguf")
