"""Where a command writes to: a named pipe of its own, what is kept of it, and the file that gets all of it."""

import fcntl
import os
import select
import stat
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path

from cfs_agents.tools.shell.capture import Capture

_PIECE = 1 << 18
PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031


class Outlet:
    """One standard descriptor of one command, read from here.

    It blocks only to write the record: what reads from it does so where blocking is allowed, once `overflows` says so.
    """

    def __init__(self, pipe: Path, record: Path, keep: int, most_recorded: int) -> None:
        os.mkfifo(pipe)
        with suppress(OSError):
            pipe.chmod(0o622)  # its directory is the owner's alone, who may be another user
        self.pipe = pipe
        self.record = record
        self.capture = Capture(keep)
        self.descriptor: int | None = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.recorded = False
        self.opened = False
        """Whether a writer has been seen."""
        self._room = most_recorded
        self._file: FileIO | None = None
        with suppress(OSError):
            _widen(self.descriptor)

    def read(self) -> bytes | None:
        """Read what is there without waiting; None when nothing is, b"" at the end."""
        if self.descriptor is None:
            return b""
        try:
            data = os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            self.opened = True
            return None
        self.opened = self.opened or bool(data) or _has_hung_up(self.descriptor)
        return data

    def take(self, data: bytes) -> None:
        """Keep what was read, or put it on record."""
        if self._file is None and self.capture.overflows(len(data)):
            self._open()
        self._write(data)
        self.capture.feed(data)

    def end(self) -> None:
        """Stop reading."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def close(self) -> None:
        """Stop reading, close the record, and remove the pipe."""
        self.end()
        if self._file is not None:
            self._file.close()
            self._file = None
        with suppress(OSError):
            self.pipe.unlink()

    def go_on(self) -> None:
        """Put all that was written on record, for more will come."""
        if self._file is None:
            self._open()

    def _open(self) -> None:
        """Begin the record with all that was written so far. A disk that takes none does not end the command."""
        with suppress(OSError):
            self.record.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.record, "xb")
            self.recorded = True
            self._write(self.capture.held())

    def _write(self, data: bytes) -> None:
        if self._file is not None and self._room > 0:
            with suppress(OSError):
                self._file.write(data[: self._room])
            self._room -= len(data)


class Leftovers:
    """Reads on where commands have ended but processes that they started still write.

    A thread for each of them: a program whose output nobody takes would stand still, or end of SIGPIPE.
    """

    def __init__(self) -> None:
        self._ended, self._end = os.pipe()
        self._threads: list[threading.Thread] = []

    def adopt(self, outlet: Outlet) -> None:
        """Read an outlet to its end, onto its record."""
        outlet.go_on()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=self._drain, args=(outlet,), name="shell leftovers", daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        """Stop reading."""
        os.close(self._end)
        for thread in self._threads:
            thread.join()
        os.close(self._ended)

    def _drain(self, outlet: Outlet) -> None:
        poll = select.poll()
        for descriptor in filter(None, (outlet.descriptor, self._ended)):
            poll.register(descriptor, select.POLLIN)
        while self._ended not in dict(poll.poll()) and (data := outlet.read()) != b"":
            if data:
                outlet.take(data)
        outlet.close()


def is_owned_directory(path: Path) -> bool:
    """Whether a directory is there and only its owner may use it."""
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return False


def _has_hung_up(descriptor: int) -> bool:
    """Whether the writers of a pipe have gone; not so where there never was one."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def _widen(descriptor: int) -> None:
    """Give a pipe more room (Linux), so that a writer waits less for its reader."""
    fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_SIZE)
