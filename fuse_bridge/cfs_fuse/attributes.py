"""What `stat` and `df` show."""

import os
import stat
import time
from typing import Any

from cfs_fuse.places import NAME_MAX

BLOCK = 4_096

READ_BYTES = 1 << 20
"""What `cat`, `cp` and others then read at a time: the largest piece that the kernel asks for in one request."""

_NANO = 1_000_000_000
_STAT_BLOCK = 512

Attributes = dict[str, Any]


class Look:
    """Makes attributes for one mount: whose files they are, and who may touch them as far as modes can tell."""

    def __init__(self, *, shared: bool) -> None:
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        self._file = stat.S_IFREG | (0o666 if shared else 0o644)
        self._directory = stat.S_IFDIR | (0o777 if shared else 0o755)
        self._began = time.time()

    def file(self, size: int, changed_at: float, *, mode: int | None = None) -> Attributes:
        """Describe a file; times are seconds since the epoch."""
        when = int(changed_at * _NANO)
        return {
            "st_mode": mode or self._file,
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // _STAT_BLOCK),
            "st_blksize": READ_BYTES,
            "st_mtime": when,
            "st_ctime": when,
            "st_atime": when,
            **self._owner,
        }

    def directory(self, changed_at: float) -> Attributes:
        """Describe a directory."""
        when = int((changed_at or self._began) * _NANO)
        return {
            "st_mode": self._directory,
            "st_nlink": 2,
            "st_mtime": when,
            "st_ctime": when,
            "st_atime": when,
            **self._owner,
        }

    @property
    def file_type(self) -> int:
        """Mode of a file in a listing."""
        return self._file

    @property
    def directory_type(self) -> int:
        """Mode of a directory in a listing."""
        return self._directory


def filesystem(sessions: int, used: int, nominal: int) -> dict[str, int]:
    """Describe the whole: what is used is true, what is free is `nominal` bytes less that.

    The server says how much it holds, and not how much it could.
    """
    blocks = -(-used // BLOCK)
    total = max(nominal // BLOCK, blocks)
    files = max(100_000, sessions)
    return {
        "f_bsize": BLOCK,
        "f_frsize": BLOCK,
        "f_blocks": total,
        "f_bfree": total - blocks,
        "f_bavail": total - blocks,
        "f_files": files,
        "f_ffree": files - sessions,
        "f_favail": files - sessions,
        "f_namemax": NAME_MAX,
    }
