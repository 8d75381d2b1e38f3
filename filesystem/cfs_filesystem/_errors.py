"""What can go wrong at the gate, and the one table of how it looks on each face (G4).

    FileSystemError
    ├── InvalidPathError        the string is no logical path, or a link stands in its way
    ├── InvalidArgumentError    index, line, overlap, pattern, data or text of the wrong kind
    ├── AccessDeniedError       the grants do not cover it
    ├── NotFoundError           no such entry, or no such lines in it
    └── ConflictError           what is there does not allow it

A failure of the medium (disk full, input/output error) stays an `OSError`; it carries the logical path.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from cfs_filesystem._types import Operation, Path


class FileSystemError(Exception):
    """Anything the gate refuses: `detail` says what was wrong, `path` which logical path it was about."""

    def __init__(self, detail: str, path: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path = path

    @property
    def errno(self) -> int:
        """Number that a file operation fails with."""
        return self._row.errno

    @property
    def status(self) -> int:
        """HTTP status code."""
        return self._row.status

    @property
    def dav_status(self) -> int:
        """WebDAV status code."""
        return self._row.dav_status

    @property
    def _row(self) -> "Row":
        return next(TABLE[kind] for kind in type(self).__mro__ if kind in TABLE)


class InvalidPathError(FileSystemError):
    """The string can never name an entry here, or a link stands in its way (G1)."""


class InvalidArgumentError(FileSystemError):
    """An argument is out of range or of the wrong type, or the entry is not the text that was asked for."""


class AccessDeniedError(FileSystemError):
    """No grant of the handle covers this operation at this path; `operation` is None where it is about several."""

    def __init__(self, detail: str, path: str | None = None, operation: Operation | None = None) -> None:
        super().__init__(detail, path)
        self.operation = operation


class NotFoundError(FileSystemError):
    """There is no such entry, or it has no such lines."""


class ConflictError(FileSystemError):
    """The present state does not allow it: the entry exists, is a directory of others, or was just taken away."""


class Row(NamedTuple):
    """How one class of error looks on each face."""

    errno: int
    status: int
    dav_status: int


TABLE: dict[type[FileSystemError], Row] = {
    InvalidPathError: Row(errno.EINVAL, 400, 400),
    InvalidArgumentError: Row(errno.EINVAL, 422, 422),
    AccessDeniedError: Row(errno.EACCES, 403, 403),
    NotFoundError: Row(errno.ENOENT, 404, 404),
    ConflictError: Row(errno.EPERM, 409, 409),
}

_BY_STATUS = {row.status: kind for kind, row in TABLE.items()}


def error_for_status(status: int) -> type[FileSystemError] | None:
    """Name the error that a face showed as this HTTP status; None when it is none of ours."""
    return _BY_STATUS.get(status)


# What the operating system says of a file, in logical words: no path of the disk in it.

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
