"""The folder of a server without a data folder: deleted when the server ends, or by the next one if it was killed."""

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_PREFIX = "cfs-workspaces-"
_NEW_SECONDS = 60.0
"""A folder that is not older may be one that is not locked yet."""


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Yield an empty folder, which is deleted afterwards. Raises `OSError`."""
    folder, lock = await asyncio.to_thread(_make)
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """Make a folder and lock it for this process; delete those of processes that have ended."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for other in folder.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is locked, of another user, or gone
            if time.time() - other.lstat().st_mtime > _NEW_SECONDS:
                _delete_left(other)
    return folder, lock


def _delete_left(folder: Path) -> None:
    """Delete a folder, unless a process has locked it. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
