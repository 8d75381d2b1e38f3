"""The few file operations that a session needs, for coroutines: through aiofiles, and never waiting for a turn (C6)."""

import asyncio
from dataclasses import dataclass

import aiofiles
import aiofiles.os
import aiofiles.ospath
from aiofiles.threadpool.binary import AsyncFileIO

from cfs.transports.disk import Mark, busy, read_attributes, without_waiting, write_attribute


@dataclass(frozen=True, slots=True)
class AsyncTail:
    """A file whose text comes bit by bit."""

    file: AsyncFileIO

    async def read(self) -> bytes | None:
        """Return what is there: None while nothing is, b"" at the end."""
        return await self.file.read(1 << 16)

    async def close(self) -> None:
        """Close the file."""
        await self.file.close()


class AsyncDisk:
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

    async def mark(self, path: str) -> Mark:
        """Look at a file without reading it."""
        found = await aiofiles.os.stat(path)
        return Mark(found.st_size, found.st_mtime_ns)

    async def is_directory(self, path: str) -> bool:
        """Whether there is such a directory."""
        return await aiofiles.ospath.isdir(path)

    async def attributes(self, path: str) -> dict[str, bytes]:
        """Read the extended attributes of a file."""
        return await asyncio.to_thread(read_attributes, path)

    async def set_attribute(self, path: str, name: str, value: bytes | None) -> None:
        """Set an extended attribute; None removes it."""
        await asyncio.to_thread(write_attribute, path, name, value)

    async def tail(self, path: str) -> AsyncTail:
        """Open a file whose text comes bit by bit."""
        return AsyncTail(await aiofiles.open(path, "rb", buffering=0, opener=without_waiting))
