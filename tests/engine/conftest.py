"""Models for engine tests: a tiny one with random weights, made once, and the embedded one."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

import make_random_gguf
from cfs_server.engine import models
from tests.engine.hub import Hub


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 140,000 random weights that never ends a reply by itself."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights whose state has no parts."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "recurrent.gguf", "recurrent")


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, one layer of which is recurrent and one attention."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "hybrid.gguf", "hybrid")


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, one layer of which sees the last 64 tokens only."""
    return make_random_gguf.make(tmp_path_factory.mktemp("models") / "windowed.gguf", "windowed")


@pytest.fixture(scope="session")
def demo() -> Path:
    """The embedded model."""
    return models.resolve(None).path


@pytest.fixture
def hub(tiny: Path) -> Iterator[str]:
    """Serve a stand-in of the hub; the value is its address."""
    Hub.content = tiny.read_bytes()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
