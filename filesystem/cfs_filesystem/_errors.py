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
from typing import NamedTuple

from cfs_filesystem._types import Operation


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
