"""A read waits for the reply, only for its caller, and can be interrupted (F3, S7)."""

import errno
import fcntl
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.client.wires import relay
from tests.fuse.support import GUARD_SECONDS, Mount, Stage, append, mounting, names, read_now, until

PLACES = 320
READERS = PLACES + 20


def waiting(process: subprocess.Popen[str]) -> bool:
    """Whether a program is held up in the mount: asleep in a call that names its file system."""
    try:
        return "fuse" in Path(f"/proc/{process.pid}/wchan").read_text() or "request_wait" in _stack(process.pid)
    except OSError:
        return False


def _stack(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stack").read_text()
    except OSError:
        return ""


def blocked_cat(mount: Mount, stage: Stage, name: str) -> subprocess.Popen[str]:
    """Start a `cat` that waits."""
    stage.say(name, "words to say", wait=False)
    until((mount / name).exists)
    process = mount.start("cat", str(mount / name))
    until(lambda: waiting(process))
    return process


def test_reader_gets_the_reply_when_it_is_there(mount: Mount, stage: Stage, name: str) -> None:
    """Not before, and without any question over HTTP in between."""
    with stage.held():
        process = blocked_cat(mount, stage, name)
        assert process.poll() is None
    output, _ = process.communicate(timeout=GUARD_SECONDS)
    assert output == "User: words to say\nAssistant: words to say\n"


def test_reader_waits_for_a_reply_that_the_mount_does_not_know_of_yet(stage: Stage, name: str, tmp_path: Path) -> None:
    """The event of the message comes later than the transcript with the message."""
    with relay(stage.url) as server, mounting(server.url, tmp_path / "mount") as mount:
        stage.make(name)
        until((mount / name).exists)
        with stage.held():
            with server.holding("GET /v1/events"):
                stage.say(name, "words to say", wait=False)
                process = mount.start("cat", str(mount / name))
                until(lambda: any(request.startswith(f"GET /v1/sessions/{name}") for request in server.answers))
            until(lambda: (mount / name).stat().st_size == len("User: words to say\n"))
        output, _ = process.communicate(timeout=GUARD_SECONDS)
        mount.end_programs()
    assert output == "User: words to say\nAssistant: words to say\n"


def test_only_the_reader_of_that_session_waits(mount: Mount, stage: Stage, name: str) -> None:
    """Other sessions are read, listed and written to."""
    stage.say(f"{name}-other", "x")
    with stage.held():
        process = blocked_cat(mount, stage, name)
        assert (mount / f"{name}-other").read_text() == "User: x\nAssistant: x\n"
        assert name in names(mount.path)
        assert (mount / name).stat().st_size == len("User: words to say\n")
        append(mount / name, "more")
        assert process.poll() is None
    output, _ = process.communicate(timeout=GUARD_SECONDS)
    assert output.startswith("User: words to say\nAssistant: words to say\nUser: more\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_blocked_reader_can_be_killed(mount: Mount, stage: Stage, name: str, number: signal.Signals) -> None:
    """Within half a second, by any signal; the turn goes on."""
    with stage.held():
        process = blocked_cat(mount, stage, name)
        process.send_signal(number)
        assert process.wait(GUARD_SECONDS) == -number  # the bar of half a second is the bench's
        assert stage.state(name) == "generating"
        process.communicate()
    assert stage.asked(name) == ["words to say"]


def test_handled_signal_interrupts_the_read(mount: Mount, stage: Stage, name: str) -> None:
    """A program that has a handler sees EINTR, as with a terminal."""
    program = (
        "import os, signal, sys\n"
        "class Alarm(Exception): pass\n"
        "def ring(*_): raise Alarm\n"
        "signal.signal(signal.SIGALRM, ring); signal.alarm(1)\n"
        "try: open(sys.argv[1]).read()\n"
        "except Alarm: print('rang')\n"
    )
    with stage.held():
        stage.say(name, "x", wait=False)
        process = mount.start("python3", "-c", program, str(mount / name))
        output, errors = process.communicate(timeout=GUARD_SECONDS)
    assert output == "rang\n", errors


def test_reader_without_patience(mount: Mount, stage: Stage, name: str) -> None:
    """O_NONBLOCK, at the opening or set later, means EAGAIN while it is generating, and the text otherwise."""
    stage.make(name)
    assert read_now(mount / name) == b""
    with stage.held():
        opened = os.open(mount / name, os.O_RDONLY)
        stage.say(name, "x", wait=False)
        until(lambda: (mount / name).stat().st_size > 0)
        with pytest.raises(BlockingIOError):
            read_now(mount / name)
        fcntl.fcntl(opened, fcntl.F_SETFL, os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            os.read(opened, 10)
    assert stage.text(name)
    until(lambda: stage.state(name) == "idle")
    until(lambda: (mount / name).stat().st_size == len(stage.text(name)))
    assert os.read(opened, 100) == b"User: x\nAssistant: x\n"
    os.close(opened)


def test_reader_of_a_parent_waits_for_the_children(mount: Mount, stage: Stage, name: str) -> None:
    """A session is settled when everything below it is (S13)."""
    root = "family"
    stage.say(root, "x")
    with stage.held():
        stage.say(f"{root}/child", "work", wait=False)
        until(lambda: stage.state(f"{root}/child") == "generating")
        process = mount.start("cat", str(mount / root))
        until(lambda: waiting(process))
        with pytest.raises(BlockingIOError):
            read_now(mount / root)
    assert process.communicate(timeout=GUARD_SECONDS)[0] == "User: x\nAssistant: x\n"


def test_deletion_wakes_the_reader(mount: Mount, stage: Stage, name: str) -> None:
    """Who waits for a session that is deleted, on whatever face, is told at once (S2)."""
    with stage.held():
        process = blocked_cat(mount, stage, name)
        stage.client.delete(f"/v1/sessions/{name}").raise_for_status()
        _, errors = process.communicate(timeout=GUARD_SECONDS)
        assert process.returncode == 1
        assert any(os.strerror(number) in errors for number in (errno.ESTALE, errno.ENOENT))
        process = blocked_cat(mount, stage, name)
        (mount / name).unlink()
        _, errors = process.communicate(timeout=GUARD_SECONDS)
        assert process.returncode == 1


def test_cancel_wakes_the_reader(mount: Mount, stage: Stage, name: str) -> None:
    """`setfattr -n user.cfs.cancel -v 1` stops the turn; what it said is there and marked (S12)."""
    with stage.held():
        process = blocked_cat(mount, stage, name)
        os.setxattr(mount / name, "user.cfs.cancel", b"1")
        output, _ = process.communicate(timeout=GUARD_SECONDS)
    assert output == "User: words to say\nAssistant: [Cancelled]\n"


def test_more_than_three_hundred_readers_leave_the_mount_alive(mount: Mount, stage: Stage, name: str) -> None:
    """So many wait as there are places; the others are told EAGAIN, and all others work on."""
    failures: list[int] = []
    texts: list[bytes] = []

    def read() -> None:
        try:
            texts.append((mount / name).read_bytes())
        except OSError as error:
            failures.append(error.errno or 0)

    with stage.held():
        stage.say(name, "x", wait=False)
        until(lambda: stage.state(name) == "generating")
        until((mount / name).exists)
        readers = [threading.Thread(target=read) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        until(lambda: len(failures) == READERS - PLACES)
        assert name in names(mount.path)
        assert (mount / name).stat().st_size
        append(mount / f"{name}-other", "works")
        assert mount.shell("ls -l $M | wc -l").returncode == 0
        assert texts == []
    for reader in readers:
        reader.join(GUARD_SECONDS)
    assert set(failures) == {errno.EAGAIN}
    assert texts == [b"User: x\nAssistant: x\n"] * PLACES
