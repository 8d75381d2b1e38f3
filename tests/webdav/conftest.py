"""A server and a mount of davfs2 for the tests that do not break them: each uses sessions of its own."""

from collections.abc import Iterator

import pytest

from tests.fuse.support import Mount, Stage, staging
from tests.webdav.davmount import mounting, reason_to_skip


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """A server whose engine can be held."""
    with staging() as here:
        yield here


@pytest.fixture(scope="session")
def mount(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """Its sessions, mounted by davfs2."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with mounting(stage.url, tmp_path_factory.mktemp("davfs") / "m") as here:
        yield here


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A session's name that no other test uses."""
    return f"{request.path.stem}-{request.node.name}".replace("[", "-").replace("]", "")
