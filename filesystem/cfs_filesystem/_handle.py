"""The gate: every access to a file system passes one of the seven operations of a handle (G3).

Each operation makes the same checks in the same order, and the first that fails is the answer: the path, the grants,
(a fresh look at the entries,) existence, then the arguments and the implementation. So a caller learns nothing about
entries that it has no right to.
"""
# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for

import builtins
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cfs_filesystem._errors import ConflictError, InvalidArgumentError, NotFoundError
from cfs_filesystem._grants import Rights
from cfs_filesystem._index import entries_below
from cfs_filesystem._paths import validate_listed, validate_path
from cfs_filesystem._types import EntryMeta, Grant, Operation, Path

if TYPE_CHECKING:
    from cfs_filesystem._base import FileSystemBase


class FsHandle:
    """What one caller may do with a file system. It keeps no content, and nothing from one operation to the next."""

    def __init__(self, filesystem: "FileSystemBase", grants: Iterable[Grant]) -> None:
        self._filesystem = filesystem
        self._rights = Rights(grants)
        self._index: Mapping[Path, EntryMeta] = {}

    # -- rights ---------------------------------------------------------------------------------------------------

    @property
    def grants(self) -> builtins.list[Grant]:
        """The handle's own grants. Replaced, or changed in place, they count from the next operation on.

        The grants of a narrowed handle never give more than those that it was narrowed from.
        """
        return self._rights.grants

    @grants.setter
    def grants(self, grants: Iterable[Grant]) -> None:
        self._rights.change(grants)

    def narrow(self, grants: Iterable[Grant]) -> "FsHandle":
        """Make a handle to hand on, with these grants (G7).

        Raises `AccessDeniedError` unless each pair of prefix and operation is one that this handle has. A right that
        is taken from this handle later is taken from the new one too.
        """
        child = FsHandle(self._filesystem, ())
        child._rights = Rights(grants, self._rights)
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

    def scopes(self, operation: Operation, prefix: Path | None = None) -> builtins.list[Path]:
        """Return the prefixes, none within another, that together are all that an operation may be done to."""
        if prefix is not None:
            validate_listed(prefix, self._filesystem.prefixes)
        return self._rights.scopes(operation, prefix)

    # -- operations -----------------------------------------------------------------------------------------------

    def list(self, prefix: Path | None = None) -> builtins.list[EntryMeta]:
        """Return the entries at and below a prefix, or all, sorted by path; only those that may be listed.

        Raises `AccessDeniedError` when nothing there may be listed. A prefix where nothing exists is an empty list.
        """
        if prefix is not None:
            validate_listed(prefix, self._filesystem.prefixes)
        scopes = self._rights.scopes("list", prefix)
        if not scopes:
            self._rights.require("list", prefix or "/")
        index = self._refresh()
        found = dict(entry for scope in scopes for entry in entries_below(index, scope))
        return [found[path].copy() for path in sorted(found) if self._rights.allow("list", path)]

    def file(self, path: Path) -> EntryMeta:
        """Return what is known of an entry."""
        return self._existing("file", path).copy()

    def read_binary(self, path: Path) -> bytes:
        """Return the content."""
        self._existing("read_binary", path)
        return self._filesystem._read_binary_impl(path)

    def read_file(self, path: Path, index: int | None = None, line: int | None = None) -> str:
        """Return the content as text, or `line` lines of it from number `index` (of 0, 1, ...) on, as stored.

        Raises `InvalidArgumentError` where it is not UTF-8, `NotFoundError` when line `index` is past the end.
        """
        self._existing("read_file", path)
        _require_number("index", index, 0)
        _require_number("line", line, 1)
        return self._filesystem._read_file_impl(path, index, line)

    def read_re(self, path: Path, pattern: str, overlap: int | None = None) -> builtins.list[str]:
        """Return the text of every match of a regular expression, within the file system's time limit.

        With `overlap` the text is searched in windows that overlap by so many characters, for very long texts.
        """
        self._existing("read_re", path)
        _require_number("overlap", overlap, 0)
        if not isinstance(pattern, str):
            raise InvalidArgumentError(f"a pattern is a string, not {type(pattern).__name__}", path)
        return self._filesystem._read_re_impl(path, pattern, overlap)

    def write(self, path: Path, data: str | bytes, *, overwrite: bool = True) -> EntryMeta:
        """Store text (as UTF-8) or bytes; what is above the entry need not exist.

        Raises `ConflictError` when the entry exists and `overwrite` is false, or when the path is a directory of
        another entry.
        """
        exists = path in self._allowed("write", path)
        if exists and not overwrite:
            raise ConflictError(f"{path!r} exists", path)
        return self._filesystem._write_impl(path, _encoded(path, data), overwrite).copy()

    def delete(self, path: Path) -> None:
        """Take an entry away; raises `ConflictError` if somebody else did so in the same moment."""
        self._existing("delete", path)
        self._filesystem._delete_impl(path)

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


def _require_number(name: str, value: int | None, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise InvalidArgumentError(f"{name} is a whole number of at least {least}, or nothing; not {value!r}")


def _encoded(path: Path, data: str | bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise InvalidArgumentError(f"data is str or bytes, not {type(data).__name__}", path)
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("the text has a lone surrogate and cannot be stored as UTF-8", path) from None
