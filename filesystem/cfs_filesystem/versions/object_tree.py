"""The files of a workspace in an object store.

An object is a file, and a prefix of keys is a folder, which ends with its last file unless an empty object whose key
ends in `/` marks it. There are no links and no permissions: files count as 0644 and folders as 0755. The stamp of a
file is the version of its object, so each change names the version that it replaces.
"""

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import BinaryIO, Protocol, Self

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem._objects import ABSENT, Changed, ObjectStore, StoredObject, open_object
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem._types import EPOCH
from cfs_filesystem.versions.model import Entry, EntryType
from cfs_filesystem.versions.tree import Contents, EntryChangedError, RestoredFiles, TreeStatus, parents

_CHUNK = 1 << 20
_FEW = 4
"""Up to so many paths are looked at one by one. For more, the workspace is listed."""
_FILE_MODE = 0o644
_FOLDER = TreeStatus(EntryType.FOLDER, 0o755)


class _Objects(Protocol):
    """What answers questions about objects: a store, or a listing of it."""

    def look(self, key: str) -> StoredObject | None: ...

    def walk(self, prefix: str) -> Iterator[StoredObject]: ...

    def holds_any(self, prefix: str) -> bool: ...


class _Listing:
    """The objects of a store as they were when they were listed."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self._objects = {stored.key: stored for stored in objects}
        self._keys = sorted(self._objects)

    def look(self, key: str) -> StoredObject | None:
        return self._objects.get(key)

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                return
            yield self._objects[self._keys[index]]

    def holds_any(self, prefix: str) -> bool:
        return next(self.walk(prefix), None) is not None


class ObjectTree:
    """A `VersionedTree` whose objects have keys that begin with `prefix`, which ends in `/`."""

    compares = True

    def __init__(self, store: ObjectStore, prefix: str, seen: _Objects | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._seen: _Objects = seen or store

    def view(self, paths: Collection[str]) -> "ObjectTree":
        """See `VersionedTree`."""
        if len(paths) <= _FEW:
            return self
        return ObjectTree(self._store, self._prefix, _Listing(self._store.walk(self._prefix)))

    def status(self, path: str) -> TreeStatus | None:
        """See `VersionedTree`."""
        stored = self._seen.look(self._prefix + path) if path else None
        if stored is not None:
            return _status(stored)
        return _FOLDER if self._seen.holds_any(self._inside(path)) else None

    def mode(self, path: str) -> int:  # noqa: ARG002
        """See `VersionedTree`."""
        return _FILE_MODE

    def above(self, path: str) -> dict[str, TreeStatus]:
        """See `VersionedTree`. A folder that is there is in folders that are there."""
        folders = parents(path)
        while folders and not self._seen.holds_any(self._inside(folders[-1])):
            folders.pop()
        return dict.fromkeys(folders, _FOLDER)

    def above_written(self, path: str) -> dict[str, TreeStatus]:
        """See `VersionedTree`. The bucket is not asked: all folders above an object are there."""
        return dict.fromkeys(parents(path), _FOLDER)

    def present(self, path: str = "", skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, TreeStatus]]:
        """See `VersionedTree`."""
        below, yielded = f"{path}/" if path else "", set[str]()
        if path and (stored := self._seen.look(self._prefix + path)) is not None:
            yielded.add(path)
            yield path, _status(stored)
        for stored in self._seen.walk(self._inside(path)):
            name = stored.key.removeprefix(self._prefix)
            if not _is_path(name) or not skip.isdisjoint(name.removeprefix(below).split("/")[:-1]):
                continue
            for folder in parents(name):
                if folder not in yielded and f"{folder}/".startswith(below):
                    yielded.add(folder)
                    yield folder, _FOLDER
            if not name.endswith("/"):
                yielded.add(name)  # what is below it, which other programs may store, does not make it a folder
                yield name, _status(stored)

    def open(self, path: str) -> tuple[BinaryIO, str]:
        """See `VersionedTree`."""
        try:
            return open_object(self._store, self._prefix + path, path)
        except NotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def open_before(self, path: str) -> None:
        """See `VersionedTree`. The versions are nearer than the bucket."""

    def restore(
        self, entries: Mapping[str, Entry | None], contents: Contents, replaced: Mapping[str, Entry | None]
    ) -> RestoredFiles:
        """See `VersionedTree`. A folder is marked if it is empty. Links are put nowhere: their paths are left."""
        refused, stamps = list[str](), dict[str, str]()
        deepest_first = sorted(entries, key=lambda path: path.count("/"), reverse=True)
        for path in deepest_first:
            entry, before = entries[path], replaced.get(path)
            if entry is not None and entry.type is EntryType.LINK:
                refused.append(path)
            elif before is not None and before.type is EntryType.FOLDER:
                if (entry is None or entry.type is EntryType.FILE) and not self._unmark(path):
                    refused.append(path)
            elif before is not None and (entry is None or entry.type is EntryType.FOLDER):
                if not before.stamp:
                    raise EntryChangedError(path)
                with _compared(path):
                    self._store.delete(self._prefix + path, before.stamp)
        for path in reversed(deepest_first):
            entry, before = entries[path], replaced.get(path)
            if entry is not None and entry.type is EntryType.FILE and path not in refused:
                expected = before.stamp if before is not None and before.type is EntryType.FILE else ABSENT
                with contents(entry) as source, _compared(path):
                    chunks = iter(partial(source.read, _CHUNK), b"")
                    stamps[path] = self._store.write(self._prefix + path, chunks, expected).version
        for path in deepest_first:
            entry = entries[path]
            if entry is not None and entry.type is EntryType.FOLDER and not self._store.holds_any(self._inside(path)):
                self._mark(path)
        return RestoredFiles(stamps, refused)

    def _unmark(self, path: str) -> bool:
        """Delete the mark of a folder. Returns False, and deletes nothing, if something else is in it."""
        mark = self._inside(path)
        keys = [stored.key for stored in islice(self._store.walk(mark), 2)]
        if keys == [mark]:
            self._store.delete(mark, None)
        return keys in ([], [mark])

    def _mark(self, path: str) -> None:
        with suppress(Changed):  # it is marked
            self._store.write(self._inside(path), [], ABSENT)

    def room(self) -> None:
        """See `VersionedTree`."""

    def copy(self, present: Iterable[tuple[str, TreeStatus]], target: Self) -> dict[str, str]:
        """See `VersionedTree`. Raises `FileExistsError` if a program has made a file where one is copied to."""
        stamps: dict[str, str] = {}
        folders, used = list[str](), set[str]()
        for path, status in present:
            used.update(parents(path))
            if status.type is EntryType.FOLDER:
                folders.append(path)
            else:
                stamps[path] = self._copy(path, status.stamp, target)
        for path in folders:
            if path not in used:
                target._mark(path)
        return {path: stamp for path, stamp in stamps.items() if stamp}

    def _copy(self, path: str, stamp: str, target: Self) -> str:
        """Copy an object as it is now. Return its stamp, or an empty one if it is gone."""
        key = self._prefix + path
        while stamp:
            try:
                self._store.copy(StoredObject(key, 0, EPOCH, stamp), target._prefix + path, ABSENT)
            except (Changed, NotFoundError):
                now = self._store.look(key)
                if now is not None and now.version == stamp:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
                stamp = "" if now is None else now.version
            else:
                break
        return stamp

    def _inside(self, path: str) -> str:
        return f"{self._prefix}{path}/" if path else self._prefix


class ObjectTrees:
    """`VersionedTrees` that are prefixes in a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def tree(self, workspace: str) -> ObjectTree:
        """See `VersionedTrees`."""
        return ObjectTree(self._store, f"{workspace}/")

    def vacate(self, workspace: str) -> bool:
        """See `VersionedTrees`. A workspace without a file is an empty one."""
        return self.tree(workspace)._unmark("")  # noqa: SLF001

    @contextmanager
    def new(self, workspace: str, mode: int) -> Iterator[tuple[ObjectTree, int]]:  # noqa: ARG002
        """See `VersionedTrees`. There is no mark, and the files become visible one by one."""
        yield self.tree(workspace), 0

    def remove(self, workspace: str, mark: int, is_known: Callable[[str, TreeStatus], bool]) -> bool:  # noqa: ARG002
        """See `VersionedTrees`."""
        prefix, others = f"{workspace}/", False
        for stored in list(self._store.walk(prefix)):
            if not (stored.key.endswith("/") or is_known(stored.key.removeprefix(prefix), _status(stored))):
                others = True
                continue
            try:
                self._store.delete(stored.key, stored.version)
            except Changed:
                others = True
        return not others


@contextmanager
def _compared(path: str) -> Iterator[None]:
    """Raise `EntryChangedError` if the store refuses a change because of its condition."""
    try:
        yield
    except Changed:
        raise EntryChangedError(path) from None


def _status(stored: StoredObject) -> TreeStatus:
    return TreeStatus(EntryType.FILE, _FILE_MODE, stored.size, stored.version)


def _is_path(name: str) -> bool:
    """Return whether the end of a key is a path that can be recorded; other programs may store others."""
    return all(
        part not in ("", ".", "..") and not part.startswith(TEMPORARY) for part in name.removesuffix("/").split("/")
    )
