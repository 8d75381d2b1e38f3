"""`cfs up`: two processes that begin and end together (C10, P3)."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cfs.cli.actions import machine_checks
from tests.client.terminal import CTRL_C, Running, cfs, ended, terminal
from tests.server.support import CFS, environment

SERVER = ("--port", "0", "--engine", "scripted")
READY = re.compile(r"CFS is ready on (?P<url>http://localhost:\d+)")
can_mount = pytest.mark.skipif(machine_checks.mount_obstacle() is not None, reason=str(machine_checks.mount_obstacle()))


@contextmanager
def up(*arguments: str, **env: str) -> Iterator[tuple[Running, str]]:
    """Run `cfs up` until it is ready; the second value is the server's URL."""
    with Running("", "up", *arguments, **env) as running:
        shown = running.until("chat1\n")
        found = READY.search(shown)
        assert found, shown
        yield running, found["url"]


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that it has started."""
    return psutil.Process(process.pid).children(recursive=True)


def is_mounted(directory: Path) -> bool:
    """Whether something is mounted there."""
    return os.path.ismount(directory)


def test_it_says_ready_with_three_commands_and_ends_on_a_signal() -> None:
    with Running("", "up", "--no-mount", *SERVER) as running:
        shown = running.until("\n  curl")
        shown += running.until("curl") + running.until("curl") + running.until("\n")
        url = READY.search(shown)
        assert url
        assert shown.count(f"{url['url']}/v1/sessions/chat1") == 3
        started = children(running.process)
        assert len(started) == 1
        running.process.send_signal(signal.SIGTERM)
        assert running.end()[0] == 0
        assert not any(child.is_running() for child in started)


def test_one_ctrl_c_ends_everything_cleanly() -> None:
    with terminal("", "up", "--no-mount", *SERVER) as screen:
        screen.expect("v1/sessions/chat1\r\n\r\n")
        started = children(screen.process)
        screen.type(CTRL_C)
        code, shown = screen.end()
        assert (code, "Traceback" in shown) == (0, False)
        assert not any(child.is_running() for child in started)


def test_when_the_server_dies_so_does_it_with_the_same_code() -> None:
    with up("--no-mount", *SERVER) as (running, _):
        children(running.process)[0].kill()
        assert running.end()[0] == 128 + signal.SIGKILL


def test_not_even_a_kill_leaves_the_server_behind() -> None:
    with up("--no-mount", *SERVER) as (running, _):
        (server,) = children(running.process)
        running.process.kill()
        psutil.wait_procs([server], timeout=30)
        assert not server.is_running()


def test_a_second_signal_ends_it_at_once() -> None:
    """The first one lets the turn finish, which would take a minute."""
    with up("--no-mount", *SERVER, "--scripted-interval", "60", "--shutdown-grace", "60") as (running, url):
        assert cfs(url, "send", "chat1", "hello", "--no-wait").returncode == 0
        server = children(running.process)[0]
        running.process.send_signal(signal.SIGTERM)
        errors = running.process.stderr
        assert errors is not None
        while b"stopping" not in errors.readline():
            pass
        running.process.send_signal(signal.SIGTERM)
        assert running.end()[0] == 128 + signal.SIGTERM
        assert not server.is_running()


def test_flags_are_the_servers_and_it_explains_them() -> None:
    with up("--no-mount", *SERVER, "--max-message-bytes", "3") as (_, url):
        assert cfs(url, "send", "chat1", "hey").returncode == 0
        assert cfs(url, "send", "chat1", "hello").returncode == 1
    code, output, errors = ended(cfs("", "up", "--no-mount", "--nonsense"))
    assert (code, output) == (2, "")
    assert "No such option: --nonsense" in errors


def test_a_server_that_cannot_start_is_the_end() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output, errors = ended(cfs("", "up", "--no-mount", "--engine", "scripted", "--port", port))
    assert (code, output) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in errors


def test_a_directory_and_no_mount_is_a_contradiction(tmp_path: Path) -> None:
    code, _, errors = ended(cfs("", "up", str(tmp_path), "--no-mount", COLUMNS="300"))
    assert (code, "cannot be combined with --no-mount" in errors) == (2, True)


@pytest.mark.skipif(machine_checks.mount_obstacle() is None, reason="there is a mount here")
def test_a_mount_that_was_asked_for_and_cannot_be_is_an_error(tmp_path: Path) -> None:
    code, output, errors = ended(cfs("", "up", str(tmp_path), *SERVER))
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert f"cannot mount on {tmp_path}: " in errors


@can_mount
def test_the_mount_is_ready_with_the_server_and_goes_before_it(tmp_path: Path) -> None:
    with Running("", "up", str(tmp_path), *SERVER) as running:
        running.until(f"and in {tmp_path}")
        running.until("wait=true'\n")
        assert is_mounted(tmp_path)
        (tmp_path / "chat1").write_text("hello")
        assert (tmp_path / "chat1").read_text() == "User: hello\nAssistant: hello\n"
        started = children(running.process)
        assert len(started) == 2
        running.process.send_signal(signal.SIGINT)
        code, _, errors = running.end()
        assert (code, "Traceback" in errors) == (0, False)
        assert not is_mounted(tmp_path)
        assert not any(child.is_running() for child in started)


@can_mount
@pytest.mark.parametrize("victim", ["serve", "mount"])
def test_when_one_dies_the_other_ends_too(tmp_path: Path, victim: str) -> None:
    with Running("", "up", str(tmp_path), *SERVER) as running:
        running.until("wait=true'\n")
        started = children(running.process)
        server, mount = sorted(started, key=lambda child: "mount" in child.cmdline())
        (server if victim == "serve" else mount).terminate()
        assert running.end()[0] == 0
        assert not is_mounted(tmp_path)
        assert not any(child.is_running() for child in started)


@can_mount
def test_a_mount_that_fails_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output, errors = ended(cfs("", "up", str(tmp_path), *SERVER))
    assert code not in (0, None)
    assert "ready on" not in output
    assert "not empty" in errors


def test_who_ignores_the_hang_up_is_left_alone() -> None:
    """`nohup cfs up &` outlives its terminal."""
    command = ["bash", "-c", f"trap '' HUP; exec {CFS} up --no-mount {' '.join(SERVER)}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)
    try:
        assert process.stdout is not None
        while "transcript" not in (line := process.stdout.readline()) and "text/plain" not in line:
            assert line
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert "signal=SIGTERM" in process.communicate(timeout=60)[1]
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
