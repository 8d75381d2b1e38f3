"""Base class of file systems: registered prefixes, default hooks, and saving and loading of state (G5)."""

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import Any, BinaryIO, Protocol

from cfs_filesystem._errors import (
    ConflictError,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    VersionError,
)
from cfs_filesystem._handle import FsHandle, directly_in, entries_below, newer
from cfs_filesystem._hooks import FileSystemHooks
from cfs_filesystem._paths import directories_above, validate_path, validate_prefix
from cfs_filesystem._text import decoded, lines_of, matches_of
from cfs_filesystem._types import EPOCH, DirectoryMeta, EntryMeta, Grant, Path

_CHUNK_BYTES = 1 << 20


def require_version(path: Path, present: object, version: str) -> None:
    """Raise `VersionError` unless the present version of an entry, or None for none, is this one."""
    if present != version:
        now = "it is gone" if present is None else f"its version is {present!r}"
        raise VersionError(f"{path!r} does not have the version {version!r}: {now}", path)


def chunks_of(content: BinaryIO) -> Iterator[bytes]:
    """Yield an open content in pieces."""
    return iter(partial(content.read, _CHUNK_BYTES), b"")


EVERYTHING: tuple[Grant, ...] = (Grant(prefix="/", ops=frozenset({"list", "file", "read"})),)


class DirectoryHooks(FileSystemHooks):
    """Default directories of a file system: the parents of its entries and of its prefixes.

    A registered prefix and each of its parents is a directory, even if it is empty.
    """

    def _members(self, inside: Path) -> dict[Path, EntryMeta]:
        deeper = [prefix for prefix in self.prefixes if prefix.startswith(inside)]
        members: dict[Path, EntryMeta] = {}
        try:
            if self._is_within(inside):
                members = {meta["path"]: meta for meta in self._scan_impl(inside)}
        except NotFoundError:
            if not deeper:
                raise
        leading: dict[Path, EntryMeta] = {}
        for prefix in deeper:
            directory = None if prefix == inside else self._directory(prefix)
            if directory is not None:
                path = inside + prefix[len(inside) :].partition("/")[0]
                leading[path] = newer(path, directory, leading.get(path))
        return leading | members

    def _directory(self, inside: Path) -> DirectoryMeta | None:
        directory = self._directory_impl(inside) if self._is_within(inside) else None
        if directory is None and any(prefix.startswith(inside) for prefix in self.prefixes):
            return DirectoryMeta(path=inside[:-1] or "/", size=0, updated_at=EPOCH, directory=True)
        return directory

    def _is_within(self, inside: Path) -> bool:
        return any(inside.startswith(prefix) for prefix in self.prefixes)

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        """Return the direct members of a directory, in any order; raise `NotFoundError` if it does not exist."""
        entries = directly_in(inside, entries_below(self._snapshot_impl(EVERYTHING), inside))
        if not entries:
            raise NotFoundError(f"there is no directory {inside[:-1]!r}", inside[:-1])
        return entries.values()

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        """Return the metadata of a directory, or None if there is none."""
        directory: DirectoryMeta | None = None
        for _, meta in entries_below(self._snapshot_impl(EVERYTHING), inside):
            directory = newer(inside[:-1] or "/", meta, directory)
        return directory

    def _make_directory_impl(self, path: Path) -> None:
        raise ConflictError(f"{path!r} cannot be created: this file system has no empty directories", path)

    def _remove_directory_impl(self, path: Path) -> None:
        raise ConflictError(f"{path!r} is not empty", path)


class Entries(Protocol):
    """Finds entries where they are stored."""

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry; raises `NotFoundError`."""

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers, in any order."""


class LiveIndex(Mapping[Path, EntryMeta]):
    """A live mapping of the entries. Each look-up reads the store."""

    def __init__(self, store: Entries) -> None:
        self._store = store

    def __getitem__(self, path: Path) -> EntryMeta:
        try:
            return self._store.look(path)
        except NotFoundError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.below("/"))

    def __len__(self) -> int:
        return sum(1 for _ in self.below("/"))

    def below(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the members of one directory."""
        return self._store.entries(prefix)


_VERSION = 1


class StateModule(ABC):
    """Base class of objects whose whole state can be exported as JSON data and loaded again."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state. An invalid state raises and changes nothing."""

    def serialize(self) -> bytes:
        """Return the state as bytes."""
        return json.dumps(self.state_dict(), ensure_ascii=False, separators=(",", ":")).encode()

    def restore(self, data: bytes) -> None:
        """Replace the state with one that `serialize` returned."""
        try:
            state = json.loads(data)
        except ValueError:
            raise InvalidArgumentError("the bytes are not a serialized state") from None
        self.load_state_dict(state)


class FileSystemBase(DirectoryHooks, StateModule):
    """A set of entries. Callers access them through handles.

    A subclass implements `_snapshot_impl`, `_read_binary_impl`, `_write_impl` and `_delete_impl`; the other hooks of
    `FileSystemHooks` have a default.
    """

    match_seconds = 1.0
    """Time limit of one `read_re`, in processor time."""

    def __init__(self, prefixes: Iterable[Path] = ("/",)) -> None:
        self.prefixes = tuple(prefixes)
        for prefix in self.prefixes:
            if not validate_prefix(prefix).endswith("/"):
                raise InvalidPathError(f"the registered prefix {prefix!r} does not end in '/'", prefix)

    def create_handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Create a handle with exactly these grants."""
        return FsHandle(self, grants)

    def _open_impl(self, path: Path) -> BinaryIO:
        return BytesIO(self._read_binary_impl(path))

    def _read_file_impl(self, path: Path, *, index: int | None, line: int | None) -> str:
        return lines_of(path, decoded(path, self._read_binary_impl(path)), index, line)

    def _read_re_impl(self, path: Path, pattern: str, overlap: int | None) -> list[str]:
        return matches_of(decoded(path, self._read_binary_impl(path)), pattern, overlap, self.match_seconds)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        return self._write_impl(path, b"".join(source), overwrite)

    def _replace_impl(self, path: Path, source: Iterable[bytes], version: str) -> EntryMeta:
        """Compare the version, then write. A caller has to keep other writers away in between."""
        self._require_version(path, version)
        return self._write_from_impl(path, source, True)

    def _delete_version_impl(self, path: Path, version: str) -> None:
        """Compare the version, then delete. A caller has to keep other writers away in between."""
        self._require_version(path, version)
        self._delete_impl(path)

    def _require_version(self, path: Path, version: str) -> None:
        meta = self._snapshot_impl(EVERYTHING).get(path)
        require_version(path, None if meta is None else meta.get("version"), version)

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        """Move an entry by reading, writing and deleting it. Directories cannot be moved."""
        if self._directory(path + "/") is not None:
            raise ConflictError(f"{path!r} is a directory, and this file system cannot move directories", path)
        with self._restored_on_failure(target):
            self._write_impl(target, self._read_binary_impl(path), overwrite)
            self._delete_impl(path)

    def _move_over_impl(self, path: Path, target: Path) -> None:
        raise ConflictError(f"this file system cannot replace {target!r} by {path!r}: one is a directory", target)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        """Copy entries one by one. A directory cannot replace anything, nor be replaced."""
        if self._directory(target + "/") is not None:
            raise ConflictError(f"{target!r} is a directory, and this file system cannot replace directories", target)
        inside = path + "/"
        if self._directory(inside) is None:
            with self._restored_on_failure(target):
                self._write_impl(target, self._read_binary_impl(path), overwrite)
            return
        entries = entries_below(self._snapshot_impl(EVERYTHING), inside) if members else ()
        copies = {entry: target + "/" + entry.removeprefix(inside) for entry, _ in entries}
        for copy in copies.values():
            validate_path(copy)  # it may be too long
        if not copies:
            self._make_directory_impl(target)
        with ExitStack() as written:
            for entry, copy in copies.items():
                self._write_impl(copy, self._read_binary_impl(entry), False)
                written.callback(self._delete_impl, copy)
            written.pop_all()

    def _remove_tree_impl(self, path: Path) -> None:
        """Delete entries one by one, the last ones first. It is not atomic; repeating it goes on."""
        for entry, _ in sorted(entries_below(self._snapshot_impl(EVERYTHING), path + "/"), reverse=True):
            with suppress(ConflictError):  # deleted meanwhile
                self._delete_impl(entry)
        if self._directory(path + "/") is not None:
            self._remove_directory_impl(path)

    @contextmanager
    def _restored_on_failure(self, path: Path) -> Iterator[None]:
        """Restore an entry, or delete a new one, if the block raises."""
        before = self._read_binary_impl(path) if path in self._snapshot_impl(EVERYTHING) else None
        try:
            yield
        except BaseException:
            with suppress(FileSystemError):
                if before is not None:
                    self._write_impl(path, before, True)
                elif path in self._snapshot_impl(EVERYTHING):
                    self._delete_impl(path)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return all entries with their contents (in base64)."""
        entries = {}
        for path, meta in sorted(entries_below(self._snapshot_impl(EVERYTHING), "/"), key=itemgetter(0)):
            with suppress(NotFoundError):  # deleted meanwhile
                content = base64.b64encode(self._read_binary_impl(path)).decode()
                entries[path] = {"data": content, "updated_at": meta["updated_at"].timestamp()}
        return {"version": _VERSION, "entries": entries}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all entries with those of the state. Their times are the time of this write."""
        entries = self._entries_of(state)
        for path, _ in entries_below(self._snapshot_impl(EVERYTHING), "/"):
            if path not in entries:
                self._delete_impl(path)
        for path, (data, _) in entries.items():
            self._write_impl(path, data, True)

    def _entries_of(self, state: Mapping[str, Any]) -> dict[Path, tuple[bytes, datetime]]:
        """Return the contents and times of a state; raise `InvalidArgumentError` or `InvalidPathError`."""
        try:
            if state["version"] != _VERSION:
                raise InvalidArgumentError(f"a state of version {state['version']!r} cannot be read")
            entries = {
                validate_path(path, self.prefixes): (
                    base64.b64decode(entry["data"], validate=True),
                    datetime.fromtimestamp(float(entry["updated_at"]), UTC),
                )
                for path, entry in state["entries"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, binascii.Error):
            raise InvalidArgumentError("this is not the state of a file system") from None
        for path in entries:
            if any(directory[:-1] in entries for directory in directories_above(path)):
                raise InvalidArgumentError(f"the state has an entry above {path!r}", path)
        return entries
