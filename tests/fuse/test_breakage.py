"""The server goes away and comes back, the bridge is killed, the mount is taken down: nothing hangs (F7, F8)."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from ports import free_port
from tests.client.wires import relay
from tests.fuse.support import (
    GUARD_SECONDS,
    append,
    mounted,
    mounting,
    names,
    reason_to_skip,
    staging,
    unmount,
    until,
)
from tests.server.support import Process, run_cfs, serving

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")


@contextmanager
def server(port: int, *flags: str) -> Iterator[Process]:
    """Run a server with the scripted engine on a port."""
    with serving("--port", str(port), "--engine", "scripted", *flags) as running:
        yield running


def fails(call: object, *numbers: int) -> bool:
    """Whether something fails with one of some errors."""
    try:
        call()  # type: ignore[operator]
    except OSError as error:
        return error.errno in numbers
    return False


def test_server_killed_and_restarted(tmp_path: Path) -> None:
    """Errors at once while it is away, blocked readers included; afterwards the mount works, and shows what is now."""
    port = free_port()
    away = (errno.EIO, errno.ENOTCONN)
    outcome: list[int | None] = []

    def read(path: Path) -> None:
        try:
            path.read_text()
        except OSError as error:
            outcome.append(error.errno)

    with server(port, "--scripted-interval", "1000") as first, mounting(first.url, tmp_path / "m") as mount:
        append(mount / "f", "hello")
        reader = threading.Thread(target=read, args=(mount / "f",))
        reader.start()
        first.process.kill()
        reader.join(GUARD_SECONDS)
        assert outcome
        assert outcome[0] in away
        until(lambda: fails(lambda: names(mount.path), *away))
        assert fails((mount / "f").read_text, *away)
        assert fails(lambda: (mount / "g").write_text("x"), *away)
        assert fails(lambda: os.statvfs(mount.path), *away)
        assert mount.path.stat()
        with server(port):
            until(lambda: not fails(lambda: names(mount.path), *away))
            assert names(mount.path) == []
            (mount / "g").write_text("again\n")
            assert (mount / "g").read_text() == "User: again\nAssistant: again\n"


def test_a_write_whose_answer_is_lost_is_one_message(tmp_path: Path) -> None:
    """The bridge sends it again with its idempotency key, and the program sees no error."""
    with staging() as stage, relay(stage.url) as wire, mounting(wire.url, tmp_path / "m") as mount:
        mount.shell("echo one > $M/a; cat $M/a")
        for method, script in {
            "POST": "echo two >> $M/a; cat $M/a",
            "PATCH": "setfattr -n user.cfs.temperature -v 0.5 $M/a",
            "DELETE": "rm $M/a; test ! -e $M/a",
        }.items():
            before = wire.swallowed
            wire.swallow(1, method)
            done = mount.shell(f"set -e; {script}")
            assert done.returncode == 0, done.stderr
            assert wire.swallowed == before + 1, method
            if method == "POST":
                assert stage.asked("a") == ["one", "two"]


def test_changes_during_a_lost_connection_are_seen(tmp_path: Path) -> None:
    """The stream is resumed after the last event; a server that ends streams now and then makes no difference."""
    with server(free_port(), "--stream-seconds", "0.2") as running, mounting(running.url, tmp_path / "m") as mount:
        with httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client:
            for number in range(20):
                client.post("/v1/sessions/f/messages", params={"wait": "true"}, content=f"{number}".encode())
                size = client.get("/v1/sessions/f").json()["size"]
                until(partial(_has_size, mount / "f", size))
        assert (mount / "f").read_text().count("User: ") == 20


def test_stale_stream_begins_anew(tmp_path: Path) -> None:
    """When too much has happened during a break, the bridge looks at everything again."""
    with staging(all_events=10, stream_seconds=0.3) as stage, mounting(stage.url, tmp_path / "m") as mount:
        for number in range(30):
            stage.say(f"f{number % 3}", f"{number} words of a message")
        assert stage.client.delete("/v1/sessions/f0").status_code == 204
        until(lambda: sorted(names(mount.path)) == ["f1", "f2"])
        assert (mount / "f1").read_text() == stage.text("f1")


def test_bridge_killed_and_mounted_again(tmp_path: Path) -> None:
    """The dead mount that it leaves is detached by the next one."""
    with staging() as stage:
        stage.say("f", "x")
        with mounting(stage.url, tmp_path / "m") as first:
            first.process.kill()
            first.process.wait()
            assert fails(lambda: names(first.path), errno.ENOTCONN)
            with mounting(stage.url, tmp_path / "m") as second:
                assert (second / "f").read_text() == "User: x\nAssistant: x\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_unmounts_whoever_reads(tmp_path: Path, number: signal.Signals) -> None:
    """Blocked readers are woken with an error, nothing is mounted any more, and the exit status is 0."""
    with staging() as stage, mounting(stage.url, tmp_path / "m") as mount, stage.held():
        append(mount / "f", "x")
        readers = [mount.start("cat", str(mount / "f")) for _ in range(5)]
        live = mount.start("cat", str(mount / ".live" / "f"))
        until(lambda: all("fuse" in _stack(reader.pid) for reader in readers))
        mount.process.send_signal(number)
        assert mount.ended() == 0, mount.log
        assert not mounted(mount.path)
        assert [reader.wait(GUARD_SECONDS) for reader in readers] == [1] * 5
        assert live.wait(GUARD_SECONDS) == 1
        assert list(mount.path.iterdir()) == []


def test_unmounting_ends_the_bridge(tmp_path: Path) -> None:
    """`fusermount3 -u` is the way, and the exit status is 0."""
    with staging() as stage, mounting(stage.url, tmp_path / "m") as mount:
        unmount(mount.path)
        assert mount.ended() == 0, mount.log


def test_server_says_no(tmp_path: Path) -> None:
    """Full, too large, too many: the numbers of the table, in time for those who look."""
    limits = {"max_sessions": 3, "max_total_bytes": 9_000, "max_message_bytes": 1_000, "max_queued_turns": 1}
    with staging(**limits) as stage, mounting(stage.url, tmp_path / "m") as mount:
        assert fails(lambda: (mount / "big").write_text("x" * 1_001), errno.EFBIG)
        (mount / "f").write_text("x" * 900)
        assert stage.text("f")
        (mount / "third").touch()
        assert fails((mount / "fourth").touch, errno.ENOSPC)
        with stage.held():
            for _ in range(2):
                append(mount / "third", "x")
            assert fails(lambda: append(mount / "third", "x"), errno.EAGAIN)
        append(mount / "f", "x" * 900)
        assert stage.text("f")
        assert fails(lambda: append(mount / "f", "x" * 900), errno.ENOSPC)


def test_tokens(tmp_path: Path) -> None:
    """Who may only read is told so when it opens a file to write: `echo` would not tell of it later.

    Who may not delete sets no time after which a session is deleted, but other settings.
    """
    tokens = tmp_path / "tokens.toml"
    grants = {"reader": "/sessions=ro", "writer": "/sessions", "author": "/sessions=list,file,read,write"}
    secrets = {
        name: run_cfs("token", "create", name, "--grant", grant, "--tokens", str(tokens)).stdout.strip()
        for name, grant in grants.items()
    }
    secret = tmp_path / "writer.token"
    secret.write_text(secrets["writer"] + "\n")
    with (
        server(free_port(), "--tokens", str(tokens)) as running,
        mounting(running.url, tmp_path / "w", "--token-file", str(secret)) as writer,
        mounting(running.url, tmp_path / "r", CFS_TOKEN=secrets["reader"]) as reader,
        mounting(running.url, tmp_path / "a", CFS_TOKEN=secrets["author"]) as author,
    ):
        append(writer / "f", "hello")
        until((reader / "f").exists)
        assert (reader / "f").read_text() == "User: hello\nAssistant: hello\n"
        assert fails(lambda: (reader / "f").open("a"), errno.EACCES)
        assert fails((reader / "g").touch, errno.EACCES)
        assert fails((reader / "f").unlink, errno.EACCES)
        os.setxattr(author / "f", "user.cfs.title", b"Hello")
        assert fails(lambda: os.setxattr(author / "f", "user.cfs.keep", b"1m"), errno.EACCES)
        os.setxattr(writer / "f", "user.cfs.keep", b"1m")


def _has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _stack(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() + Path(f"/proc/{pid}/stack").read_text()
    except OSError:
        return ""
