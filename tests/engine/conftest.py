"""Models for engine tests: a tiny one with random weights, made once, and the embedded one."""

from pathlib import Path

import pytest

import make_random_gguf
from cfs_server.engine import models


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 140,000 random weights that never ends a reply by itself."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The embedded model."""
    return models.resolve(None).path
