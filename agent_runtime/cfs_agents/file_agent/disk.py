"""A disk that is nearly full, said before it happens; and what a failure of the disk means (A7)."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cfs.errors import StorageFull, Unavailable
from cfs_filesystem import FileSystemError

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


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise what a failure of the disk means: `StorageFull`, or `Unavailable` for any other."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {path} is full: make room, then resume; nothing is lost") from None
        raise Unavailable(f"{path}: {error.strerror or error}") from None
    except FileSystemError as error:
        raise Unavailable(f"{path}: {error}") from None
