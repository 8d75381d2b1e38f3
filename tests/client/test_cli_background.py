"""`cfs up --background`, `cfs logs`, `cfs down`, and agents in the background (C10, P3)."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ports import free_port
from tests.client.terminal import CTRL_C, cfs, ended, home_in, terminal

SCRIPTED = ("--engine", "scripted")
CERTAIN = ("--temperature", "0")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def url() -> str:
    """Where a server is going to be."""
    return f"http://localhost:{free_port()}"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a home of its own."""
    return home_in(tmp_path) | {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def run(url: str, home: dict[str, str], tmp_path: Path) -> Iterator[Command]:
    """Run commands of that user; nothing that they started is left in the end."""

    def run(*arguments: str, at: str = url, lines: bytes = b"") -> tuple[int, str, str]:
        return ended(cfs(at, *arguments, data=lines, **home))

    try:
        yield run
    finally:
        for record in (tmp_path / "state").rglob("*.json"):
            pid = int(re.findall(r'"pid": (\d+)', record.read_text())[0])
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for somebody to notice."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def up(run: Command, url: str, tmp_path: Path, *flags: str) -> tuple[int, str, str]:
    """Start a server in the background."""
    place = ("--port", url.rpartition(":")[2], "--data-dir", str(tmp_path / "data"))
    return run("up", "--background", "--no-mount", *place, *flags)


def test_a_server_goes_on_until_it_is_ended(run: Command, url: str, tmp_path: Path) -> None:
    """The command returns when the server is ready, and says what to type next; `down` returns when it has ended."""
    code, shown, errors = up(run, url, tmp_path, *SCRIPTED)
    assert (code, errors) == (0, "")
    assert f"CFS is ready on {url} (`cfs logs` shows its log, `cfs down` ends it)" in shown
    assert f"export CFS_URL={url}\n" in shown
    assert run("send", "a", "hello") == (0, "hello\n", "")
    assert run("down") == (0, "", "")
    assert run("send", "a", "hello")[0] == 3
    assert run("down")[2] == f"cfs: no server in the background answers at {url}: `cfs up --background` starts one\n"


def test_its_log_can_be_read_and_followed(run: Command, url: str, home: dict[str, str], tmp_path: Path) -> None:
    """Also when it has ended, which is when one looks for the reason."""
    assert up(run, url, tmp_path, *SCRIPTED)[0] == 0
    assert " ready " in run("logs")[1]
    run("send", "a", "hello")
    with terminal(url, "logs", "--follow", "--lines", "1", **home) as screen:
        screen.expect("/v1/sessions/a/messages")
        run("cat", "b", "--no-wait")
        screen.expect("path=/v1/sessions/b ")
        screen.type(CTRL_C)
        assert screen.end()[0] == 130
    with terminal(url, "logs", "-f", "-n", "1", **home) as screen:
        screen.expect(" request ")
        assert run("down")[0] == 0
        screen.expect(" stopped ")
        assert screen.end()[0] == 0
    assert " stopped " in run("logs", "-n", "1")[1]


def test_a_server_that_cannot_start_says_why(run: Command, url: str, tmp_path: Path) -> None:
    assert up(run, url, tmp_path, *SCRIPTED)[0] == 0
    code, shown, errors = up(run, url, tmp_path, *SCRIPTED)
    assert (code, shown, errors.count("\n")) == (1, "", 1)
    address = url.replace("localhost", "127.0.0.1")
    assert errors == f"cfs: your server runs at {address} already: `cfs down --url {address}` ends it\n"
    assert run("logs")[0] == 0


def test_a_server_that_was_killed_is_not_believed(run: Command, url: str, tmp_path: Path) -> None:
    """Its record is still there, and another process may have its number."""
    assert up(run, url, tmp_path, *SCRIPTED)[0] == 0
    (record,) = (tmp_path / "state").rglob("*.json")
    os.kill(int(re.findall(r'"pid": (\d+)', record.read_text())[0]), signal.SIGKILL)
    psutil.wait_procs(psutil.Process().children(), timeout=0)
    assert run("down")[0] == 1
    assert not record.exists()


def test_whoever_asks_at_the_wrong_address_gets_the_right_one(run: Command, url: str, tmp_path: Path) -> None:
    assert up(run, url, tmp_path, *SCRIPTED)[0] == 0
    wrong = "http://localhost:9"
    assert run("ls", at=wrong)[2].endswith(f"; your server at {url} runs: --url {url}\n")
    assert run("down", at=wrong)[2].endswith(f"answers at {wrong}; one is at {url}: --url {url}\n")


def test_an_agent_in_the_background_answers_and_ends_with_the_server(run: Command, url: str, tmp_path: Path) -> None:
    """When the command returns, the agent is attached, so that the next message is for it."""
    assert up(run, url, tmp_path)[0] == 0
    code, shown, errors = run("agent", "serve", "--session", "main", "--root", str(tmp_path / "agents"), "-b", *CERTAIN)
    assert (code, errors) == (0, "")
    assert "`cfs logs main` shows what it does" in shown
    task = "Write hello to notes.txt, then read it back"
    assert run("send", "main", task)[0] == 0
    assert f"main: * {task}\nmain: > write_file {{" in run("logs", "main")[1]
    assert run("logs", "other")[0] == 1
    (record,) = (tmp_path / "state").rglob("agent-*.json")
    pid = int(re.findall(r'"pid": (\d+)', record.read_text())[0])
    assert lives(pid)
    assert run("down")[0] == 0
    assert not lives(pid)


def test_a_chat_starts_the_server_that_it_needs(run: Command, url: str) -> None:
    """The replies alone are on standard output. The next chat finds the server that the first has started."""
    code, said, errors = run("chat", "--up", "a", lines=b"My name is Alice.\n")
    assert (code, said) == (0, "Nice to meet you, Alice!\n")
    assert f"CFS is ready on {url}" in errors
    code, said, errors = run("chat", "--up", "a", lines=b"What is my name?\n")
    assert (code, said, errors) == (0, "Your name is Alice.\n", "")
    assert run("down")[0] == 0


def test_a_chat_starts_no_server_that_it_could_not_reach(run: Command) -> None:
    """One of another machine, or behind a proxy with TLS."""
    said = "no server answers at https://localhost:9, and this command starts one on this machine only"
    assert run("chat", "--up", at="https://localhost:9") == (1, "", f"cfs: {said}\n")
