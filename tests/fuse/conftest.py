"""One server and one mount for all tests that do not break them: each uses sessions of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.support import Mount, Stage, mounting, reason_to_skip, staging

_REASON = reason_to_skip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a mount where nothing can be mounted."""
    if _REASON is None:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and "mount" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """A server whose engine can be held."""
    with staging() as here:
        yield here


@pytest.fixture(scope="session")
def mount(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """That server, mounted."""
    with mounting(stage.url, tmp_path_factory.mktemp("mount") / "cfs") as here:
        stage.mount = here
        yield here
        stage.mount = None


@pytest.fixture(autouse=True)
def ended(request: pytest.FixtureRequest) -> Iterator[None]:
    """No program outlives the test that started it."""
    yield
    if "mount" in request.fixturenames:
        request.getfixturevalue("mount").end_programs()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A session's name that no other test uses."""
    found: str = request.node.name.replace("/", "_").replace("[", "-").replace("]", "")[:200]
    return found
