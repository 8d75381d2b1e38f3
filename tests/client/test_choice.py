"""Which way a session goes (C1), which names it may have (S1), and what importing it costs."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cfs
from cfs import AsyncSession, InvalidIdentifier, InvalidRequest, Session, Unreachable, api
from cfs.contract.ids import check_id
from cfs.contract.route_words import ROUTE_WORDS
from cfs.errors import TABLE, CfsError
from cfs.transports.base import DEFAULT_MOUNT, AsyncTransport, Endpoint, Transport, resolve

ROOT = Path(__file__).parent.parent.parent
URL = "http://127.0.0.1:8000"


def test_what_is_given_goes_first_then_the_environment_then_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFS_URL", "http://127.0.0.1:9")
    assert resolve(URL, DEFAULT_MOUNT) == Endpoint("http", URL)
    assert resolve(None, tmp_path) == Endpoint("file", str(tmp_path))
    assert resolve(None, DEFAULT_MOUNT) == Endpoint("http", "http://127.0.0.1:9")


def test_without_a_way_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFS_URL", "")
    with pytest.raises(Unreachable, match=r"cfs mount .*none.*url=.*CFS_URL"):
        Session("a", mount=tmp_path / "none")
    with pytest.raises(InvalidRequest, match="not both"):
        Session("a", mount=tmp_path, url=URL)
    with pytest.raises(InvalidRequest, match="not the URL"):
        AsyncSession("a", url="localhost")


def test_the_mount_is_cfs_unless_said_otherwise() -> None:
    assert inspect.signature(Session).parameters["mount"].default == "/cfs"


def test_a_session_says_where_it_is(tmp_path: Path) -> None:
    assert repr(Session("a", mount=tmp_path)) == f"Session('a', mount={str(tmp_path)!r})"
    token = "secret"  # noqa: S105
    with closing(Session("a", url=URL, token=token)) as session:
        assert repr(session) == f"Session('a', url={URL!r})", "the token is nobody's business"


@given(st.text(max_size=300) | st.text("ab/.-_ é\0\n", max_size=40) | st.sampled_from(sorted(ROUTE_WORDS)))
def test_a_call_is_made_for_names_that_the_server_accepts_and_for_no_others(name: str) -> None:
    for candidate in (name, f"main/{name}"):
        assert _accepts(api.settings, candidate) == _accepts(check_id, candidate)


@pytest.mark.parametrize("twins", [(Session, AsyncSession), (Transport, AsyncTransport)])
def test_the_twins_have_the_same_methods_with_the_same_parameters(twins: tuple[type, type]) -> None:
    one, other = (
        {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }
        for kind in twins
    )
    assert one == other


def test_the_generated_twins_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools/unasync.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("method", ["send", "stream", "read", "delete", "fork", "configure", "cancel", "wait", "close"])
def test_each_method_names_the_file_operation_and_the_call(method: str) -> None:
    text = inspect.getdoc(getattr(Session, method)) or ""
    assert "As a file: " in text
    assert "Over HTTP: " in " ".join(text.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, cfs\n"
        "heavy = {'httpx', 'aiofiles', 'asyncio'}\n"
        "print(sys.modules.keys() & {*heavy, 'pydantic'})\n"
        "cfs.Session\n"
        "print(sys.modules.keys() & heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nset()\n"


def test_every_error_can_be_imported_from_the_package() -> None:
    kinds: list[type[CfsError]] = [CfsError, *TABLE]
    assert [kind for kind in kinds if getattr(cfs, kind.__name__, None) is not kind] == []


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    assert not hasattr(cfs, "Conversation")
    assert "Session" in dir(cfs)


def _accepts(check: Callable[[str], object], name: str) -> bool:
    try:
        check(name)
    except InvalidIdentifier:
        return False
    return True
