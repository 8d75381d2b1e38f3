"""A file system in memory; its entries are lost at exit unless serialized (G6)."""

import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from types import MappingProxyType
from typing import Any

from cfs_filesystem._base import FileSystemBase
from cfs_filesystem._errors import ConflictError, InvalidArgumentError, NotFoundError
from cfs_filesystem._handle import entries_below
from cfs_filesystem._paths import directories_above, validate_path
from cfs_filesystem._types import EPOCH, DirectoryMeta, EntryMeta, Grant, Path, VersionedEntryMeta

# Directories: parents of entries, and directories that were created explicitly


@dataclass(slots=True)
class _Folder:
    members: int = 0
    """Number of entries and created directories at any depth below it."""
    made: bool = False
    updated_at: datetime = EPOCH


class Folders:
    """Directories by prefix (`/`, `/a/`). A directory that was not created explicitly ends with its last member."""

    def __init__(self) -> None:
        self._known: dict[Path, _Folder] = {}

    def add(self, path: Path, now: datetime) -> None:
        """Add an entry to the counts of all its parents."""
        for inside in directories_above(path):
            folder = self._known.setdefault(inside, _Folder())
            folder.members += 1
            folder.updated_at = max(folder.updated_at, now)

    def discard(self, path: Path, now: datetime) -> None:
        """Remove an entry from the counts of all its parents."""
        for inside in directories_above(path):
            folder = self._known[inside]
            folder.members -= 1
            folder.updated_at = max(folder.updated_at, now)
            if not folder.members and not folder.made:
                del self._known[inside]

    def make(self, path: Path, now: datetime) -> None:
        """Mark a directory as created; it may already have entries."""
        self.add(path, now)
        folder = self._known.setdefault(path + "/", _Folder())
        folder.made, folder.updated_at = True, max(folder.updated_at, now)

    def remove(self, path: Path, now: datetime) -> None:
        """Unmark a created directory; it remains only while it has entries."""
        folder = self._known[path + "/"]
        folder.made = False
        if not folder.members:
            del self._known[path + "/"]
        self.discard(path, now)

    def clear(self) -> None:
        """Remove all directories."""
        self._known.clear()

    def get(self, inside: Path) -> DirectoryMeta | None:
        """Return the metadata of a directory."""
        folder = self._known.get(inside)
        if folder is None:
            return None
        return DirectoryMeta(path=inside[:-1] or "/", size=0, updated_at=folder.updated_at, directory=True)

    def directly_in(self, inside: Path) -> list[DirectoryMeta]:
        """Return the directories directly in a directory; other threads may change them meanwhile."""
        depth = inside.count("/") + 1
        paths = [folder for folder in list(self._known) if folder.startswith(inside) and folder.count("/") == depth]
        return [meta for path in paths if (meta := self.get(path)) is not None]

    def made(self, inside: Path = "/") -> Iterator[tuple[Path, datetime]]:
        """Yield path and time of the created directories at and below a directory; parents come first."""
        for path, folder in sorted(self._known.items()):
            if folder.made and path.startswith(inside):
                yield path[:-1], folder.updated_at

    def is_empty(self, inside: Path) -> bool:
        """Return whether a directory is empty or does not exist."""
        folder = self._known.get(inside)
        return folder is None or not folder.members

    def is_bare(self, inside: Path) -> bool:
        """Return whether there is no entry at any depth below a directory."""
        folder = self._known.get(inside)
        return folder is None or folder.members == sum(1 for path, _ in self.made(inside) if path + "/" != inside)

    def check_integrity(self, entries: Iterable[Path]) -> None:
        """Raise `AssertionError` if the directories do not match the entries."""
        members = [*entries, *(path for path, _ in self.made())]
        counted = Counter(inside for path in members for inside in directories_above(path))
        if counted != Counter({inside: folder.members for inside, folder in self._known.items() if folder.members}):
            raise AssertionError("the directories are counted wrongly")
        if any(not folder.members and not folder.made for folder in self._known.values()):
            raise AssertionError("there is a directory with nothing in it that no caller made")
        if any(path + "/" in self._known for path in entries):
            raise AssertionError("a path is both entry and directory")


class InMemoryFileSystem(FileSystemBase):
    """A dictionary of contents. Writers are serialized; readers never block and never see partial contents.

    The parents of an entry are directories and end with their last entry. A directory that was created explicitly stays
    until it is removed. An entry may be written to its path if only directories are below it; it then replaces them.
    """

    def __init__(self, prefixes: Iterable[Path] = ("/",)) -> None:
        super().__init__(prefixes)
        self._lock = threading.Lock()
        self._contents: dict[Path, bytes] = {}
        self._index: dict[Path, EntryMeta] = {}
        self._versions = count()
        self._nonce = secrets.token_hex(4)
        """Distinguishes the versions of this object from those of others."""
        self._folders = Folders()

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        return MappingProxyType(self._index)

    def _read_binary_impl(self, path: Path) -> bytes:
        try:
            return self._contents[path]
        except KeyError:
            raise NotFoundError(f"there is no entry {path!r}", path) from None

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        with self._lock:
            now = datetime.now(UTC)
            if path not in self._contents:
                self._make_room(path, now)
                self._folders.add(path, now)
            elif not overwrite:
                raise ConflictError(f"{path!r} exists", path)
            return self._put(path, data, now)

    def _delete_impl(self, path: Path) -> None:
        with self._lock:
            if path not in self._contents:
                raise ConflictError(f"{path!r} was deleted by another caller", path)
            self._take(path, datetime.now(UTC))

    def _scan_impl(self, inside: Path) -> Iterable[EntryMeta]:
        if self._folders.get(inside) is None:
            raise NotFoundError(f"there is no directory {inside[:-1]!r}", inside[:-1])
        entries = [meta for path, meta in entries_below(self._index, inside) if "/" not in path[len(inside) :]]
        return [*entries, *self._folders.directly_in(inside)]

    def _directory_impl(self, inside: Path) -> DirectoryMeta | None:
        return self._folders.get(inside)

    def _make_directory_impl(self, path: Path) -> None:
        # parents are created; the handle has checked whether they must exist
        with self._lock:
            if path in self._contents or self._folders.get(path + "/") is not None:
                raise ConflictError(f"{path!r} exists", path)
            self._require_no_entry_above(path)
            self._folders.make(path, datetime.now(UTC))

    def _remove_directory_impl(self, path: Path) -> None:
        with self._lock:
            if self._folders.get(path + "/") is None:
                raise ConflictError(f"{path!r} was removed by another caller", path)
            if not self._folders.is_empty(path + "/"):
                raise ConflictError(f"{path!r} is not empty", path)
            self._folders.remove(path, datetime.now(UTC))

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:
        with self._lock:
            now = datetime.now(UTC)
            if self._folders.get(target + "/") is not None or (target in self._contents and not overwrite):
                raise ConflictError(f"{target!r} exists", target)
            self._require_no_entry_above(target)
            if path in self._contents:
                self._rename(path, target, now)
            elif self._folders.get(path + "/") is not None:
                self._rename_all(path, target, now)
            else:
                raise ConflictError(f"{path!r} was removed by another caller", path)

    def _move_over_impl(self, path: Path, target: Path) -> None:
        with self._lock:
            now = datetime.now(UTC)
            self._require_present(path)
            self._require_no_entry_above(target)
            self._require_short_names(path, target)
            self._remove_all(target, now)
            if path in self._contents:
                self._rename(path, target, now)
            else:
                self._rename_all(path, target, now)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:
        with self._lock:
            now = datetime.now(UTC)
            self._require_present(path)
            if not overwrite and (target in self._contents or self._folders.get(target + "/") is not None):
                raise ConflictError(f"{target!r} exists", target)
            self._require_no_entry_above(target)
            self._require_short_names(path, target)
            contents, directories = self._below(path) if members else ({}, [])
            is_entry = path in self._contents
            if is_entry:
                contents = {path: self._contents[path]}
            if target not in self._contents or not is_entry:  # readers find an entry that is replaced at any time
                self._remove_all(target, now)
            if not is_entry:
                self._folders.make(target, now)
            for directory in directories:
                if directory != path:
                    self._folders.make(target + directory.removeprefix(path), now)
            for entry, data in contents.items():
                copy = target + entry.removeprefix(path)
                if copy not in self._contents:
                    self._folders.add(copy, now)
                self._put(copy, data, now)

    def _remove_tree_impl(self, path: Path) -> None:
        with self._lock:
            if self._folders.get(path + "/") is None:
                raise ConflictError(f"{path!r} was removed by another caller", path)
            self._remove_all(path, datetime.now(UTC))

    def state_dict(self) -> dict[str, Any]:
        """Return all entries with their contents (in base64), and the created directories."""
        with self._lock:
            return super().state_dict() | {
                "directories": {path: when.timestamp() for path, when in self._folders.made()}
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all entries and directories, including their times, atomically."""
        entries = self._entries_of(state)
        directories = self._directories_of(state, entries)
        with self._lock:
            self._index.clear()
            self._contents.clear()
            self._folders.clear()
            for path, updated_at in directories.items():
                self._folders.make(path, updated_at)
            for path, (data, updated_at) in entries.items():
                self._folders.add(path, updated_at)
                self._put(path, data, updated_at)

    def _directories_of(self, state: Mapping[str, Any], entries: Mapping[Path, object]) -> dict[Path, datetime]:
        """Return the created directories of a state; states of older versions have none."""
        try:
            directories = {
                validate_path(path, self.prefixes): datetime.fromtimestamp(float(updated_at), UTC)
                for path, updated_at in state.get("directories", {}).items()
            }
        except (TypeError, ValueError, AttributeError, OverflowError, OSError):
            raise InvalidArgumentError("these are not the directories of a file system") from None
        for path in directories:
            if path in entries or any(above[:-1] in entries for above in directories_above(path)):
                raise InvalidArgumentError(f"the state has an entry at or above {path!r}", path)
        return directories

    def _put(self, path: Path, data: bytes, updated_at: datetime) -> EntryMeta:
        version = f"{self._nonce}-{next(self._versions)}"
        # a new object: readers may still use the old one
        meta = VersionedEntryMeta(path=path, size=len(data), updated_at=updated_at, version=version)
        self._contents[path] = data
        self._index[path] = meta
        return meta

    def _take(self, path: Path, now: datetime) -> None:
        del self._index[path], self._contents[path]
        self._folders.discard(path, now)

    def _rename(self, path: Path, target: Path, now: datetime) -> None:
        """Add an entry at its new path before removing the old one, so that readers always find one of them."""
        if target not in self._contents:
            self._folders.add(target, now)
        self._put(target, self._contents[path], self._index[path]["updated_at"])
        self._take(path, now)

    def _rename_all(self, path: Path, target: Path, now: datetime) -> None:
        self._require_short_names(path, target)
        directories = [*self._folders.made(path + "/")]
        entries, _ = self._below(path)
        for directory, _ in reversed(directories):
            self._folders.remove(directory, now)
        for directory, updated_at in directories:
            self._folders.make(target + directory.removeprefix(path), updated_at)
        for entry in entries:
            self._rename(entry, target + entry.removeprefix(path), now)

    def _remove_all(self, path: Path, now: datetime) -> None:
        """Remove an entry, or a directory with everything in it."""
        contents, directories = self._below(path)
        for entry in [*contents, *([path] if path in self._contents else [])]:
            self._take(entry, now)
        for directory in reversed(directories):
            self._folders.remove(directory, now)

    def _below(self, path: Path) -> tuple[dict[Path, bytes], list[Path]]:
        """Return the contents below a directory, and the created directories at and below it, parents first."""
        contents = {entry: data for entry, data in self._contents.items() if entry.startswith(path + "/")}
        return contents, [directory for directory, _ in self._folders.made(path + "/")]

    def _require_present(self, path: Path) -> None:
        if path not in self._contents and self._folders.get(path + "/") is None:
            raise ConflictError(f"{path!r} was removed by another caller", path)

    def _require_short_names(self, path: Path, target: Path) -> None:
        """Raise if something below a directory would have a path that is too long."""
        contents, directories = self._below(path)
        for member in [*contents, *directories]:
            validate_path(target + member.removeprefix(path))

    def _make_room(self, path: Path, now: datetime) -> None:
        """Remove directories without entries where an entry is written to their path."""
        self._require_no_entry_above(path)
        if self._folders.get(path + "/") is None:
            return
        if not self._folders.is_bare(path + "/"):
            raise ConflictError(f"{path!r} is a directory: there are entries below it", path)
        for directory, _ in [*self._folders.made(path + "/")][::-1]:
            self._folders.remove(directory, now)

    def _require_no_entry_above(self, path: Path) -> None:
        for directory in directories_above(path):
            if directory[:-1] in self._contents:
                raise ConflictError(f"{directory[:-1]!r} is an entry: nothing can be below it", path)

    def check_integrity(self) -> None:
        """Raise `AssertionError` if contents, index and directories are inconsistent."""
        if self._contents.keys() != self._index.keys():
            raise AssertionError("the index names other entries than there are")
        for path, meta in self._index.items():
            if meta["path"] != path or meta["size"] != len(self._contents[path]):
                raise AssertionError(f"the index is wrong about {path!r}")
        self._folders.check_integrity(self._index)
