"""An object store, such as a bucket of S3, as a logical file system (G6).

An entry is an object: its key is the path below the prefix. A directory is a prefix of keys; one that was created
explicitly has an empty object whose key ends in `/`. Directories have no times. A move copies and then deletes, so
others may see both paths. docs/filesystem.md describes the guarantees.
"""

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader, BytesIO, RawIOBase
from itertools import islice
from typing import BinaryIO, TypeAlias, cast

from cfs.errors import CfsError
from cfs_filesystem._base import FileSystemBase, LiveIndex, require_version
from cfs_filesystem._errors import ConflictError, FileSystemError, InvalidPathError, NotFoundError, VersionError
from cfs_filesystem._paths import covers, directories_above, validate_path
from cfs_filesystem._temporary import TEMPORARY, temporary_name
from cfs_filesystem._types import EPOCH, DirectoryMeta, EntryMeta, Grant, Path, VersionedEntryMeta

_FIRST_BYTES = 1 << 20
"""Bytes that are read when an entry is opened. Smaller entries need no other request."""
_BLOCK_BYTES = 8 << 20
_IDENTITY = f"{TEMPORARY}identity"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store knows of an object: its size in bytes, when it was written, and the store's ETag without quotes."""

    key: str
    size: int
    updated_at: datetime
    version: str


class Changed(Exception):
    """The object does not have the version that was expected."""


Expected: TypeAlias = str | None
"""The version that a change replaces, `ABSENT` if there must be no object, or None if it does not matter."""

ABSENT = ""


class ObjectStore(ABC):
    """Objects by key. Several threads call its methods, which block. A key that ends in `/` marks a directory.

    They raise `Unavailable` if the store does not answer or refuses the server, and `StorageFull` if it is full.
    """

    name: str
    """Its address, for people."""

    unconditional: frozenset[str] = frozenset()
    """The changes before which this process compares versions, under a lock, as the store itself does not."""

    @abstractmethod
    def check(self) -> None:
        """Find out whether the store can be used, and set `unconditional`. Raises `Unavailable` with the reason."""

    @abstractmethod
    def look(self, key: str) -> StoredObject | None:
        """Return what is known of an object, or None if there is none."""

    @abstractmethod
    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin with a prefix, page by page."""

    @abstractmethod
    def scan(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects directly below a prefix, and the longer prefixes, each with a `/` at its end."""

    @abstractmethod
    def read(self, key: str, start: int, stop: int | None, expected: Expected = None) -> tuple[bytes, StoredObject]:
        """Return a part of an object, which may be shorter. Raises `NotFoundError` and `Changed`."""

    @abstractmethod
    def write(self, key: str, chunks: Iterable[bytes], expected: Expected) -> StoredObject:
        """Store an object atomically. It holds no more than a few parts in memory. Raises `Changed`.

        If the source raises, the same error is raised here, and nothing has changed.
        """

    @abstractmethod
    def delete(self, key: str, expected: Expected) -> None:
        """Delete an object, if it exists. Raises `Changed`."""

    @abstractmethod
    def copy(self, source: StoredObject, key: str, expected: Expected) -> None:
        """Copy this version of an object within the store. Raises `Changed`."""

    def identity(self) -> str:
        """Return a random name, made when the store was first used. A store that has lost its objects gets another."""
        for _ in range(2):
            with suppress(NotFoundError):
                return self.read(_IDENTITY, 0, None)[0].decode()
            with suppress(Changed):  # another process was first
                self.write(_IDENTITY, [secrets.token_hex(8).encode()], ABSENT)
        return self.read(_IDENTITY, 0, None)[0].decode()

    def holds_any(self, prefix: str) -> bool:
        """Return whether a key begins with a prefix."""
        return next(iter(self.walk(prefix)), None) is not None

    def close(self) -> None:  # noqa: B027 - for subclasses
        """Close connections."""


class KeyLocks:
    """Locks for comparing a version and then changing the object. The key determines the lock."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(64)]

    def __call__(self, key: str) -> threading.Lock:
        """Return the lock of a key. It cannot be nested."""
        return self._locks[hash(key) % len(self._locks)]


class ObjectFileSystem(FileSystemBase):
    """The objects of a store. `prefix` is the logical path of their common prefix.

    A write or deletion of one version is atomic among all processes if the store compares versions itself
    (`ObjectStore.unconditional`), and otherwise among the threads of this one.
    """

    def __init__(self, store: ObjectStore, *, prefix: Path = "/") -> None:
        super().__init__([prefix])
        self.store = store
        self._prefix = prefix
        self.before_loss: Callable[[Iterable[StoredObject]], None] = lambda _: None
        """Called with objects, as they are, before a removal, move or copy deletes or replaces them."""

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def look(self, path: Path) -> EntryMeta:
        """Return the metadata of an entry; raises `NotFoundError`."""
        stored = self.store.look(self._key(path))
        if stored is None:
            raise _not_found(path)
        return _meta_of(path, stored)

    def entries(self, prefix: Path) -> Iterator[tuple[Path, EntryMeta]]:
        """Yield the entries that a prefix covers, in any order. It takes one request for a thousand entries."""
        start = self._prefix
        if prefix != self._prefix and covers(self._prefix, prefix):
            if not prefix.endswith("/"):
                with suppress(FileSystemError):
                    yield prefix, self.look(prefix)
            start = prefix if prefix.endswith("/") else prefix + "/"
        elif not covers(prefix, self._prefix):
            return
        for stored in self.store.walk(start.removeprefix(self._prefix)):
            path = self._prefix + stored.key
            if self._is_legal(path):
                yield path, _meta_of(path, stored)

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        return LiveIndex(self)

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        objects, deeper = self.store.scan(inside.removeprefix(self._prefix))
        if not objects and not deeper and inside != self._prefix:
            raise NotFoundError(f"there is no directory {inside[:-1]!r}", inside[:-1])
        directories = {path: _directory(path) for key in deeper if self._is_legal(path := self._prefix + key[:-1])}
        entries = {
            path: _meta_of(path, stored) for stored in objects if self._is_legal(path := self._prefix + stored.key)
        }
        return (directories | entries).values()

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        exists = inside == self._prefix or self.store.holds_any(self._key(inside))
        return _directory(inside[:-1] or "/") if exists else None

    def _read_binary_impl(self, path: Path) -> bytes:
        return self.store.read(self._key(path), 0, None)[0]

    def _open_impl(self, path: Path) -> BinaryIO:
        return open_object(self.store, self._key(path), path)[0]

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        return self._put(path, [data], None if overwrite else ABSENT)

    def _write_from_impl(self, path: Path, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        return self._put(path, source, None if overwrite else ABSENT)

    def _replace_impl(self, path: Path, source: Iterable[bytes], version: str) -> EntryMeta:
        return self._put(path, source, version)

    def _put(self, path: Path, source: Iterable[bytes], expected: Expected) -> EntryMeta:
        key, markers = self._key(path), list[str]()
        present = self.store.look(key)
        self._require(path, present, expected)
        if present is None:
            self._require_no_entry_above(path)
            markers = self._markers_of(path)
        try:
            written = self.store.write(key, source, expected)
        except Changed:
            raise _changed(path, expected) from None
        for marker in markers:  # empty directories give way to an entry
            self.store.delete(marker, None)
        return _meta_of(path, written)

    def _delete_impl(self, path: Path) -> None:
        if self.store.look(self._key(path)) is None:
            raise ConflictError(f"{path!r} was deleted by another caller", path)
        self.store.delete(self._key(path), None)

    def _delete_version_impl(self, path: Path, version: str) -> None:
        key = self._key(path)
        self._require(path, self.store.look(key), version)
        try:
            self.store.delete(key, version)
        except Changed:
            raise _changed(path, version) from None

    def _require(self, path: Path, present: StoredObject | None, expected: Expected) -> None:
        if expected == ABSENT:
            if present is not None:
                raise ConflictError(f"{path!r} exists", path)
        elif expected is not None:
            require_version(path, None if present is None else present.version, expected)

    def _require_no_entry_above(self, path: Path) -> None:
        """Raise if a parent of the path is an entry. If the nearest one has other entries, none of them is."""
        above = [inside for inside in directories_above(path) if inside != self._prefix and self._is_within(inside)]
        if above and self.store.holds_any(self._key(above[-1])):
            return
        for inside in above:
            if self.store.look(self._key(inside)[:-1]) is not None:
                raise ConflictError(f"{inside[:-1]!r} is an entry: nothing can be below it", path)

    def _markers_of(self, path: Path) -> list[str]:
        """Return the keys of the empty directories at and below a path; raise if there is an entry below it."""
        markers = []
        for stored in self.store.walk(self._key(path) + "/"):
            if not stored.key.endswith("/"):
                raise ConflictError(f"{path!r} is a directory: there are entries below it", path)
            markers.append(stored.key)
        return markers

    def _make_directory_impl(self, path: Path) -> None:
        self._require_no_entry_above(path)
        try:
            self.store.write(self._key(path) + "/", [], ABSENT)
        except Changed:
            raise ConflictError(f"{path!r} exists", path) from None

    def _remove_directory_impl(self, path: Path) -> None:
        key = self._key(path) + "/"
        keys = [stored.key for stored in islice(self.store.walk(key), 2)]
        if not keys:
            raise ConflictError(f"the directory {path!r} was removed by another caller", path)
        if keys != [key]:
            raise ConflictError(f"{path!r} is not empty", path)
        self.store.delete(key, None)

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        key, new = self._key(path), self._key(target)
        if self.store.holds_any(new + "/"):
            raise ConflictError(f"{target!r} is a directory", target)
        stored, replaced = self.store.look(key), self.store.look(new)
        if stored is None or not overwrite:
            self._require(target, replaced, ABSENT)
        if stored is None:
            self._move_over_impl(path, target)
        else:
            if replaced is not None:
                self.before_loss([replaced])
            self._move_object(stored, path, new, ABSENT if replaced is None else replaced.version)

    def _move_object(self, source: StoredObject, path: Path, new: str, expected: Expected) -> None:
        try:
            self.store.copy(source, new, expected)
        except (Changed, NotFoundError):
            raise ConflictError(f"{path!r} or its target was changed by another caller", path) from None
        with suppress(Changed):  # it was written again meanwhile, as if after the move
            self.store.delete(source.key, source.version)

    def _move_over_impl(self, path: Path, target: Path) -> None:
        """Copy everything, then delete it. Nothing is lost if that ends in the middle, but some is at both paths."""
        objects = self._objects_at(path)
        if not objects:
            raise ConflictError(f"{path!r} was removed by another caller", path)
        self._replace_all(objects, path, target)
        for stored in reversed(objects):
            with suppress(Changed):  # it was written again meanwhile, as if after the move
                self.store.delete(stored.key, stored.version)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        objects = self._objects_at(path)
        if not objects:
            raise ConflictError(f"{path!r} was removed by another caller", path)
        if not overwrite and self._objects_at(target):
            raise ConflictError(f"{target!r} exists", target)
        self._replace_all(objects, path, target, members=members)

    def _remove_tree_impl(self, path: Path) -> None:
        """Delete all objects, the directory's own last. It is not atomic; repeating it goes on."""
        objects = self._objects_at(path)
        if not objects:
            raise ConflictError(f"{path!r} was removed by another caller", path)
        self._require_shown(objects)
        self.before_loss(objects)
        for stored in reversed(objects):
            with suppress(Changed):  # it was written again meanwhile, as if after the removal
                self.store.delete(stored.key, stored.version)

    def _objects_at(self, path: Path) -> list[StoredObject]:
        """Return the object of an entry, or the objects of a directory and of everything below it."""
        key = self._key(path)
        entry = self.store.look(key)
        return [*([entry] if entry else []), *self.store.walk(key + "/")]

    def _replace_all(self, objects: list[StoredObject], path: Path, target: Path, *, members: bool = True) -> None:
        """Copy objects to another path, and delete what was there. If that fails, all of it is there again."""
        key, new = self._key(path), self._key(target)
        copies = {new + stored.key.removeprefix(key): stored for stored in objects if members or stored.key == key}
        for copy in copies:
            validate_path(self._prefix + copy.removesuffix("/"))  # it may be too long
        replaced = self._objects_at(target)
        self._require_shown(stored for stored in replaced if stored.key != new)
        self.before_loss(replaced)
        versions = {stored.key: stored.version for stored in replaced}
        with self._restored_on_failure_at(target, replaced):
            for stored in replaced:  # first, as not every store has an object at and below one name
                if stored.key not in copies and (copies or stored.key != new + "/"):
                    with suppress(Changed):  # it was written again meanwhile, as if after the change
                        self.store.delete(stored.key, stored.version)
            for copy, source in copies.items():
                self._replace_by_copy(source, copy, versions.get(copy, ABSENT), target)
            if not copies:
                self.store.write(new + "/", [], None)

    def _replace_by_copy(self, source: StoredObject, key: str, expected: str, target: Path) -> None:
        """Copy an object over one version of another. One that was written or deleted meanwhile stays, or is gone."""
        try:
            self.store.copy(source, key, expected)
        except NotFoundError:
            pass
        except Changed:
            present = self.store.look(key)
            if (ABSENT if present is None else present.version) != expected:
                raise ConflictError(f"{target!r} was changed by another caller", target) from None

    @contextmanager
    def _restored_on_failure_at(self, target: Path, replaced: Iterable[StoredObject]) -> Iterator[None]:
        """Keep copies of objects while the block replaces them, and restore them if it raises."""
        aside = f"{temporary_name()}/"
        with ExitStack() as copies:
            copies.callback(self._drop, aside)
            try:
                for stored in replaced:
                    self.store.copy(stored, aside + stored.key, None)
            except (Changed, NotFoundError):
                raise ConflictError(f"{target!r} was changed by another caller", target) from None
            try:
                yield
            except BaseException:
                keep = copies.pop_all()
                self._restore(target, aside)
                keep.close()
                raise

    def _drop(self, aside: str) -> None:
        with suppress(CfsError):  # they are not visible
            for stored in list(self.store.walk(aside)):
                self.store.delete(stored.key, None)

    def _restore(self, target: Path, aside: str) -> None:
        copies = {stored.key.removeprefix(aside): stored for stored in self.store.walk(aside)}
        self.before_loss(self._objects_at(target))
        for key, copy in copies.items():
            self.store.copy(copy, key, None)
        for stored in self._objects_at(target):
            if stored.key not in copies:
                self.store.delete(stored.key, None)

    def _require_shown(self, objects: Iterable[StoredObject]) -> None:
        """Raise if one of the objects is not an entry or a directory: whoever stored it may need it."""
        for stored in objects:
            if not self._is_legal(self._prefix + stored.key.removesuffix("/")):
                path = self._prefix + stored.key.rpartition("/")[0]
                raise ConflictError(f"{path!r} has something in it that is not shown, so it stays", path)

    def _key(self, path: Path) -> str:
        """Return the key of a path; raise `InvalidPathError` for reserved names."""
        if TEMPORARY in path and any(part.startswith(TEMPORARY) for part in path.split("/")):
            raise InvalidPathError(f"{path!r} is no path: {TEMPORARY!r} begins the names of unfinished files", path)
        return path.removeprefix(self._prefix)

    def _is_legal(self, path: str) -> bool:
        """Return whether a key of the store is one of ours; other programs may store others."""
        try:
            self._key(validate_path(path))
        except InvalidPathError:
            return False
        return True


def open_object(store: ObjectStore, key: str, path: Path) -> tuple[BinaryIO, str]:
    """Open an object for reading, seekable; return it with its version. Its errors name the path.

    Raises `NotFoundError`. Reading raises `ConflictError` if the object is replaced or deleted before its end is read.
    """
    first, stored = store.read(key, 0, _FIRST_BYTES)
    if len(first) >= stored.size:
        return BytesIO(first), stored.version
    reader = BufferedReader(_ObjectReader(store, path, stored, first), _BLOCK_BYTES)
    return cast("BinaryIO", reader), stored.version


class _ObjectReader(RawIOBase):
    """An object that is read in blocks. All of them are of the version that was opened, or reading fails."""

    def __init__(self, store: ObjectStore, path: Path, stored: StoredObject, first: bytes) -> None:
        self._store = store
        self._path = path
        self._found = stored
        self._first = first
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Change the position."""
        self._at = max(0, offset + (0, self._at, self._found.size)[whence])
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes. Raises `ConflictError` if the entry was replaced or deleted."""
        stop = min(self._at + len(buffer), self._found.size)
        data = self._first[self._at : stop]
        if not data and self._at < stop:
            try:
                data, _ = self._store.read(self._found.key, self._at, stop, self._found.version)
            except (Changed, NotFoundError):
                raise ConflictError(f"{self._path!r} was replaced while it was read, or deleted", self._path) from None
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _meta_of(path: Path, stored: StoredObject) -> EntryMeta:
    return VersionedEntryMeta(path=path, size=stored.size, updated_at=stored.updated_at, version=stored.version)


def _directory(path: Path) -> DirectoryMeta:
    return DirectoryMeta(path=path, size=0, updated_at=EPOCH, directory=True)


def _not_found(path: Path) -> NotFoundError:
    return NotFoundError(f"there is no entry {path!r}", path)


def _changed(path: Path, expected: Expected) -> ConflictError:
    if expected:
        return VersionError(f"{path!r} was changed or deleted by another caller", path)
    return ConflictError(f"{path!r} exists", path)
