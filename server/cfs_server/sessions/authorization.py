"""What a principal may do at a path: one decision for sessions, files, WebDAV and completions (G9).

A grant names operations and a branch of logical paths. An operation that is not granted is `forbidden` where the
principal may do something else there, and the caller gets 403; else the path is `hidden`, and the caller gets 404, as
if nothing were there. The decision depends on the grants only, never on what exists, so nothing can be learnt from it.

Each denial is logged here, as `access.denied` with the principal, the operation, the path and the outcome.
"""

from enum import StrEnum

import structlog

from cfs.errors import CfsError, Forbidden, NotGranted
from cfs_filesystem import OPERATIONS, FsHandle, Operation, Path

_log = structlog.get_logger("cfs.access")


class Access(StrEnum):
    """The outcome of a decision."""

    ALLOWED = "allowed"
    HIDDEN = "hidden"
    FORBIDDEN = "forbidden"


class Authorization:
    """The rights of one principal, as its grants are at the moment of asking."""

    __slots__ = ("handle", "name")

    def __init__(self, name: str, handle: FsHandle) -> None:
        """Judge by the grants of a handle; the log calls the principal by its name."""
        self.name = name
        self.handle = handle

    def allows(self, operation: Operation, path: Path) -> bool:
        """Tell whether an operation is granted at a path."""
        return self.handle.allows(operation, path)

    def decide(self, operation: Operation, path: Path) -> Access:
        """Decide about an operation at a path; for `list` the path may be a prefix."""
        if self.handle.allows(operation, path):
            return Access.ALLOWED
        known = self.handle.scopes if operation == "list" else self.handle.allows
        return Access.FORBIDDEN if any(known(other, path) for other in OPERATIONS) else Access.HIDDEN

    def require(self, operation: Operation, path: Path, shown: str) -> None:
        """Raise unless an operation is granted; `shown` is what the caller calls the thing at the path.

        Raises `Forbidden`, or `NotGranted` where the path is hidden.
        """
        if not self.handle.allows(operation, path):
            raise self.denial(operation, path, shown)

    def denial(self, operation: Operation, path: Path, shown: str) -> CfsError:
        """Log that an operation was denied, and return the error for the caller."""
        if self.decide(operation, path) is Access.HIDDEN:
            self.log_denial(operation, path, Access.HIDDEN)
            return NotGranted(f"there is no {shown} for you: no grant of your token covers {path!r}")
        self.log_denial(operation, path, Access.FORBIDDEN)
        return Forbidden(
            f"your token does not allow {operation!r} for {shown}: its grants cover other operations there"
        )

    def log_denial(self, operation: Operation, path: Path, outcome: Access) -> None:
        """Log a denial."""
        _log.info("access.denied", principal=self.name, operation=operation, path=path, outcome=outcome.value)
