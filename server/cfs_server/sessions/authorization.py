"""Decides what a principal may do at a path, for sessions, files, WebDAV and completions (G9).

A grant names operations and a prefix of logical paths. An operation without a grant is `forbidden` if the principal has
another right there, and the caller gets 403. Otherwise the path is `hidden`, and the caller gets 404 as for a missing
path. The decision depends only on the grants, not on the existence of the path, so it reveals nothing.

Each denial is logged here as `access.denied` with the principal, the operation, the path and the outcome.
"""

from enum import StrEnum

import structlog

from cfs.errors import CfsError, Forbidden, NotGranted
from cfs_filesystem import OPERATIONS, FsHandle, Operation, Path
from cfs_server.domain.rights import Right

_log = structlog.get_logger("cfs.access")


class Access(StrEnum):
    """The outcome of a decision."""

    ALLOWED = "allowed"
    HIDDEN = "hidden"
    FORBIDDEN = "forbidden"


class Authorization:
    """The rights of one principal, from its current grants."""

    __slots__ = ("handle", "is_share", "name")

    def __init__(self, name: str, handle: FsHandle, *, is_share: bool = False) -> None:
        """Use the grants of a handle. `name` is the principal's name in the log."""
        self.name = name
        self.handle = handle
        self.is_share = is_share

    def allows(self, operation: Operation, path: Path) -> bool:
        """Return whether an operation is granted at a path."""
        return self.handle.allows(operation, path)

    def decide(self, operation: Operation, path: Path) -> Access:
        """Decide about an operation at a path. For `list` the path may be a prefix."""
        granted = self.handle.scopes if operation == "list" else self.handle.allows
        if granted(operation, path):
            return Access.ALLOWED
        return Access.FORBIDDEN if any(granted(other, path) for other in OPERATIONS) else Access.HIDDEN

    def require(self, operation: Operation, path: Path, shown: str) -> None:
        """Raise unless an operation is granted. `shown` is the caller's name for the object at the path.

        Raises `Forbidden`, or `NotGranted` if the path is hidden.
        """
        if not self.handle.allows(operation, path):
            raise self.denial(operation, path, shown)

    def require_right(self, right: Right, path: Path, shown: str) -> None:
        """Raise unless a right to an action is granted at a path. `shown` is as for `require`.

        Raises `Forbidden`, or `NotGranted` if the path is hidden.
        """
        for operation in right.operations:
            self.require(operation, path, shown)
        if not right.for_shares:
            self.require_no_share(path, shown)

    def require_no_share(self, path: Path, shown: str) -> None:
        """Raise `Forbidden` for the bearer of a share, whatever it is granted."""
        if self.is_share:
            self.log_denial("write", path, Access.FORBIDDEN)
            raise Forbidden(f"a shared link does not allow this for {shown}; its owner may do it")

    def denial(self, operation: Operation, path: Path, shown: str) -> CfsError:
        """Log a denied operation, and return the error for the caller."""
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
