"""The free space of a disk, watched so that nothing begins that cannot be stored to its end (A7)."""

import os
from pathlib import Path

from cfs.errors import StorageFull

WARN_BELOW = 64 * 1024 * 1024
"""Free bytes below which it is said that the disk is nearly full."""
STOP_BELOW = 4 * 1024 * 1024
"""Free bytes below which nothing is begun any more: what is begun must be written down to its end."""


class FreeSpace:
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
