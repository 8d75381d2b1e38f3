"""The checks that every operation of a handle makes, in one order, and the rights that it makes them by (G2, G3, G7).

The first check that fails is the answer: the path, the grants, (a fresh look at the entries,) existence, then the
arguments and the implementation. So a caller learns nothing about entries that it has no right to.
"""
# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem._grants import Rights
from cfs_filesystem._paths import validate_listed, validate_path
from cfs_filesystem._types import EntryMeta, Grant, Operation, Path

if TYPE_CHECKING:
    from cfs_filesystem._base import FileSystemBase


class Gate:
    """A file system and the rights of one caller. It keeps no content, and nothing from one operation to the next."""

    def __init__(self, filesystem: "FileSystemBase", grants: Iterable[Grant]) -> None:
        self._filesystem = filesystem
        self._rights = Rights(grants, undeletable=filesystem.undeletable)
        self._index: Mapping[Path, EntryMeta] = {}

    # -- rights ---------------------------------------------------------------------------------------------------

    @property
    def grants(self) -> list[Grant]:
        """The handle's own grants. Replaced, or changed in place, they count from the next operation on.

        The grants of a narrowed handle never give more than those that it was narrowed from.
        """
        return self._rights.grants

    @grants.setter
    def grants(self, grants: Iterable[Grant]) -> None:
        self._rights.change(grants)

    def narrow(self, grants: Iterable[Grant]) -> Self:
        """Make a handle to hand on, with these grants (G7).

        Raises `AccessDeniedError` unless each pair of prefix and operation is one that this handle has. A right that
        is taken from this handle later is taken from the new one too.
        """
        child = type(self)(self._filesystem, ())
        child._rights = Rights(grants, self._rights, self._rights.undeletable)
        return child

    def describe_grants(self) -> str:
        """Say in a few lines of text, for a model's prompt, what this handle may do where (G7)."""
        return self._rights.describe()

    def allows(self, operation: Operation, path: Path) -> bool:
        """Tell whether a grant covers an operation at a path; raises `InvalidPathError` for what is none.

        For what is offered beside the operations here, and is to be judged by the same grants.
        """
        return self._rights.allow(operation, validate_path(path, self._filesystem.prefixes))

    def require(self, operation: Operation, path: Path) -> None:
        """Raise `AccessDeniedError` unless a grant covers an operation at a path."""
        self._rights.require(operation, validate_path(path, self._filesystem.prefixes))

    def scopes(self, operation: Operation, prefix: Path | None = None) -> list[Path]:
        """Return the prefixes, none within another, that together are all that an operation may be done to."""
        if prefix is not None:
            validate_listed(prefix, self._filesystem.prefixes)
        return self._rights.scopes(operation, prefix)

    # -- the order of checks --------------------------------------------------------------------------------------

    def _allowed(self, operation: Operation, path: Path) -> Mapping[Path, EntryMeta]:
        """Check the path, then the grants; return the entries as they are now."""
        validate_path(path, self._filesystem.prefixes)
        self._rights.require(operation, path)
        return self._refresh()

    def _existing(self, operation: Operation, path: Path) -> EntryMeta:
        """Check the path, then the grants, then that the entry exists."""
        meta = self._allowed(operation, path).get(path)
        if meta is None:
            raise NotFoundError(f"there is no entry {path!r}", path)
        return meta

    def _refresh(self) -> Mapping[Path, EntryMeta]:
        self._index = self._filesystem._snapshot_impl(self._rights.grants)
        return self._index
