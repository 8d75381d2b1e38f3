"""Folders of the runtime: locked for one agent, and opened although commands can write beside them."""

import fcntl
import os
import stat
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from cfs.errors import Conflict
from cfs_agents.base.logs import get_logger
from cfs_filesystem import open_beneath

_log = get_logger(__name__)


def open_own_folder(
    base: Path, parts: Sequence[str], *, mode: int = 0o777, warn: Callable[[str], None] = _log.warning
) -> int:
    """Open a folder below a trusted one, which the caller closes; missing folders are created with `mode`.

    A link or a file that has the name of one of the folders is renamed, and `warn` is called with a sentence.
    Raises `OSError`.
    """
    folder = open_beneath(base, ())
    try:
        for part in parts:
            if _is_no_folder(folder, part):
                aside = put_aside(folder, part)
                warn(f"{part} in {base} was no folder: it is now called {aside}, and an empty folder has its place")
            below = open_beneath(folder, (part,), make=True, mode=mode)
            os.close(folder)
            folder = below
    except BaseException:
        os.close(folder)
        raise
    return folder


def lock_folder(owner: object, path: Path) -> Callable[[], object]:
    """Lock a folder for one agent until the returned function is called, or its owner is gone.

    The end of the process unlocks it, too. Raises `Conflict` if another agent has locked it, and `OSError`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    unlock = weakref.finalize(owner, os.close, descriptor)
    if not try_lock(descriptor):
        unlock()
        raise Conflict(f"another agent is at work in {path}: end that one first, or use another folder")
    return unlock


def try_lock(descriptor: int) -> bool:
    """Lock an open folder; return false if another process has locked it. A disk without locks cannot be checked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def put_aside(folder: int, name: str) -> str:
    """Rename what has a name in an open folder to `NAME.aside-1`, or the next number; return its new name.

    Raises `OSError`.
    """
    for number in count(1):
        free = f"{name}.aside-{number}"
        with suppress(FileNotFoundError):
            os.stat(free, dir_fd=folder, follow_symlinks=False)
            continue
        os.rename(name, free, src_dir_fd=folder, dst_dir_fd=folder)
        return free
    raise AssertionError  # pragma: no cover - the numbers have no end


def _is_no_folder(folder: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        return not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False
