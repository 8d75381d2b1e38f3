"""The errors of file systems: a branch of the tree in `cfs.errors`, which has their HTTP status and errno (G4).

    FileSystemError
    ├── InvalidPathError        is an InvalidPath: not a logical path, or a component is a link
    ├── InvalidArgumentError    is an InvalidParameters: index, line, overlap, pattern, data or text of the wrong kind
    ├── AccessDeniedError       is a Forbidden: the grants do not cover the operation
    ├── NotFoundError           is a NotFound: no such entry, or no such lines in it
    └── ConflictError           is a Conflict: the current state does not allow the operation
        └── VersionError        is a PreconditionFailed: the entry has another version

A failure of the medium (disk full, input/output error) stays an `OSError`; it carries the logical path. An object store
that does not answer is an `Unavailable`.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    InvalidParameters,
    InvalidPath,
    NotFound,
    PreconditionFailed,
)
from cfs_filesystem._types import Operation, Path


class FileSystemError(CfsError):
    """Base class of file system errors: `detail` is the message, `path` the logical path concerned."""

    def __init__(self, detail: str, path: str | None = None) -> None:
        super().__init__(detail)
        self.path = path


class InvalidPathError(FileSystemError, InvalidPath):
    """The string is not a legal path here, or a component of it is a link (G1)."""


class InvalidArgumentError(FileSystemError, InvalidParameters):
    """An argument is out of range or of the wrong type, or the entry is not UTF-8 text."""


class AccessDeniedError(FileSystemError, Forbidden):
    """No grant of the handle covers this operation at this path; `operation` is None if several were required."""

    def __init__(self, detail: str, path: str | None = None, operation: Operation | None = None) -> None:
        super().__init__(detail, path)
        self.operation = operation


class NotFoundError(FileSystemError, NotFound):
    """The entry does not exist, or does not have these lines."""


class ConflictError(FileSystemError, Conflict):
    """The current state does not allow the operation: the entry exists, is a directory, or was just removed."""


class VersionError(ConflictError, PreconditionFailed):
    """The entry does not have the version that the caller wants to replace or delete."""


# Errors of the operating system: their messages must not show paths of the disk

_T = TypeVar("_T")

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MOUNTED = {errno.EXDEV, errno.EBUSY}
_CHANGED = {errno.ENOENT, errno.ENOTEMPTY}
"""Error numbers when another program removes or creates a directory during an operation."""
_ATTEMPTS = 100


def retry_while_directories_change(path: Path, action: Callable[[], _T]) -> _T:
    """Repeat an operation while other programs remove or create the directories that it needs.

    Raises `ConflictError` after 100 attempts.
    """
    for _ in range(_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in _CHANGED:
                raise _translated(path, error, ConflictError) from None
    raise ConflictError(f"the directories of {path!r} change all the time", path)


@contextmanager
def translate_os_errors(path: Path, absent: type[FileSystemError]) -> Iterator[None]:
    """Raise an `OSError` as an error of this module; `absent` is the class for a missing or blocked path."""
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
        return ConflictError(f"{path!r} is on another disk, or is a mount point", path)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidPathError(f"{path!r} is too long for this disk", path)
    if error.errno in _REFUSED:
        return AccessDeniedError(f"the operating system denies access to {path!r}", path)
    if error.errno in _ABSENT and absent is NotFoundError:
        return NotFoundError(f"there is no entry {path!r}", path)
    if error.errno in _ABSENT:
        return ConflictError(f"an entry above or below {path!r} is in the way", path)
    return OSError(error.errno, os.strerror(error.errno or 0), path)
