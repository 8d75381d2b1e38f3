"""What the operating system says of a file, in logical words: no path of the disk in it."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cfs_filesystem._errors import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidPathError,
    NotFoundError,
)
from cfs_filesystem._types import Path

_T = TypeVar("_T")

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MOUNTED = {errno.EXDEV, errno.EBUSY}
_CHANGED = {errno.ENOENT, errno.ENOTEMPTY}
"""How a directory that was removed, or made, under our feet shows itself."""
_ATTEMPTS = 100


def again_while_directories_change(path: Path, action: Callable[[], _T]) -> _T:
    """Do it again when a directory is removed or made by somebody else meanwhile.

    Removing takes them one that was there, and nobody makes directories without end, so this comes to its own.
    """
    for _ in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in _CHANGED:
                raise _translated(path, error, ConflictError) from None
    raise ConflictError(f"the directories of {path!r} are being made and removed all the time", path)


@contextmanager
def in_logical_words(path: Path, absent: type[FileSystemError]) -> Iterator[None]:
    """Raise what an `OSError` means for a path; `absent` is what a missing or blocked path means."""
    try:
        yield
    except OSError as error:
        raise _translated(path, error, absent) from None


def _translated(path: Path, error: OSError, absent: type[FileSystemError]) -> Exception:
    if error.errno == errno.ELOOP:
        return InvalidPathError(f"a symbolic link stands in the way of {path!r}", path)
    if error.errno == errno.EEXIST:
        return ConflictError(f"{path!r} exists", path)
    if error.errno == errno.ENOTEMPTY:
        return ConflictError(f"{path!r} is not empty", path)
    if error.errno in _MOUNTED:
        return ConflictError(f"{path!r} is on another disk, or one is mounted there", path)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidPathError(f"{path!r} is too long for this disk", path)
    if error.errno in _REFUSED:
        return AccessDeniedError(f"the operating system does not allow it at {path!r}", path)
    if error.errno in _ABSENT and absent is NotFoundError:
        return NotFoundError(f"there is no entry {path!r}", path)
    if error.errno in _ABSENT:
        return ConflictError(f"an entry above or below {path!r} is in the way", path)
    return OSError(error.errno, os.strerror(error.errno or 0), path)
