"""What a file operation on a session reports, in the words of the error tree (C9)."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cfs.errors import (
    AlreadyExists,
    Busy,
    CfsError,
    Conflict,
    Forbidden,
    Gone,
    InvalidIdentifier,
    InvalidRequest,
    NotFound,
    ServerError,
    StorageFull,
    Timeout,
    TooLarge,
    Unreachable,
    Unsupported,
    UnsupportedMedia,
)

KINDS: dict[int, type[CfsError]] = {
    errno.ENOENT: NotFound,
    errno.ESTALE: Gone,
    errno.EAGAIN: Busy,
    errno.EPERM: Conflict,
    errno.EEXIST: AlreadyExists,
    errno.EACCES: Forbidden,
    errno.EROFS: Forbidden,
    errno.EFBIG: TooLarge,
    errno.ENAMETOOLONG: InvalidIdentifier,
    errno.EISDIR: InvalidIdentifier,
    errno.ENOTDIR: InvalidIdentifier,
    errno.EINVAL: InvalidRequest,
    errno.EILSEQ: UnsupportedMedia,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
    errno.ENOTCONN: Unreachable,
    errno.ETIMEDOUT: Timeout,
    errno.EOPNOTSUPP: Unsupported,
    errno.ENOSYS: Unsupported,
    errno.EIO: ServerError,
}

_ADVICE = {
    Unreachable: ": the mount has lost its server, or has ended; mount it again, or name the server by url=...",
    Unsupported: ": this mount cannot do that; use the session over HTTP, by url=...",
}


def error_from(error: OSError, path: str) -> CfsError:
    """Return the error of ours that means the same."""
    kind = KINDS.get(error.errno or 0, ServerError)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return kind(f"{path}: {reason}{_ADVICE.get(kind, '')}")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise what goes wrong with a file as an error of ours."""
    try:
        yield
    except OSError as error:
        raise error_from(error, path) from error
