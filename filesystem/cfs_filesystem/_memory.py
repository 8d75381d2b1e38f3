"""Entries in memory, gone with the process unless serialized (G6)."""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any

from cfs_filesystem._base import FileSystemBase, directories_of
from cfs_filesystem._errors import ConflictError, NotFoundError
from cfs_filesystem._types import EntryMeta, Grant, Path, VersionedEntryMeta


class InMemoryFileSystem(FileSystemBase):
    """A dictionary of contents. Writers take turns; readers never wait, and see whole contents only."""

    def __init__(self, prefixes: Iterable[Path] = ("/",)) -> None:
        super().__init__(prefixes)
        self._lock = threading.Lock()
        self._contents: dict[Path, bytes] = {}
        self._index: dict[Path, EntryMeta] = {}
        self._versions = count()
        self._nonce = secrets.token_hex(4)
        """Tells the versions of this life from those of another."""
        self._below: Counter[Path] = Counter()
        """How many entries are below each directory."""

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        return MappingProxyType(self._index)

    def _read_binary_impl(self, path: Path) -> bytes:
        try:
            return self._contents[path]
        except KeyError:
            raise NotFoundError(f"there is no entry {path!r}", path) from None

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        with self._lock:
            if path not in self._contents:
                self._require_room(path)
                self._below.update(directories_of(path))
            elif not overwrite:
                raise ConflictError(f"{path!r} exists", path)
            return self._put(path, data, time.time())

    def _delete_impl(self, path: Path) -> None:
        with self._lock:
            if path not in self._contents:
                raise ConflictError(f"{path!r} was deleted by somebody else", path)
            del self._index[path], self._contents[path]
            for directory in directories_of(path):
                self._below[directory] -= 1
                if not self._below[directory]:
                    del self._below[directory]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the entries those of the state, with their times, in one step."""
        entries = self._entries_of(state)
        with self._lock:
            self._index.clear()
            self._contents.clear()
            self._below.clear()
            for path, (data, updated_at) in entries.items():
                self._below.update(directories_of(path))
                self._put(path, data, updated_at)

    def _put(self, path: Path, data: bytes, updated_at: float) -> EntryMeta:
        version = f"{self._nonce}-{next(self._versions)}"
        # a new one each time: readers hold the old
        meta = VersionedEntryMeta(path=path, size=len(data), updated_at=updated_at, version=version)
        self._contents[path] = data
        self._index[path] = meta
        return meta

    def _require_room(self, path: Path) -> None:
        if path in self._below:
            raise ConflictError(f"{path!r} is a directory: there are entries below it", path)
        for directory in directories_of(path):
            if directory in self._contents:
                raise ConflictError(f"{directory!r} is an entry: nothing can be below it", path)

    def check_integrity(self) -> None:
        """Raise `AssertionError` where contents, index and directories contradict one another."""
        if self._contents.keys() != self._index.keys():
            raise AssertionError("the index names other entries than there are")
        for path, meta in self._index.items():
            if meta["path"] != path or meta["size"] != len(self._contents[path]):
                raise AssertionError(f"the index is wrong about {path!r}")
        counted = Counter(directory for path in self._index for directory in directories_of(path))
        if counted != self._below or counted.keys() & self._contents.keys():
            raise AssertionError("the directories are counted wrongly")
