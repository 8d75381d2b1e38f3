"""What a caller is told when it has no right (G9): of what it may not see, that it is not there.

The answer depends on the caller's grants only, never on what exists: so nothing can be learnt from it.
"""

from cfs.errors import CfsError, Forbidden, NotGranted
from cfs_filesystem import OPERATIONS, FsHandle, Operation, Path


def require(handle: FsHandle, operation: Operation, path: Path, shown: str) -> None:
    """Raise unless the handle covers an operation at a path; `shown` is what the caller calls it.

    `Forbidden` where it may do something else there, `NotGranted` where the very name is not for it to know.
    """
    if not handle.allows(operation, path):
        raise refusal(handle, operation, path, shown)


def refusal(handle: FsHandle, operation: Operation, path: Path, shown: str) -> CfsError:
    """Make the error for an operation that is not granted; what is listed may be a prefix, which is no path."""
    known = handle.scopes if operation == "list" else handle.allows
    if any(known(other, path) for other in OPERATIONS):
        return Forbidden(
            f"your token does not allow {operation!r} for {shown}: its grants cover other operations there"
        )
    return NotGranted(f"there is no {shown} for you: no grant of your token covers {path!r}")
