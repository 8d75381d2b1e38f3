"""File operations of sessions on a mount, blocking and async."""

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import NamedTuple

import aiofiles
import aiofiles.os
import aiofiles.ospath
from aiofiles.threadpool.binary import AsyncFileIO

from cfs.contract.errors import CfsError, Unreachable, Unsupported, from_errno

_ADVICE = {
    Unreachable: ": the mount has lost its server, or has ended; mount it again, or name the server by url=...",
    Unsupported: ": this mount cannot do that; use the session over HTTP, by url=...",
}


def error_from(error: OSError, path: str) -> CfsError:
    """Convert an `OSError` to an error of `cfs.errors`."""
    kind = from_errno(error.errno)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return kind(f"{path}: {reason}{_ADVICE.get(kind, '')}")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise an `OSError` as an error of `cfs.errors`."""
    try:
        yield
    except OSError as error:
        raise error_from(error, path) from error


class FileStamp(NamedTuple):
    """Shows whether a file has changed: size in bytes, and time of the last change in nanoseconds."""

    size: int
    changed: int


def without_waiting(path: str, flags: int) -> int:
    """Open for reads that fail with `EAGAIN` instead of waiting (S7)."""
    return os.open(path, flags | os.O_NONBLOCK)


def busy() -> BlockingIOError:
    """Return the error of a non-blocking read (S7)."""
    return BlockingIOError(errno.EAGAIN, "a turn is running")


def read_attributes(path: str) -> dict[str, bytes]:
    """Read the extended attributes of a file; `ENOTSUP` where there is no such thing."""
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    attributes = {}
    for name in os.listxattr(path):
        with contextlib.suppress(OSError):  # it went away since
            attributes[name] = os.getxattr(path, name)
    return attributes


def write_attribute(path: str, name: str, value: bytes | None) -> None:
    """Set an extended attribute of a file; None removes it, if it is there."""
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    if value is not None:
        os.setxattr(path, name, value)
        return
    try:
        os.removexattr(path, name)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


@dataclass(frozen=True, slots=True)
class GrowingFile:
    """A file whose text comes bit by bit."""

    file: FileIO

    def read(self) -> bytes | None:
        """Return what is there: None while nothing is, b"" at the end."""
        return self.file.read(1 << 16)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class MountedFiles:
    """Files of a mount, by path. Everything raises `OSError`."""

    def read(self, path: str, *, waiting: bool = False) -> bytes:
        """Read a file; `BlockingIOError` while a turn runs, unless `waiting` for its end."""
        with open(path, "rb", buffering=0, opener=None if waiting else without_waiting) as file:
            data: bytes | None = file.read()
        if data is None:
            raise busy()
        return data

    def append(self, path: str, data: bytes) -> None:
        """Write to the end of a file, made if need be; closing it makes the message complete (F2)."""
        with open(path, "ab", buffering=0) as file:  # noqa: PTH123
            while data:
                data = data[file.write(data) :]

    def make(self, path: str, data: bytes) -> None:
        """Write a new file; `FileExistsError` where there is one."""
        with open(path, "xb", buffering=0) as file:  # noqa: PTH123
            while data:
                data = data[file.write(data) :]

    def remove(self, path: str) -> None:
        """Unlink a file."""
        os.unlink(path)  # noqa: PTH108

    def mark(self, path: str) -> FileStamp:
        """Look at a file without reading it."""
        status = os.stat(path)  # noqa: PTH116
        return FileStamp(status.st_size, status.st_mtime_ns)

    def is_directory(self, path: str) -> bool:
        """Whether there is such a directory."""
        return os.path.isdir(path)  # noqa: PTH112

    def attributes(self, path: str) -> dict[str, bytes]:
        """Read the extended attributes of a file."""
        return read_attributes(path)

    def set_attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Set an extended attribute; None removes it."""
        write_attribute(path, name, value)

    def tail(self, path: str) -> GrowingFile:
        """Open a file whose text comes bit by bit."""
        return GrowingFile(open(path, "rb", buffering=0, opener=without_waiting))


@dataclass(frozen=True, slots=True)
class AsyncGrowingFile:
    """A file whose text comes bit by bit."""

    file: AsyncFileIO

    async def read(self) -> bytes | None:
        """Return what is there: None while nothing is, b"" at the end."""
        return await self.file.read(1 << 16)

    async def close(self) -> None:
        """Close the file."""
        await self.file.close()


class AsyncMountedFiles:
    """Files of a mount, by path. Everything raises `OSError`."""

    async def read(self, path: str, *, waiting: bool = False) -> bytes:  # noqa: ARG002 - a thread that waits cannot be cancelled
        """Read a file; `BlockingIOError` while a turn runs."""
        async with aiofiles.open(path, "rb", buffering=0, opener=without_waiting) as file:
            data: bytes | None = await file.read()
        if data is None:
            raise busy()
        return data

    async def append(self, path: str, data: bytes) -> None:
        """Write to the end of a file, made if need be; closing it makes the message complete (F2)."""
        async with aiofiles.open(path, "ab", buffering=0) as file:
            while data:
                data = data[await file.write(data) :]

    async def make(self, path: str, data: bytes) -> None:
        """Write a new file; `FileExistsError` where there is one."""
        async with aiofiles.open(path, "xb", buffering=0) as file:
            while data:
                data = data[await file.write(data) :]

    async def remove(self, path: str) -> None:
        """Unlink a file."""
        await aiofiles.os.unlink(path)

    async def mark(self, path: str) -> FileStamp:
        """Look at a file without reading it."""
        status = await aiofiles.os.stat(path)
        return FileStamp(status.st_size, status.st_mtime_ns)

    async def is_directory(self, path: str) -> bool:
        """Whether there is such a directory."""
        return await aiofiles.ospath.isdir(path)

    async def attributes(self, path: str) -> dict[str, bytes]:
        """Read the extended attributes of a file."""
        return await asyncio.to_thread(read_attributes, path)

    async def set_attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Set an extended attribute; None removes it."""
        await asyncio.to_thread(write_attribute, path, name, value)

    async def tail(self, path: str) -> AsyncGrowingFile:
        """Open a file whose text comes bit by bit."""
        return AsyncGrowingFile(await aiofiles.open(path, "rb", buffering=0, opener=without_waiting))
