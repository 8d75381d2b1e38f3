"""The small parts of the bridge by themselves: paths, temporary files, waiting."""

import errno
import os
import threading

import pytest

from cfs.contract.ids import name_below
from cfs_fuse import handles
from cfs_fuse.handles import ScratchFiles
from cfs_fuse.paths import (
    ControlDirectory,
    ControlPath,
    Families,
    Family,
    MountPath,
    Root,
    ScratchPath,
    SessionPath,
    parse_path,
)
from cfs_fuse.server import Waiter

PLACES: dict[str, MountPath] = {
    "/": Root(),
    "/chat1": SessionPath("chat1"),
    "/你好": SessionPath("你好"),
    "/a.b": SessionPath("a.b"),
    "/sedation": SessionPath("sedation"),
    "/.live": ControlDirectory("live"),
    "/.live/chat1": ControlPath("live", "chat1"),
    "/.status/chat1": ControlPath("status", "chat1"),
    "/.events/a.b": ControlPath("events", "a.b"),
    "/.sub_sessions": Families(),
    "/.sub_sessions/main": Family("main"),
    "/.sub_sessions/main/coder": SessionPath("main/coder"),
    "/.sub_sessions/main/coder.tester": SessionPath("main/coder/tester"),
    "/.chat1.swp": ScratchPath(".chat1.swp"),
    "/chat1~": ScratchPath("chat1~"),
    "/4913": ScratchPath("4913"),
    "/#chat1#": ScratchPath("#chat1#"),
    "/.livery": ScratchPath(".livery"),
    "/Thumbs.db": ScratchPath("Thumbs.db"),
    "/sedAb12Cd": ScratchPath("sedAb12Cd"),
    "/chat1.a1b2c3d4.partial": ScratchPath("chat1.a1b2c3d4.partial"),
}


@pytest.mark.parametrize("path", PLACES)
def test_paths(path: str) -> None:
    """Each path is one thing."""
    assert parse_path(path) == PLACES[path]


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/a/b", errno.ENOENT),
        ("/.live/a/b", errno.ENOENT),
        ("/.sub_sessions/a/b/c", errno.ENOENT),
        ("/\udcff", errno.EILSEQ),
        ("/" + "x" * 256, errno.ENAMETOOLONG),
        ("/.live/" + "你" * 86, errno.ENAMETOOLONG),
    ],
)
def test_paths_of_nothing(path: str, number: int) -> None:
    """What cannot be there is told by a number."""
    with pytest.raises(OSError, match=r".*") as failure:
        parse_path(path)
    assert failure.value.errno == number


def test_names_of_sub_sessions_go_both_ways() -> None:
    """A component has no dot in it, so nothing is lost."""
    for session in ("main/coder", "main/coder/tester/x_y-z"):
        assert parse_path("/.sub_sessions/main/" + name_below("main", session)) == SessionPath(session)


def test_scratch_has_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC for too many files and too many bytes; what is removed makes room."""
    monkeypatch.setattr(handles, "CAP_BYTES", 10)
    monkeypatch.setattr(handles, "CAP_FILES", 2)
    files = ScratchFiles()
    first, second = (files.open(name, os.O_CREAT) for name in "ab")
    files.write(first, b"12345678", 0)
    for call in (
        lambda: files.write(second, b"123", 0),
        lambda: files.truncate(second, 3),
        lambda: files.open("c", os.O_CREAT),
    ):
        with pytest.raises(OSError, match=r".*") as failure:
            call()
        assert failure.value.errno == errno.ENOSPC
    files.write(first, b"xy", 0)
    assert bytes(first.data) == b"xy345678"
    files.remove("a")
    files.write(second, b"123", 0)
    files.rename("b", "c")
    assert files.names() == ["c"]
    with pytest.raises(FileExistsError):
        files.open("c", os.O_CREAT | os.O_EXCL)
    assert bytes(files.open("c", os.O_TRUNC).data) == b""


class Caller:
    """A caller whose signals the test sends."""

    def __init__(self) -> None:
        self.signalled = False
        self.leaving = False

    def interrupted(self) -> bool:
        """As the kernel says."""
        return self.signalled

    def unmounting(self) -> bool:
        """As libfuse says."""
        return self.leaving


def test_patience() -> None:
    """Interrupted, unmounted, or one too many: each has its number, and a place is given back."""
    caller = Caller()
    waiter = Waiter(caller, 1)
    condition = threading.Condition()
    with condition:
        waiter.until(condition, lambda: True)
        assert not waiter.briefly(condition, lambda: False, 0.01)
        assert not waiter.at_most(condition, lambda: False, 0.01)
        caller.signalled = True
        with pytest.raises(InterruptedError):
            waiter.until(condition, lambda: False)
        caller.signalled, caller.leaving = False, True
        with pytest.raises(OSError, match="taken down") as failure:
            waiter.until(condition, lambda: False)
        assert failure.value.errno == errno.EIO
        caller.leaving = False
        none = Waiter(caller, 1)
        none._places.acquire()
        with pytest.raises(BlockingIOError):
            none.until(condition, lambda: False)


def test_calls_are_interruptible() -> None:
    """A server that does not answer holds up nothing."""
    caller = Caller()
    waiter = Waiter(caller, 1)
    assert waiter.call(lambda: 5) == 5
    with pytest.raises(TimeoutError, match="its own"):
        waiter.call(_late)
    answer = threading.Event()
    caller.signalled = True
    with pytest.raises(InterruptedError):
        waiter.call(lambda: answer.wait(10))
    answer.set()


def _late() -> None:
    raise TimeoutError("its own")
