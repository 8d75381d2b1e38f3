"""Files that the runtime writes: whole, or line by line; and what an error of the disk means."""

import errno
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cfs.errors import StorageFull, Unavailable
from cfs_filesystem import FileSystemError


class AppendedFile:
    """A file of JSON lines that only grows until it begins anew. An incomplete last line is cut off at the opening.

    Methods raise `OSError`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self.torn = cut_torn_line(self._file)
        """Whether the last line was incomplete at the opening."""
        self.size = os.fstat(self._file).st_size
        """Bytes in the file."""

    def _open(self) -> None:
        self._file = open_file(self._path)
        self._close = weakref.finalize(self, os.close, self._file)

    @property
    def intact(self) -> bool:
        """Whether the path still names this file, and no other program has changed its size."""
        try:
            named = self._path.lstat()
        except OSError:
            return False
        opened = os.fstat(self._file)
        return os.path.samestat(named, opened) and opened.st_size == self.size

    def content(self) -> bytes:
        """Return all lines, with those that others have added."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self.size = len(data)
        return data

    def append(self, *records: Mapping[str, Any], wait: bool = True) -> None:
        """Append lines, or nothing of them; with `wait` the disk has them, and all before, when this returns."""
        lines = b"".join(map(encoded_line, records))
        write_all(self._file, lines, wait=wait)
        self.size += len(lines)

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        self._close()
        self._file = -1

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


_FULL = {errno.ENOSPC, errno.EDQUOT}


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
