"""The fixtures `cfs_server` and `cfs_session`; pytest loads this module by its entry point."""

import typing
from collections.abc import Iterator

import pytest

if typing.TYPE_CHECKING:
    from cfs import Session
    from pytest_cfs.server import ScriptedServer


@pytest.fixture(scope="session")
def _cfs_server() -> "Iterator[ScriptedServer]":
    """The one server of a test run; it starts when the first test asks for it."""
    try:
        from pytest_cfs.server import serve
    except ModuleNotFoundError as missing:
        pytest.fail(f"the fixture needs the server ({missing}): pip install 'cfs-local[server]'", pytrace=False)
    with serve() as server:
        yield server


@pytest.fixture
def cfs_server(_cfs_server: "ScriptedServer", monkeypatch: pytest.MonkeyPatch) -> "Iterator[ScriptedServer]":
    """A real CFS server on a free port, without sessions, whose model plays a script.

    `CFS_URL` names it while the test runs, so that the SDK, `cfs` and programs that the test starts find it. Without
    a script the model repeats the words of each message.
    """
    monkeypatch.setenv("CFS_URL", _cfs_server.url)
    monkeypatch.delenv("CFS_TOKEN", raising=False)
    try:
        yield _cfs_server
    finally:
        _cfs_server.reset()


@pytest.fixture
def cfs_session(cfs_server: "ScriptedServer") -> "Iterator[Session]":
    """A new session of that server."""
    with cfs_server.session() as session:
        yield session
