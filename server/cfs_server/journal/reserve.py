"""Space beside a store that is given back when the disk is full, so that deletions can still be stored."""

import errno
import os
from contextlib import suppress
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
_STEP_BYTES, _PAGE_BYTES = 1 << 20, 1 << 16
MAX_BYTES = 32 << 20
"""More than the largest write-ahead log, which a deletion may have to copy into the file first."""
_DISK_PARTS = 8
"""A small disk gives at most this part of itself."""
_LAST_BYTES, _LAST_PARTS = 1 << 19, 8
"""What is left for the next deletions when another program takes all that maintenance frees: at most this part."""


class Reserve:
    """A file of allocated blocks. It grows with the store, and is spent in parts: another program may take them."""

    def __init__(self, store: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = store.with_name(f"{store.name}.reserve")
        self.bytes = self._allocated()
        self._max_bytes = max_bytes

    def _allocated(self) -> int:
        try:
            state = self.path.stat()
        except OSError:
            return 0
        return min(state.st_size, state.st_blocks * 512)  # a copy of the folder can be sparse

    @property
    def max_bytes(self) -> int:
        """Its bytes beside a large store."""
        disk = os.statvfs(self.path.parent)
        return min(self._max_bytes, disk.f_blocks * disk.f_frsize // _DISK_PARTS)

    @property
    def room(self) -> int:
        """The bytes that can be written when all of it is spent."""
        disk = os.statvfs(self.path.parent)
        return self.bytes + disk.f_bavail * disk.f_frsize

    def _target_bytes(self, stored: int) -> int:
        return min((stored // _STEP_BYTES + 2) * _STEP_BYTES, self.max_bytes)

    def can_be_whole(self, stored: int) -> bool:
        """Return whether it is whole, or the disk has room for it and as much again.

        A reserve is not made of the last free bytes.
        """
        required = self._target_bytes(stored)
        return self.bytes >= required or self.room >= 2 * required - self.bytes

    def restock(self, stored: int) -> bool:
        """Set aside some more than is stored, within bounds. Returns whether it is there.

        Of a disk that has less than that, it takes half of what is free.
        """
        whole = self.can_be_whole(stored)
        target = self._target_bytes(stored) if whole else self.room // 2 & -_PAGE_BYTES
        if self.bytes >= target:
            return whole
        try:
            self._resize(target)
        except OSError as error:
            with suppress(OSError):
                self._resize(self.bytes)
            return error.errno not in FULL  # this file system, or a limit of the process, allows none
        self.bytes = target
        return whole

    def spend(self, *, last: bool) -> bool:
        """Give a part back to the disk, also of the last bytes if `last`. Returns whether there was one."""
        min_bytes = min(_LAST_BYTES, self.max_bytes // _LAST_PARTS)
        if self.bytes > min_bytes:
            left = max(min_bytes, self.bytes - max(self.bytes, _STEP_BYTES) // 4)
        elif self.bytes and last:
            left = max(0, self.bytes - _PAGE_BYTES)
        else:
            return False
        self._resize(left)
        self.bytes = left
        return True

    def _resize(self, size: int) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if size > self.bytes:
                _allocate(descriptor, self.bytes, size - self.bytes)
            else:
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def _allocate(descriptor: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, size)
        return
    os.lseek(descriptor, offset, os.SEEK_SET)  # macOS
    while size > 0:
        size -= os.write(descriptor, bytes(min(size, 1 << 20)))
