"""A folder on disk beside its versions: finds what changed there, and records it.

Regular files, folders and symbolic links are recorded, with their permissions, whatever bytes their names have; so are
nested repositories. Pipes, sockets and devices are not, nor is what is below a mount point. Folders of the names in
`skip`, which programs make again, are not looked into.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from io import BytesIO
from typing import BinaryIO

from cfs_filesystem._disk import stamp_of
from cfs_filesystem._errors import FileSystemError
from cfs_filesystem._openat import TEMPORARY, DirectoryTree
from cfs_filesystem.versions.copying import copy_folder
from cfs_filesystem.versions.merging import Merge, path_beside
from cfs_filesystem.versions.model import (
    OUTSIDE,
    Author,
    Content,
    DamagedVersionError,
    Entry,
    EntryType,
    Kind,
    State,
)
from cfs_filesystem.versions.restoring import restore
from cfs_filesystem.versions.store import VersionStore

_MEANWHILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR})
"""Errors of a path at which a program has removed something, or put something else, since it was looked at."""
SKIPPED = frozenset({"node_modules", "__pycache__", ".venv"})


class FolderHistory:
    """The folder of one workspace, at `start` below the root of a tree, and its versions in a store."""

    def __init__(
        self,
        store: VersionStore,
        workspace: str,
        tree: DirectoryTree,
        start: Iterable[str] = (),
        skip: frozenset[str] = SKIPPED,
    ) -> None:
        self._store = store
        self._workspace = workspace
        self._tree = tree
        self._start = tuple(start)
        self._skip = skip

    def sync(
        self,
        paths: Iterable[str] = ("",),
        author: Author = OUTSIDE,
        kind: Kind = Kind.OUTSIDE,
        sources: Mapping[str, Entry] | None = None,
    ) -> int | None:
        """Record everything at and below paths that differs from the newest version, as one change.

        The folders above a path are recorded with it, if they have no version. Return the number of the change, or None
        if nothing differs. A file whose stamp is the recorded one is not read. `sources` has entries that moved or were
        copied to new paths, so that they need not be read either.
        """
        states: dict[str, State | None] = {}
        stamps: dict[str, str] = {}
        with self._store.holding():
            for path in dict.fromkeys(paths):
                recorded = self._store.tree_at(self._workspace, None, path)
                present = {**self._above(path), **dict(self._present(path, self._skip))}
                for name, status in present.items():
                    newest = recorded.get(name) or self._store.at(self._workspace, name)
                    self._compare(name, status, newest, sources or {}, states, stamps)
                states |= {name: None for name in recorded if name not in present and not self._is_skipped(name, path)}
            if stamps:
                self._store.restamp(self._workspace, stamps)
            return self._store.record(self._workspace, author, kind, states) if states else None

    def _compare(
        self,
        path: str,
        status: os.stat_result,
        known: Entry | None,
        sources: Mapping[str, Entry],
        states: dict[str, State | None],
        stamps: dict[str, str],
    ) -> None:
        stamp = "" if stat.S_ISDIR(status.st_mode) else stamp_of(status)
        entry_type, mode = _type_of(status), stat.S_IMODE(status.st_mode)
        same = known is not None and known.type is entry_type and known.mode == mode
        if same and known is not None and known.stamp == stamp:
            return
        source = sources.get(path)
        if entry_type is EntryType.FOLDER:
            content = None
        elif source is not None and (source.type, source.size) == (entry_type, status.st_size):
            content = self._store.content_of(source)
        else:
            try:
                content, stamp = self._content(path, entry_type, known)
            except OSError as error:
                if error.errno in _MEANWHILE:
                    return  # the next look sees what is there then
                raise
        if same and known is not None and (content is None or content.digest.hex() == known.digest):
            stamps[path] = stamp
        else:
            states[path] = State(entry_type, mode, content, stamp)

    def _content(self, path: str, entry_type: EntryType, known: Entry | None) -> tuple[Content, str]:
        parts = self._parts(path)
        if entry_type is EntryType.LINK:
            with self._tree.parent(parts) as (directory, name):
                stamp = stamp_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
                target = os.fsencode(os.readlink(name, dir_fd=directory))
            return self._store.keep(self._workspace, BytesIO(target)), stamp
        with closing(os.fdopen(self._tree.open(parts), "rb")) as file:
            stamp = stamp_of(os.fstat(file.fileno()))  # before it is read: a change meanwhile is seen next time
            return self._store.keep(self._workspace, file, known), stamp

    def restore(self, entries: Mapping[str, Entry | None], author: Author, *, durable: bool = False) -> list[str]:
        """Put entries of the past back, by path, and record this as one change; see `restoring.restore`.

        What programs changed there is recorded before it is overwritten. What is there already, because an interrupted
        restoration has put it there, belongs to this change.
        """
        self.sync(path for path, entry in entries.items() if not self._has(path, entry))
        try:
            return restore(self._tree, self._start, self._store, self._workspace, entries, durable=durable)
        finally:  # also what was put back before the disk refused
            self.sync(entries, author, Kind.REWIND)

    def merge(self, merge: Merge, before: Mapping[str, Entry], source: str, by: Author, *, durable: bool) -> list[str]:
        """Carry out a merge of what `before` says, and record it as one change. Done again, it changes nothing.

        A path that a program has changed meanwhile stays as it is, and what would be there comes beside it, with the
        name of the source. Return such paths, and folders that cannot be removed. Raises `OSError` if the disk refuses,
        and before anything is changed if it has no room for all.
        """
        with self._store.holding():
            for path, text in merge.texts.items():
                self._store.keep(self._workspace, BytesIO(text), before.get(path))
            entries, left = dict(merge.entries), list[str]()
            for path, entry in merge.entries.items():
                if not (self._has(path, before.get(path)) or self._has(path, entry)):
                    del entries[path]
                    left.append(path)
                    if entry is not None:
                        entries[path_beside(path, source)] = entry
            self._require_room(entries)
            try:
                left += restore(self._tree, self._start, self._store, self._workspace, entries, durable=durable)
            finally:
                self.sync(entries, by, Kind.MERGE)
        return left

    def _require_room(self, entries: Mapping[str, Entry | None]) -> None:
        """Raise `OSError` (ENOSPC) if the disk has no room for the entries that are not there yet."""
        size = sum(entry.size for path, entry in entries.items() if entry is not None and not self._has(path, entry))
        with self._tree.directory(self._start) as directory:
            status = os.fstatvfs(directory)
        if status.f_bavail * status.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _has(self, path: str, entry: Entry | None) -> bool:
        """Return whether what is at a path is what an entry says."""
        status = self.status(path)
        if status is None or entry is None:
            return status is None and entry is None
        if _type_of(status) is not entry.type:
            return False
        if entry.type is EntryType.FOLDER:
            return True
        if entry.stamp and entry.stamp == stamp_of(status):
            return entry.mode == stat.S_IMODE(status.st_mode)
        if entry.type is EntryType.LINK:
            with self._tree.parent(self._parts(path)) as (directory, name):
                target = os.fsencode(os.readlink(name, dir_fd=directory))
            return hashlib.sha256(target).hexdigest() == entry.digest
        if (entry.size, entry.mode) != (status.st_size, stat.S_IMODE(status.st_mode)):
            return False
        with closing(os.fdopen(self._tree.open(self._parts(path)), "rb")) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.digest

    def fill(self) -> None:
        """Create everything that the newest version has in the folder, which is empty, and compare it with that.

        Raises `DamagedVersionError` if it differs, or a path is none, and `OSError` if the disk refuses.
        """
        entries = self._store.tree_at(self._workspace)
        if any(part in ("", ".", "..") for path in entries for part in path.split("/")):
            raise DamagedVersionError(f"a path in the versions of {self._workspace!r} leads out of it")
        restore(self._tree, self._start, self._store, self._workspace, entries)
        if self.sync() is not None:
            raise DamagedVersionError(f"the files of {self._workspace!r} differ from their newest version")

    def present(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all files, folders and links, each folder before its contents, also those of the names in `skip`."""
        return self._present("", frozenset())

    def copy(
        self,
        present: Iterable[tuple[str, os.stat_result]],
        target: DirectoryTree,
        new: Sequence[str],
        *,
        durable: bool = False,
    ) -> dict[str, Entry]:
        """Copy what is `present` to the folder `new` of a tree; see `copying.copy_folder`.

        Return the newest versions of the files that were copied as they are recorded, by path.
        """
        stamps = copy_folder(self._tree, self._start, present, target, new, durable=durable)
        recorded = self._store.tree_at(self._workspace)
        return {
            path: recorded[path] for path, stamp in stamps.items() if path in recorded and stamp == recorded[path].stamp
        }

    def is_current(self, path: str) -> bool:
        """Return whether what is at a path is what its newest version says."""
        status, recorded = self.status(path), self._store.at(self._workspace, path)
        if status is None or recorded is None:
            return status is None and recorded is None
        if stat.S_ISDIR(status.st_mode):
            return recorded.type is EntryType.FOLDER
        return recorded.stamp == stamp_of(status) and recorded.mode == stat.S_IMODE(status.st_mode)

    def missing_above(self, path: str) -> dict[str, State | None]:
        """Return the folders above a path that have no version, as they are now."""
        states: dict[str, State | None] = {}
        for parent, status in self._above(path).items():
            recorded = self._store.at(self._workspace, parent)
            if recorded is None or recorded.type is not EntryType.FOLDER:
                states[parent] = State(EntryType.FOLDER, stat.S_IMODE(status.st_mode))
        return states

    def open(self, path: str) -> BinaryIO | None:
        """Open a file for reading; None if it cannot be."""
        try:
            return os.fdopen(self._tree.open(self._parts(path)), "rb")
        except OSError:
            return None

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of what is at a path, without following links; None if nothing is there."""
        try:
            return self._tree.stat(self._parts(path))
        except OSError as error:
            if error.errno in _MEANWHILE:
                return None
            raise

    def _above(self, path: str) -> dict[str, os.stat_result]:
        parts = path.split("/")[:-1]
        parents = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        statuses = {parent: self.status(parent) for parent in parents}
        return {
            name: status for name, status in statuses.items() if status is not None and stat.S_ISDIR(status.st_mode)
        }

    def _present(self, path: str, skip: frozenset[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield what is at and below a path. The workspace itself is left out."""
        try:
            status = self._tree.stat(self._parts(path) or ["."])
        except (OSError, FileSystemError):
            return
        if path and _is_recorded(status):
            yield path, status
        waiting = [path] if stat.S_ISDIR(status.st_mode) else []
        while waiting:
            folder = waiting.pop()
            with suppress(OSError, FileSystemError), self._tree.directory(self._parts(folder)) as directory:
                device = os.fstat(directory).st_dev
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.name.startswith(TEMPORARY):
                            continue
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            if status.st_dev != device or not _is_recorded(status):
                                continue
                            name = f"{folder}/{entry.name}" if folder else entry.name
                            if stat.S_ISDIR(status.st_mode):
                                if entry.name in skip:
                                    continue
                                waiting.append(name)
                            yield name, status

    def _is_skipped(self, path: str, below: str) -> bool:
        """Return whether a walk that begins at `below` does not reach a path."""
        return not self._skip.isdisjoint(path[len(below) :].split("/"))

    def _parts(self, path: str) -> list[str]:
        return [*self._start, *(path.split("/") if path else ())]


def folders_in(tree: DirectoryTree) -> dict[str, int]:
    """Return the names of the folders in a directory, with their permissions. Links are none."""
    with tree.directory(()) as directory, os.scandir(directory) as entries:
        return {
            entry.name: stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(TEMPORARY)
        }


def _is_recorded(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)


def _type_of(status: os.stat_result) -> EntryType:
    if stat.S_ISDIR(status.st_mode):
        return EntryType.FOLDER
    return EntryType.LINK if stat.S_ISLNK(status.st_mode) else EntryType.FILE
