"""The handle: whatever is done with a file system is one of its operations (G3)."""
# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for

import builtins
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from cfs_filesystem._directories import DirectoryOperations
from cfs_filesystem._errors import ConflictError, InvalidArgumentError
from cfs_filesystem._index import entries_below
from cfs_filesystem._paths import validate_listed
from cfs_filesystem._types import EntryMeta, Path


class FsHandle(DirectoryOperations):
    """What one caller may do with a file system. It keeps no content, and nothing from one operation to the next."""

    # -- looking --------------------------------------------------------------------------------------------------

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

    # -- reading --------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> BinaryIO:
        """Open the content for reading, at any place in it; the caller closes it.

        It stays what it was when it was opened, unless a program writes into the file itself.
        """
        self._existing("read_binary", path)
        return self._filesystem._open_impl(path)

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

        A match may share up to `overlap` characters with the one before; without it, none.
        """
        self._existing("read_re", path)
        _require_number("overlap", overlap, 0)
        if not isinstance(pattern, str):
            raise InvalidArgumentError(f"a pattern is a string, not {type(pattern).__name__}", path)
        return self._filesystem._read_re_impl(path, pattern, overlap)

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, path: Path, data: str | bytes, *, overwrite: bool = True) -> EntryMeta:
        """Store text (as UTF-8) or bytes; what is above the entry need not exist.

        Raises `ConflictError` when the entry exists and `overwrite` is false, or when the path is a directory of
        another entry.
        """
        self._require_writable(path, overwrite=overwrite)
        return self._filesystem._write_impl(path, _encoded(path, data), overwrite).copy()

    def write_from(self, path: Path, source: Iterable[bytes], *, overwrite: bool = True) -> EntryMeta:
        """Store what a source supplies, chunk by chunk, as `write` stores bytes.

        Whatever the source raises is raised here, and then nothing has changed.
        """
        self._require_writable(path, overwrite=overwrite)
        return self._filesystem._write_from_impl(path, _chunks(path, source), overwrite).copy()

    def delete(self, path: Path) -> None:
        """Take an entry away; raises `ConflictError` if somebody else did so in the same moment."""
        self._existing("delete", path)
        self._filesystem._delete_impl(path)

    def _require_writable(self, path: Path, *, overwrite: bool) -> None:
        exists = path in self._allowed("write", path)
        if exists and not overwrite:
            raise ConflictError(f"{path!r} exists", path)


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


def _chunks(path: Path, source: Iterable[bytes]) -> Iterator[bytes]:
    """Check that a source supplies bytes: at once whether it can, and each chunk when it comes."""
    if isinstance(source, str | bytes | bytearray | memoryview) or not isinstance(source, Iterable):
        raise InvalidArgumentError(f"a source is chunks of bytes, not {type(source).__name__}", path)
    return _checked_chunks(path, source)


def _checked_chunks(path: Path, source: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in source:
        if not isinstance(chunk, bytes):
            raise InvalidArgumentError(f"a chunk is bytes, not {type(chunk).__name__}", path)
        yield chunk
