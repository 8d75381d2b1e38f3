"""A test's tier is that of the code which it reaches; a pure test can open no socket and start no process."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.support import run_cfs, running_server
from tests.tiers import LONG, PureGuard, Times, imports_client, order_of, tier_of

CALLS = {"server": running_server}


class Serving:
    """Has a method that serves."""

    def serve(self) -> object:
        """Serve."""
        return running_server()


def test_what_reaches_nothing_is_pure(request: pytest.FixtureRequest) -> None:
    assert tier_of(request.node) == "pure"


def test_what_reaches_a_server_by_a_class_is_of_its_tier(request: pytest.FixtureRequest) -> None:
    assert callable(Serving)
    assert tier_of(request.node) == "server"


def test_what_reaches_a_server_by_a_table_is_of_its_tier(request: pytest.FixtureRequest) -> None:
    assert CALLS
    assert tier_of(request.node) == "server"


@pytest.mark.parametrize("call", [running_server])
def test_what_has_a_server_as_parameter_is_of_its_tier(
    request: pytest.FixtureRequest, call: Callable[..., object]
) -> None:
    assert tier_of(request.node) == "server"


def test_what_reaches_a_program_is_external(request: pytest.FixtureRequest) -> None:
    """And marked as one that needs a server, too."""
    assert callable(run_cfs)
    assert tier_of(request.node) == "external"
    assert [marker.name for marker in request.node.iter_markers() if marker.name != "xdist_group"] == [
        "server",
        "external",
    ]


@pytest.mark.server
def test_a_mark_by_hand_counts(request: pytest.FixtureRequest) -> None:
    assert tier_of(request.node) == "server"


def test_a_file_that_imports_a_client_is_not_collected_for_the_pure_tier(tmp_path: Path) -> None:
    """Its tests are of the tier of servers, whatever they do; a folder whose `conftest.py` imports one is alike."""
    for name, line in {"mine": "import anthropic", "other": "import cfs", "named": "x = 'import openai'"}.items():
        (tmp_path / f"test_{name}.py").write_text(f"{line}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/conftest.py").write_text("from mcp import Client\n")
    clients = {path.name for path in tmp_path.iterdir() if imports_client(path)}
    assert clients == {"test_mine.py", "folder"}


def test_a_pure_test_that_opens_a_socket_fails() -> None:
    guard = PureGuard()
    with socket.socket() as bare, guard.watching("a"), pytest.raises(pytest.fail.Exception, match=r"socket\.bind"):
        bare.bind(("127.0.0.1", 0))
    with socket.socket() as bare:
        bare.bind(("127.0.0.1", 0))


def test_a_pure_test_that_starts_a_process_fails() -> None:
    guard = PureGuard()
    with guard.watching("a"), pytest.raises(pytest.fail.Exception, match=r"subprocess\.Popen"):
        subprocess.run(["true"], check=True)


def test_a_test_whose_process_crashed_has_no_tier() -> None:
    """xdist reports it without its properties; the summary goes without it."""
    when: Any = "???"
    Times().pytest_runtest_logreport(pytest.TestReport("a", ("a", 1, "a"), {}, "failed", "crashed", when))


def test_the_long_files_exist_and_come_before_others(request: pytest.FixtureRequest) -> None:
    """In their tier: a quick test of another tier is not kept waiting."""
    assert [name for name in LONG if not (request.config.rootpath / name).is_file()] == []
    assert len(set(LONG)) == len(LONG)
    ordered = [
        ("a.py::a", "pure"),
        (f"{LONG[0]}::a", "external"),
        (f"{LONG[1]}::b", "external"),
        ("a.py::b", "external"),
    ]
    places = [order_of(*test) for test in ordered]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
