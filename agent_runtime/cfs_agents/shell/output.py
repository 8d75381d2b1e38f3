"""The output of commands: pipes to read it from, and record files of long outputs (A5).

Commands are not trusted, and the runtime is outside of their sandbox. So the runtime opens no path that a command can
replace. Pipes and scripts are in a directory that the runtime holds open and that a sandbox sees read-only. Records
are written below a directory that commands cannot replace, and no link is followed.
"""

import fcntl
import os
import select
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from cfs_agents.base.folders import open_own_folder
from cfs_agents.shell.capture import Capture
from cfs_filesystem import open_beneath

_PIECE = 1 << 18
PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031

INSIDE = "/run/cfs-shell"
"""Path of the private directory in a sandbox."""

_MOST_LEFTOVERS = 200
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateDirectory:
    """The directory of one shell's pipes and scripts. Commands may use them; only the runtime creates and removes them.

    `within` is the parent directory. `group` is the group of another user whose processes use the directory.
    """

    def __init__(self, within: Path | None, group: int | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="cfs-shell-", dir=within))
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._others = group is not None
        if group is not None:
            os.fchown(self._descriptor, -1, group)
            os.fchmod(self._descriptor, 0o710)

    def is_whole(self) -> bool:
        """Whether the directory is still at its path."""
        with suppress(OSError):
            return os.path.samestat(self.path.lstat(), os.fstat(self._descriptor))
        return False

    def pipe(self, name: str) -> int:
        """Create a named pipe; returns a descriptor to read from."""
        os.mkfifo(name, dir_fd=self._descriptor)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileExistsError("a command has put something in the place of its pipe")
        if self._others:
            os.fchmod(descriptor, 0o622)
        with suppress(OSError):
            fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_SIZE)  # a writer waits less often
        return descriptor

    def script(self, name: str, text: str) -> None:
        """Write a new file. (Some file systems wait for the disk when an existing file is truncated and written.)"""
        self.remove(name)
        descriptor = os.open(name, _NEW, 0o644 if self._others else 0o600, dir_fd=self._descriptor)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))

    def remove(self, name: str) -> None:
        """Remove a pipe or a script, if it exists."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Remove the directory and its content."""
        os.close(self._descriptor)
        shutil.rmtree(self.path, ignore_errors=True)


class Records:
    """The directory for long outputs: `parts` below `base`. Commands cannot replace `base`, only what is below it.

    Each use opens the directory again, and creates it if it is missing. `owner` is its owner, unless None.
    """

    def __init__(self, base: Path, parts: Sequence[str], owner: int | None) -> None:
        self._base = base
        self._parts = parts
        self._owner = owner

    def make(self) -> None:
        """Create the directory if it is missing; raises `OSError`."""
        os.close(self._open())

    def create(self, name: str) -> FileIO:
        """Create a file in the directory; raises `OSError`."""
        directory = self._open()
        try:
            return FileIO(os.open(name, _NEW, 0o666, dir_fd=directory), "wb")
        finally:
            os.close(directory)

    def open(self, name: str) -> FileIO:
        """Open a regular file in the directory to read it; raises `OSError`. No link is followed."""
        directory = open_beneath(self._base, self._parts)
        try:
            file = FileIO(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory))
        finally:
            os.close(directory)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise FileNotFoundError(f"{name} is no regular file")
        return file

    def _open(self) -> int:
        with suppress(OSError):
            return open_beneath(self._base, self._parts)
        self._base.mkdir(parents=True, exist_ok=True)
        descriptor = open_own_folder(self._base, self._parts)
        if self._owner is not None:
            os.fchown(descriptor, self._owner, -1)
        return descriptor


class OutputStream:
    """Standard output or standard error of one command: a named pipe, and a record file once the output is long.

    `create` opens the file `record`, which gets at most `most_recorded` bytes; `keep` bytes stay in memory. Only
    writing the record blocks. Callers must allow blocking once `capture.overflows`.
    """

    def __init__(
        self,
        private: PrivateDirectory,
        pipe: str,
        record: Path,
        create: Callable[[str], FileIO],
        keep: int,
        most_recorded: int,
    ) -> None:
        self.pipe = pipe
        self.record = record
        self.capture = Capture(keep)
        self.descriptor: int | None = private.pipe(pipe)
        self.recorded = False
        self.opened = False
        """Whether a writer has been seen."""
        self._private = private
        self._create = create
        self._room = most_recorded
        self._file: FileIO | None = None

    def read(self) -> bytes | None:
        """Return the available bytes without waiting; None if there are none, b"" at the end."""
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
        """Keep bytes that were read, and write them to the record if the output is long."""
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
        self._private.remove(self.pipe)

    def go_on(self) -> None:
        """Open the record, because more output will come after the end of the command."""
        if self._file is None:
            self._open()

    def _open(self) -> None:
        """Create the record with the output so far. A disk error does not end the command."""
        with suppress(OSError):
            self._file = self._create(self.record.name)
            self.recorded = True
            self._write(self.capture.held())

    def _write(self, data: bytes) -> None:
        if self._file is not None and self._room > 0:
            with suppress(OSError):
                self._file.write(data[: self._room])
            self._room -= len(data)


class BackgroundOutputs:
    """Continues to read the output of background processes after their commands have ended.

    Without a reader such a process would block, or be killed by SIGPIPE. Above a maximum number, the oldest streams
    are closed.
    """

    def __init__(self) -> None:
        self._woken, self._wake = os.pipe()
        self._streams: dict[int, OutputStream] = {}
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def adopt(self, stream: OutputStream) -> None:
        """Read an stream to its end into its record."""
        stream.go_on()
        with self._lock:
            if stream.descriptor is not None:
                self._streams[stream.descriptor] = stream
            if self._thread is None:
                self._thread = threading.Thread(target=self._drain, name="shell leftovers", daemon=True)
                self._thread.start()
        os.write(self._wake, b".")

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._closed, thread = True, self._thread
        os.write(self._wake, b".")
        if thread is not None:
            thread.join()
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)

    def _drain(self) -> None:
        """Read until no stream is left. Only this thread closes the streams."""
        while watched := self._next():
            poll = select.poll()
            for descriptor in (self._woken, *watched):
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == self._woken:
                    os.read(descriptor, _PIECE)
                elif (data := watched[descriptor].read()) == b"":
                    self._drop(descriptor)
                elif data:
                    watched[descriptor].take(data)

    def _next(self) -> dict[int, OutputStream]:
        with self._lock:
            surplus = len(self._streams) - (0 if self._closed else _MOST_LEFTOVERS)
            for descriptor in list(self._streams)[: max(0, surplus)]:
                self._streams.pop(descriptor).close()
            if not self._streams:
                self._thread = None
            return dict(self._streams)

    def _drop(self, descriptor: int) -> None:
        with self._lock:
            self._streams.pop(descriptor).close()


def _has_hung_up(descriptor: int) -> bool:
    """Return whether the pipe had a writer and has none now."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
