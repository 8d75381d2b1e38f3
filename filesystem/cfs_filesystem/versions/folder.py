"""The files of a workspace beside its versions: finds what changed there, and records it.

Files, folders and symbolic links are recorded, as far as the tree has them; so are nested repositories. Folders of the
names in `skip`, which programs make again, are not looked into.
"""

import errno
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import BinaryIO

from cfs_filesystem._errors import ConflictError
from cfs_filesystem.versions.folder_tree import MEANWHILE
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
    VersionsUnavailableError,
)
from cfs_filesystem.versions.store import VersionStore, entries_at
from cfs_filesystem.versions.tree import EntryChangedError, TreeStatus, VersionedTree, parents

_CHUNK = 1 << 20
ATTEMPTS = 10
"""How often a change begins again because a program has changed the same files meanwhile."""
SKIPPED = frozenset({"node_modules", "__pycache__", ".venv"})


class FolderHistory:
    """The files of one workspace, and its versions in a store."""

    def __init__(
        self, store: VersionStore, workspace: str, tree: VersionedTree, skip: frozenset[str] = SKIPPED
    ) -> None:
        self._store = store
        self._workspace = workspace
        self._tree = tree
        self._skip = skip

    def sync(
        self,
        paths: Iterable[str] = ("",),
        author: Author = OUTSIDE,
        kind: Kind = Kind.OUTSIDE,
        sources: Mapping[str, Entry] | None = None,
        put: Mapping[str, Entry] | None = None,
    ) -> int | None:
        """Record everything at and below paths that differs from the newest version, as one change.

        The folders above a path are recorded with it, if they have no version, or are gone. Return the number of the
        change, or None if nothing differs. A file whose stamp is the recorded one is not read. `sources` has entries
        that moved or were copied to new paths, and `put` those that were just put there, with their stamps, so that
        they need not be read either.
        """
        states: dict[str, State | None] = {}
        stamps: dict[str, str] = {}
        paths = list(dict.fromkeys(paths))
        tree = self._tree.view(paths)
        with self._store.holding():
            newest_at = entries_at(self._store, self._workspace, paths)
            for path in paths:
                above = tree.above(path)
                start = self._outermost_gone(path, above)
                entry = newest_at[path] if start == path else None
                if entry is not None and entry.type is not EntryType.FOLDER:  # nothing is below it
                    recorded = {path: entry}
                else:
                    recorded = self._store.tree_at(self._workspace, None, start)
                present = {**above, **dict(tree.present(start, self._skip))}
                for name, status in present.items():
                    newest = recorded.get(name) or self._store.at(self._workspace, name)
                    source = self._source(status, (sources or {}).get(name), (put or {}).get(name))
                    self._compare(name, status, newest, source, states, stamps)
                gone = [name for name in recorded if name not in present and not self.is_skipped(name, start)]
                states |= dict.fromkeys(gone)
            if stamps:
                self._store.restamp(self._workspace, stamps)
            return self._store.record(self._workspace, author, kind, states) if states else None

    def _outermost_gone(self, path: str, above: Mapping[str, TreeStatus]) -> str:
        """Return the outermost folder above a path that has a version and is gone, or else the path."""
        gone = (parent for parent in parents(path) if parent not in above)
        return next((parent for parent in gone if self._store.at(self._workspace, parent) is not None), path)

    def _compare(
        self,
        path: str,
        status: TreeStatus,
        known: Entry | None,
        source: Entry | None,
        states: dict[str, State | None],
        stamps: dict[str, str],
    ) -> None:
        stamp = status.stamp
        same = known is not None and known.type is status.type and known.mode == status.mode
        if same and known is not None and known.stamp == stamp:
            return
        if status.type is EntryType.FOLDER:
            content = None
        elif source is not None:
            content = self._store.content_of(source)
        else:
            try:
                content, stamp = self._content(path, known)
            except ConflictError:
                return  # the next look sees what has replaced it
            except OSError as error:
                if error.errno in MEANWHILE:
                    return  # the next look sees what is there then
                raise
        if same and known is not None and (content is None or content.digest.hex() == known.digest):
            stamps[path] = stamp
        else:
            states[path] = State(status.type, status.mode, content, stamp)

    def _source(self, status: TreeStatus, moved: Entry | None, put: Entry | None) -> Entry | None:
        """Return the one of two entries whose content a file or link still has."""
        if put is not None and put.stamp == status.stamp:
            return put
        if moved is None or (self._tree.compares and moved.stamp != status.stamp):
            return None
        return moved if (moved.type, moved.size) == (status.type, status.size) else None

    def _content(self, path: str, known: Entry | None) -> tuple[Content, str]:
        file, stamp = self._tree.open(path)  # a change while it is read is seen next time
        with file:
            return self._store.keep(self._workspace, file, known), stamp

    def restore(self, entries: Mapping[str, Entry | None], author: Author) -> list[str]:
        """Put entries of the past back, by path, and record this as one change; see `VersionedTree.restore`.

        What programs changed there is recorded before it is overwritten. What is there already, because an interrupted
        restoration has put it there, belongs to this change.
        """
        put: dict[str, Entry] = {}
        with self._store.holding():
            try:
                for _ in range(ATTEMPTS):
                    missing = self._missing(entries)
                    self.sync(missing)
                    with suppress(EntryChangedError):  # what a program has just put there is recorded first
                        return self._put(entries, missing, put)
                raise VersionsUnavailableError("a program changes the files all the time")
            finally:  # also what was put back before the disk refused
                self.sync(entries, author, Kind.REWIND, put=put)

    def merge(self, merge: Merge, before: Mapping[str, Entry], source: str, by: Author) -> list[str]:
        """Carry out a merge of what `before` says, and record it as one change. Done again, it changes nothing.

        A path that a program has changed meanwhile stays as it is, and what would be there comes beside it, with the
        name of the source. Return such paths, and folders that cannot be removed. Raises `OSError` if the disk refuses,
        and before anything is changed if it has no room for all.
        """
        with self._store.holding():
            for path, text in merge.texts.items():
                self._store.keep(self._workspace, BytesIO(text), before.get(path))
            entries: Mapping[str, Entry | None] = {}
            put: dict[str, Entry] = {}
            try:
                for _ in range(ATTEMPTS):
                    entries, left = self._merged(merge, before, source)
                    self._require_room(entries)
                    with suppress(EntryChangedError):
                        return left + self._put(entries, self._missing(entries), put)
                    self.sync(self._missing(entries))
                raise VersionsUnavailableError("a program changes the files all the time")
            finally:
                self.sync(entries, by, Kind.MERGE, put=put)

    def _merged(
        self, merge: Merge, before: Mapping[str, Entry], source: str
    ) -> tuple[dict[str, Entry | None], list[str]]:
        """Return what a merge puts where, and the paths that a program has changed since `before`."""
        entries, left, tree = dict(merge.entries), list[str](), self._tree.view(merge.entries)
        for path, entry in merge.entries.items():
            if not (self._has(tree, path, before.get(path)) or self._has(tree, path, entry)):
                del entries[path]
                left.append(path)
                if entry is not None:
                    entries[path_beside(path, source)] = entry
        return entries, left

    def _missing(self, entries: Mapping[str, Entry | None]) -> set[str]:
        """Return the paths at which there is something else than an entry says."""
        tree = self._tree.view(entries)
        return {path for path, entry in entries.items() if not self._has(tree, path, entry)}

    def _put(self, entries: Mapping[str, Entry | None], missing: Collection[str], put: dict[str, Entry]) -> list[str]:
        """Put the missing entries where they belong, with the permissions of all folders. Note the files in `put`.

        Returns the paths that had to be left.
        """
        chosen = {
            path: entry
            for path, entry in entries.items()
            if path in missing or (entry is not None and entry.type is EntryType.FOLDER)
        }
        replaced = entries_at(self._store, self._workspace, chosen)
        self._store.checkpoint()  # a power loss may cut off what is put there, until all of it is flushed
        restored = self._tree.restore(chosen, partial(self._store.open, self._workspace), replaced)
        for path, stamp in restored.stamps.items():
            if (entry := chosen[path]) is not None:
                put[path] = replace(entry, stamp=stamp)
        return restored.left

    def _require_room(self, entries: Mapping[str, Entry | None]) -> None:
        """Raise `OSError` (ENOSPC) if the disk has no room for the entries that are not there yet."""
        room = self._tree.room()
        missing = self._missing(entries) if room is not None else ()
        if room is not None and room < sum(entry.size for path in missing if (entry := entries[path]) is not None):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _has(self, tree: VersionedTree, path: str, entry: Entry | None) -> bool:
        """Return whether what is at a path is what an entry says."""
        status = tree.status(path)
        if status is None or entry is None:
            return status is None and entry is None
        if status.type is not entry.type:
            return False
        if entry.type is EntryType.FOLDER:
            return True
        if entry.stamp and entry.stamp == status.stamp:
            return entry.mode == status.mode
        if entry.type is EntryType.FILE and (entry.size, entry.mode) != (status.size, status.mode):
            return False
        return self.digest(path) == entry.digest

    def digest(self, path: str) -> str:
        """Return the digest of a file, or of the target of a link; an empty text if it is removed or replaced."""
        digest = hashlib.sha256()
        try:
            with self._tree.open(path)[0] as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except (ConflictError, FileNotFoundError):
            return ""
        return digest.hexdigest()

    def fill(self) -> None:
        """Create everything that the newest version has in the folder, which is empty, and compare it with that.

        Raises `DamagedVersionError` if it differs, or a path is none, and `OSError` if the disk refuses.
        """
        entries = self._store.tree_at(self._workspace)
        if any(part in ("", ".", "..") for path in entries for part in path.split("/")):
            raise DamagedVersionError(f"a path in the versions of {self._workspace!r} leads out of it")
        self._tree.restore(entries, partial(self._store.open, self._workspace), {})
        if self.sync() is not None:
            raise DamagedVersionError(f"the files of {self._workspace!r} differ from their newest version")

    def present(self) -> Iterator[tuple[str, TreeStatus]]:
        """Yield all files, folders and links, each folder before its contents, also those of the names in `skip`."""
        return self._tree.present()

    def copy(self, present: Iterable[tuple[str, TreeStatus]], target: VersionedTree) -> dict[str, Entry]:
        """Copy what is `present` to another tree, which has only the workspace itself.

        Return the newest versions of the files that were copied as they are recorded, by path.
        """
        stamps = self._tree.copy(present, target)
        recorded = self._store.tree_at(self._workspace)
        return {
            path: recorded[path] for path, stamp in stamps.items() if path in recorded and stamp == recorded[path].stamp
        }

    @property
    def compares(self) -> bool:
        """Whether a change can name the stamp of what it replaces; see `VersionedTree`."""
        return self._tree.compares

    def status(self) -> TreeStatus | None:
        """Return the status of the workspace itself; None if it is not there.

        Without a file it is still there in a bucket, as an empty folder is on a disk, unless its past is gone as well.
        """
        status = self._tree.status("")
        if status is None and self._tree.compares and self._store.last(self._workspace):
            return TreeStatus(EntryType.FOLDER, 0o755)
        return status

    def mode(self, path: str) -> int:
        """Return the permissions of a file that was just written."""
        return self._tree.mode(path)

    def open_before(self, path: str) -> BinaryIO | None:
        """Open a file that is replaced soon; see `VersionedTree`."""
        return self._tree.open_before(path)

    def is_current(self, path: str) -> bool:
        """Return whether what is at a path is what its newest version says."""
        status, recorded = self._tree.status(path), self._store.at(self._workspace, path)
        if status is None or recorded is None:
            return status is None and recorded is None
        if status.type is EntryType.FOLDER:
            return recorded.type is EntryType.FOLDER
        return recorded.stamp == status.stamp and recorded.mode == status.mode

    def is_absent(self, path: str) -> bool:
        """Return whether nothing is at a path."""
        return self._tree.status(path) is None

    def recorded_stamp(self, path: str) -> str:
        """Return the stamp of the newest version of a file; an empty text if there is none."""
        recorded = self._store.at(self._workspace, path)
        return recorded.stamp if recorded is not None and recorded.type is EntryType.FILE else ""

    def above_written(self, path: str) -> dict[str, State]:
        """Return the folders above a file that was just written."""
        return {
            parent: State(EntryType.FOLDER, status.mode) for parent, status in self._tree.above_written(path).items()
        }

    def missing_above(self, path: str) -> dict[str, State | None]:
        """Return the folders above a path that have no version, as they are now."""
        recorded = {parent: self._store.at(self._workspace, parent) for parent in parents(path)}
        missing = [name for name, entry in recorded.items() if entry is None or entry.type is not EntryType.FOLDER]
        above = self._tree.above(path) if missing else {}
        return {name: State(EntryType.FOLDER, above[name].mode) for name in missing if name in above}

    def gone_above(self, path: str) -> dict[str, State | None]:
        """Return the folders above a path that have a version, and are gone with what was deleted there."""
        above = self._tree.above(path)
        gone = [parent for parent in parents(path) if parent not in above]
        return {parent: None for parent in gone if self._store.at(self._workspace, parent) is not None}

    def is_skipped(self, path: str, below: str = "") -> bool:
        """Return whether a walk that begins at `below` does not reach a path."""
        return not self._skip.isdisjoint(path[len(below) :].split("/"))
