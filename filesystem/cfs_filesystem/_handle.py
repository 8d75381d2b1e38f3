"""The handle: all operations on a file system, each checked against the grants (G3)."""

import builtins
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO, Protocol, runtime_checkable

from cfs_filesystem._errors import ConflictError, FileSystemError, InvalidArgumentError, InvalidPathError, NotFoundError
from cfs_filesystem._grants import Gate
from cfs_filesystem._paths import covers, validate_directory, validate_listed, validate_path
from cfs_filesystem._types import DirectoryMeta, EntryMeta, Operation, Path

# Entries below a prefix


@runtime_checkable
class Ranged(Protocol):
    """A mapping that finds the entries below a prefix without iterating over all of its keys."""

    def below(self, prefix: Path) -> Iterable[tuple[Path, EntryMeta]]:
        """Return every entry that the prefix covers, in any order."""


def entries_below(index: Mapping[Path, EntryMeta], prefix: Path) -> Iterable[tuple[Path, EntryMeta]]:
    """Return every entry of an index that a prefix covers, in any order."""
    if isinstance(index, Ranged):
        return index.below(prefix)
    paths = list(index)  # copied in one step: other threads may write meanwhile
    entries = ((path, index.get(path)) for path in paths if covers(prefix, path))
    return [(path, meta) for path, meta in entries if meta is not None]


def directly_in(inside: Path, entries: Iterable[tuple[Path, EntryMeta]]) -> dict[Path, EntryMeta]:
    """Return the direct members of a prefix: its entries, and a directory for deeper ones.

    A directory has the time of the newest entry in it. If a path is both, the entry is returned.
    """
    files: dict[Path, EntryMeta] = {}
    directories: dict[Path, EntryMeta] = {}
    for path, meta in entries:
        name, slash, _ = path[len(inside) :].partition("/")
        if slash:
            directories[inside + name] = newer(inside + name, meta, directories.get(inside + name))
        else:
            files[path] = meta
    return directories | files


def newer(path: Path, meta: EntryMeta, other: EntryMeta | None = None) -> DirectoryMeta:
    """Return the metadata of a directory; its time is that of its newest member."""
    times = [meta["updated_at"], *([] if other is None else [other["updated_at"]])]
    return DirectoryMeta(path=path, size=0, updated_at=max(times), directory=True)


# Operations on directories (G3)
#
# A directory has no grants of its own. A prefix that covers its path also covers everything below it, as grants only
# add rights. So a right is checked at the path of the directory only.

# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for


class DirectoryOperations(Gate):
    """The operations of a handle on directories."""

    def scan(self, directory: Path) -> list[EntryMeta]:
        """Return the direct members of a directory, sorted by path: entries, and directories as `DirectoryMeta`.

        `directory` is a path, a registered prefix (`/workspaces/`) or `/`. If the caller may not list it, the result
        has only the components that lead to something that it may list. Raises `AccessDeniedError` if the caller may
        list nothing at or below it, and `NotFoundError` if it does not exist.
        """
        inside = validate_directory(directory, self._filesystem.prefixes)
        scopes = self._rights.scopes("list", inside)
        if not scopes:
            self._rights.require("list", directory)
        index = self._refresh_index()
        if scopes == [inside]:
            members = self._filesystem._members(inside)
        else:
            members = self._leading(inside, scopes, index)
            if not members and not self._leads_to_a_prefix(inside):
                raise NotFoundError(f"there is no directory {directory!r}", directory)
        return [members[path].copy() for path in sorted(members)]

    def is_directory(self, path: Path) -> bool:
        """Return whether this is a directory that the caller may see.

        That is so if `list` or `file` cover it, or if an existing entry below it may be listed.
        """
        inside = validate_directory(path, self._filesystem.prefixes)
        listable = self._rights.allow("list", inside) or self._rights.allow("file", inside[:-1] or "/")
        scopes = [] if listable else self._rights.scopes("list", inside)
        if not listable and not scopes:
            return False
        index = self._refresh_index()
        if scopes:
            return self._leads_to_a_prefix(inside) or bool(self._leading(inside, scopes, index))
        with suppress(InvalidPathError):  # a link
            return self._filesystem._directory(inside) is not None
        return False

    def make_directory(self, path: Path) -> None:
        """Create an empty directory.

        Raises `ConflictError` if the path exists, if its parent is not a directory, or if the file system has no empty
        directories.
        """
        self._ensure_allowed("write", path)
        index = self._refresh_index()
        self._require_free(path, index)
        self._require_parent(path)
        self._filesystem._make_directory_impl(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; raises `ConflictError` if it is not empty."""
        self._ensure_allowed("delete", path)
        self._refresh_index()
        self._require_directory(path)
        self._filesystem._remove_directory_impl(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it.

        Raises `ConflictError` if the file system has something in it that it does not show. Nothing is removed then.
        """
        self._ensure_allowed("delete", path)
        self._refresh_index()
        self._require_directory(path)
        self._require_deletable(path)
        self._filesystem._remove_tree_impl(path)

    def move(self, path: Path, target: Path, *, overwrite: bool = False, replace_directories: bool = False) -> None:
        """Move an entry, or a directory with everything in it. If it fails, both paths are as they were.

        Needs `read_binary` and `delete` at the path, and `write` at the target. Raises `ConflictError` if the parent of
        the target is not a directory, if the target is an entry and `overwrite` is false, if the target is a directory,
        if a directory is moved to an existing path, if one path is the other or below it, or if the two are in
        different file systems.

        With `overwrite` and `replace_directories` what is at the target is replaced, whatever the two are. A directory
        at the target is removed with everything in it, which needs `delete` there.
        """
        self._require_pair(path, target, "read_binary", "delete")
        index = self._refresh_index()
        is_entry = path in index
        if not is_entry:
            self._require_directory(path)
        self._require_apart(path, target)
        self._require_parent(target)
        if overwrite and replace_directories and self._replaces_directory(target, index, is_entry=is_entry):
            self._filesystem._move_over_impl(path, target)
        else:
            self._require_free(target, {} if is_entry and overwrite else index)
            self._filesystem._move_impl(path, target, overwrite and is_entry)

    def copy(self, path: Path, target: Path, *, overwrite: bool = False, members: bool = True) -> None:
        """Copy an entry, or a directory with everything in it. If it fails, the target is as it was.

        Needs `read_binary` at the path, and `write` at the target. Raises `ConflictError` as `move` does. With
        `overwrite` what is at the target is replaced, whatever the two are; a directory there needs `delete`. With
        `members=False` the copy of a directory is empty.
        """
        self._require_pair(path, target, "read_binary")
        index = self._refresh_index()
        is_entry = path in index
        if not is_entry:
            self._require_directory(path)
        self._require_apart(path, target)
        self._require_parent(target)
        if not overwrite:
            self._require_free(target, index)
        else:
            self._replaces_directory(target, index, is_entry=is_entry)
        self._filesystem._copy_impl(path, target, members=members, overwrite=overwrite)

    def _require_directory(self, path: Path) -> None:
        if self._filesystem._directory(path + "/") is None:
            raise NotFoundError(f"there is no directory {path!r}", path)

    def _require_pair(self, path: Path, target: Path, *operations: Operation) -> None:
        """Check two paths, then the operations at the first and `write` at the second."""
        validate_path(path, self._filesystem.prefixes)
        validate_path(target, self._filesystem.prefixes)
        for operation in operations:
            self._rights.require(operation, path)
        self._rights.require("write", target)

    def _require_apart(self, path: Path, target: Path) -> None:
        """Raise if one path is the other or below it: what is replaced would contain what replaces it."""
        if covers(path, target):
            raise ConflictError(f"{path!r} cannot be moved or copied to itself or below itself", target)
        if covers(target, path):
            raise ConflictError(f"{path!r} cannot replace {target!r}, which contains it", target)

    def _replaces_directory(self, target: Path, index: Mapping[Path, EntryMeta], *, is_entry: bool) -> bool:
        """Return whether an overwrite involves a directory. One that is at the target must be deletable."""
        if self._filesystem._directory(target + "/") is not None:
            self._require_deletable(target)
            return True
        return not is_entry and target in index

    def _require_deletable(self, directory: Path) -> None:
        self._rights.require("delete", directory)
        for prefix in self._rights.undeletable:
            if covers(directory, prefix):
                raise ConflictError(f"{directory!r} contains {prefix!r}, where nothing can be deleted", directory)

    def _require_free(self, path: Path, index: Mapping[Path, EntryMeta]) -> None:
        if path in index:
            raise ConflictError(f"{path!r} exists", path)
        if self._filesystem._directory(path + "/") is not None:
            raise ConflictError(f"{path!r} is a directory", path)

    def _require_parent(self, path: Path) -> None:
        parent = path[: path.rindex("/") + 1]
        if self._filesystem._directory(parent) is None:
            raise ConflictError(f"there is no directory {parent[:-1]!r} to contain it", path)

    def _leads_to_a_prefix(self, inside: Path) -> bool:
        return any(prefix.startswith(inside) for prefix in self._filesystem.prefixes)

    def _leading(self, inside: Path, scopes: Iterable[Path], index: Mapping[Path, EntryMeta]) -> dict[Path, EntryMeta]:
        """Return the components below a directory that lead to something in one of the scopes.

        The time of such a directory is that of the entry it leads to, so it reveals nothing else.
        """
        entries: dict[Path, EntryMeta] = {}
        for scope in scopes:
            path = inside + scope[len(inside) :].partition("/")[0]
            directory = self._at(scope, index)
            if directory is not None:
                entries[path] = directory if scope == path else newer(path, directory, entries.get(path))
        return entries

    def _at(self, scope: Path, index: Mapping[Path, EntryMeta]) -> EntryMeta | None:
        """Return the metadata of the entry or directory that a scope names, or None."""
        with suppress(FileSystemError):  # a link, or not a path of this file system
            directory: EntryMeta | None = None
            if any(scope.startswith(prefix) for prefix in self._filesystem.prefixes) and not scope.endswith("/"):
                directory = index.get(scope)
            return directory or self._filesystem._directory(scope if scope.endswith("/") else scope + "/")
        return None


# ruff: noqa: SLF001  the handle is the one that the hooks of a file system are for


class FsHandle(DirectoryOperations):
    """The operations of a file system that one caller may use. It caches nothing between operations."""

    def list(self, prefix: Path | None = None) -> builtins.list[EntryMeta]:
        """Return the entries at and below a prefix (default: all) that the caller may list, sorted by path.

        Raises `AccessDeniedError` if the caller may list nothing there. A prefix without entries gives an empty list.
        """
        if prefix is not None:
            validate_listed(prefix, self._filesystem.prefixes)
        scopes = self._rights.scopes("list", prefix)
        if not scopes:
            self._rights.require("list", prefix or "/")
        index = self._refresh_index()
        entries = dict(entry for scope in scopes for entry in entries_below(index, scope))
        return [entries[path].copy() for path in sorted(entries) if self._rights.allow("list", path)]

    def file(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry."""
        return self._existing("file", path).copy()

    def open(self, path: Path) -> BinaryIO:
        """Open the content as a seekable stream for reading; the caller closes it.

        The stream has the content at the time of opening, unless a program modifies the file in place.
        """
        self._existing("read_binary", path)
        return self._filesystem._open_impl(path)

    def read_binary(self, path: Path) -> bytes:
        """Return the content."""
        self._existing("read_binary", path)
        return self._filesystem._read_binary_impl(path)

    def read_file(self, path: Path, index: int | None = None, line: int | None = None) -> str:
        """Return the content as text, or `line` lines of it, starting at line `index` (counted from 0).

        Raises `InvalidArgumentError` if it is not UTF-8, and `NotFoundError` if line `index` is past the end.
        """
        self._existing("read_file", path)
        _require_number("index", index, 0)
        _require_number("line", line, 1)
        return self._filesystem._read_file_impl(path, index=index, line=line)

    def read_re(self, path: Path, pattern: str, overlap: int | None = None) -> builtins.list[str]:
        """Return the text of every match of a regular expression, within the file system's time limit.

        A match may overlap the previous one by up to `overlap` characters (default: none).
        """
        self._existing("read_re", path)
        _require_number("overlap", overlap, 0)
        if not isinstance(pattern, str):
            raise InvalidArgumentError(f"a pattern must be a string, not {type(pattern).__name__}", path)
        return self._filesystem._read_re_impl(path, pattern, overlap)

    def write(self, path: Path, data: str | bytes, *, overwrite: bool = True) -> EntryMeta:
        """Store text (as UTF-8) or bytes. Missing parent directories are created.

        Raises `ConflictError` if the entry exists and `overwrite` is false, or if the path is a directory that is not
        empty.
        """
        self._require_writable(path, overwrite=overwrite)
        return self._filesystem._write_impl(path, _encoded(path, data), overwrite).copy()

    def write_from(
        self, path: Path, source: Iterable[bytes], *, overwrite: bool = True, version: str | None = None
    ) -> EntryMeta:
        """Store the chunks of a source, as `write` stores bytes.

        With `version` they replace that version of the entry only; raises `VersionError` if it has another one. If the
        source raises, the same error is raised here, and nothing has changed.
        """
        self._require_writable(path, overwrite=overwrite)
        chunks = _chunks(path, source)
        if version is not None:
            return self._filesystem._replace_impl(path, chunks, version).copy()
        return self._filesystem._write_from_impl(path, chunks, overwrite).copy()

    def delete(self, path: Path, *, version: str | None = None) -> None:
        """Delete an entry; raises `ConflictError` if it was deleted concurrently.

        With `version` only that version is deleted; raises `VersionError` if the entry has another one.
        """
        self._existing("delete", path)
        if version is not None:
            self._filesystem._delete_version_impl(path, version)
        else:
            self._filesystem._delete_impl(path)

    def _require_writable(self, path: Path, *, overwrite: bool) -> None:
        self._ensure_allowed("write", path)
        if path in self._refresh_index() and not overwrite:
            raise ConflictError(f"{path!r} exists", path)


def _require_number(name: str, value: int | None, min_: int) -> None:
    if value is not None and (type(value) is not int or value < min_):
        raise InvalidArgumentError(f"{name} must be a whole number of at least {min_}, or None; not {value!r}")


def _encoded(path: Path, data: str | bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise InvalidArgumentError(f"data must be str or bytes, not {type(data).__name__}", path)
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("the text has a lone surrogate and cannot be stored as UTF-8", path) from None


def _chunks(path: Path, source: Iterable[bytes]) -> Iterator[bytes]:
    """Check that a source is iterable, and then that each of its chunks is bytes."""
    if isinstance(source, str | bytes | bytearray | memoryview) or not isinstance(source, Iterable):
        raise InvalidArgumentError(f"a source must yield bytes, not {type(source).__name__}", path)
    return _checked_chunks(path, source)


def _checked_chunks(path: Path, source: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in source:
        if not isinstance(chunk, bytes):
            raise InvalidArgumentError(f"each chunk must be bytes, not {type(chunk).__name__}", path)
        yield chunk
