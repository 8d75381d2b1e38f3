"""Files that the runtime keeps: written whole or line by line, and put aside when they are damaged.

Nothing that is damaged is deleted: it is renamed to `NAME.aside-1`. What cannot even be renamed stays, and the runtime
uses `NAME~2` in its place. Every repair calls `warn` with one sentence.
"""

import errno
import json
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from cfs.errors import StorageFull, Unavailable
from cfs_agents.base.folders import put_aside
from cfs_filesystem import FileSystemError

Warn: TypeAlias = Callable[[str], None]
"""Gets one sentence for a person."""

_READ = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_REASONS: Mapping[int, str] = {
    errno.ELOOP: "is a link",
    errno.EISDIR: "is no file",
    errno.EACCES: "cannot be {}",
    errno.EPERM: "cannot be {}",
}
"""What can be in the place of a file, by the error of opening it."""


def usable_file(path: Path, warn: Warn, *, write: bool = True) -> Path:
    """Return the path by which a file of the runtime can be read and, with `write`, written; it may be missing.

    A link, a folder, and a file without these rights are put aside. A file that can be read is copied before. Raises
    `OSError` if the folder does not allow this.
    """
    path = _newest(path)
    try:
        _require_usable(path, write=write)
    except FileNotFoundError:
        pass
    except OSError as error:
        if (reason := _REASONS.get(error.errno or 0)) is None:
            raise
        return _moved(path, reason.format("written" if _content(path) is not None else "read"), warn)
    return path


def without_damage(path: Path, good: bytes | None, problem: str, warn: Warn, *, what: str = "damaged file") -> Path:
    """Put a damaged file aside, and write what is before the damage in its place; return its path.

    `problem` completes a sentence that begins with the name of the file. Without `good` nothing is written. `what`
    is the word for what is put aside. Raises `OSError`.
    """
    aside, free = _out_of_the_way(path)
    if good is not None:
        replace_file(free, good)
    kept = "" if aside is None else f"; the {what} is kept as {aside.name}"
    warn(f"{path.name} in {path.parent} {problem}{kept}")
    return free


def _moved(path: Path, reason: str, warn: Warn) -> Path:
    """Put aside what cannot be used, and continue with a copy of its content if it can be read."""
    content = _content(path)
    aside, free = _out_of_the_way(path)
    if content is not None:
        replace_file(free, content)
    use = "its content is not used" if content is None else "a copy of it is used"
    where = "it stays" if aside is None or aside == path else f"it is kept as {aside.name}"
    name = "" if free == path else f", and the runtime uses {free.name} from now on"
    warn(f"{path.name} in {path.parent} {reason}: {use}, and {where}{name}")
    return free


def _out_of_the_way(path: Path) -> tuple[Path | None, Path]:
    """Free the name of a file. Return where what was there is now, if it had any content, and the name to use."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None, path
    try:
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
            path.unlink()
            return None, path
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return path.with_name(put_aside(folder, path.name)), path
        finally:
            os.close(folder)
    except PermissionError:  # the file is immutable
        return path, next(each for each in _later_names(path) if not os.path.lexists(each))


def _newest(path: Path) -> Path:
    """Return the last of the names that replace one another."""
    for later in _later_names(path):
        if not os.path.lexists(later):
            return path
        path = later
    raise AssertionError  # pragma: no cover - the numbers have no end


def _later_names(path: Path) -> Iterator[Path]:
    stem, _, number = path.stem.partition("~")  # no name of an agent has this character
    for later in count(int(number or 1) + 1):
        yield path.with_name(f"{stem}~{later}{path.suffix}")


def _require_usable(path: Path, *, write: bool) -> None:
    """Raise `OSError` unless a path is a file with these rights."""
    if not stat.S_ISREG(path.lstat().st_mode) and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, "it is no file")
    os.close(os.open(path, _READ | (os.O_RDWR if write else os.O_RDONLY)))


def _content(path: Path) -> bytes | None:
    """Read a file that is none of others by a link; None if it cannot be read."""
    with suppress(OSError):
        file = os.open(path, _READ | os.O_RDONLY)
        with os.fdopen(file, "rb") as opened:
            return opened.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
    return None


# -- writing ----------------------------------------------------------------------------------------------------------


class AppendedFile:
    """A file of JSON lines that only grows until it begins anew. An incomplete last line is cut off at the opening.

    Methods raise `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        cut_torn_line(self._file)
        self.size = os.fstat(self._file).st_size
        """Bytes in the file."""

    def _open(self) -> None:
        self._file = open_file(self._path)
        self._close = weakref.finalize(self, os.close, self._file)

    @property
    def intact(self) -> bool:
        """Whether the path still names this file, and nobody else has changed its size."""
        return is_intact(self._path, self._file, self.size)

    def append(self, record: Mapping[str, Any], *, wait: bool = True) -> None:
        """Append a line, or nothing of it; with `wait` the disk has it, and all before it, when this returns."""
        line = encoded_line(record)
        write_all(self._file, line, wait=wait)
        self.size += len(line)

    def restart(self, head: Mapping[str, Any]) -> None:
        """Replace all lines by one, in one step; the disk has that when this returns."""
        line = encoded_line(head)
        replace_file(self._path, line)
        self._close()
        self._open()
        self.size = len(line)


def encoded_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    return json.dumps(record).encode() + b"\n"


def open_file(path: Path) -> int:
    """Open a file to append to it, or create it for its owner only. Raises `OSError`."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def is_intact(path: Path, file: int, size: int) -> bool:
    """Return whether a path still names an open file, and the file has this size."""
    try:
        named = path.lstat()
    except OSError:
        return False
    opened = os.fstat(file)
    return os.path.samestat(named, opened) and opened.st_size == size


def cut_torn_line(file: int) -> bool:
    """Cut off a last line that has no end, and return whether there was one: nothing has acted on it yet.

    A line with NUL bytes stays: it is no line that was being written, but several that a disk has lost.
    """
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end == size or b"\0" in os.pread(file, size - end, end):
        return False
    os.ftruncate(file, end)
    os.fsync(file)
    return True


def write_all(file: int, data: bytes, *, wait: bool) -> None:
    """Append all of it, or none of it, and `wait` until the disk has it with all that was written before."""
    before = os.fstat(file).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        if wait:
            os.fsync(file)
    except OSError:
        os.ftruncate(file, before)
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically; it is on the disk with its name when this returns. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    file = open_file(draft)
    try:
        write_all(file, data, wait=True)
    finally:
        os.close(file)
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk. Raises `OSError`."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# A disk that is nearly full, said before it happens; and what a failure of the disk means (A7).

WARN_BELOW = 64 * 1024 * 1024
"""Free bytes below which it is said that the disk is nearly full."""
STOP_BELOW = 4 * 1024 * 1024
"""Free bytes below which nothing is begun any more: what is begun must be written down to its end."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


class Disk:
    """Watches the room on the disk of a directory; `check` before each step."""

    def __init__(self, path: Path, *, warn_below: int = WARN_BELOW, stop_below: int = STOP_BELOW) -> None:
        self._path = path
        self._warn_below = warn_below
        self._stop_below = stop_below
        self._warned = False

    def check(self) -> str | None:
        """Return a warning when little is left, once; raise `StorageFull` when it is too little to go on."""
        status = os.statvfs(self._path)
        free = status.f_bavail * status.f_frsize
        if free < self._stop_below:
            raise StorageFull(
                f"the disk of {self._path} has {free:,} bytes left, and {self._stop_below:,} are needed to go on:"
                " make room, then resume; nothing is lost"
            )
        low, warned = free < self._warn_below, self._warned
        self._warned = low
        if low and not warned:
            return f"the disk of {self._path} is nearly full: {free:,} bytes left"
        return None


class DiskError(Unavailable):
    """Files cannot be read or written. Waiting does not help, other than for a server that is away."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise what a failure of the disk means: `StorageFull`, or `DiskError` for any other."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {path} is full: make room, then resume; nothing is lost") from None
        raise DiskError(f"{path}: {error.strerror or error}") from None
    except FileSystemError as error:
        raise DiskError(f"{path}: {error}") from None
