"""`.versions`: the past of transcripts and of files of workspaces, as directories that cannot be changed (F5).

The server knows what is there; see `GET /v1/past/{path}`. Only sessions are listed from the cache.
"""

import errno
import stat
import threading
from typing import NoReturn

from cachetools import TTLCache

from cfs import api
from cfs.contract.ids import file_name_of
from cfs.wire import PastEntry
from cfs_fuse.handles import BridgeContext
from cfs_fuse.paths import NAME_MAX, Attributes, is_past

_CACHED_SECONDS = 2.0
"""`ls -l` asks for each name that it has just listed, and the kernel for each directory on the way to a file."""
_MOST_CACHED = 10_000
_PIECE_BYTES = 4 << 20
_SESSIONS, _WORKSPACES = "sessions", "workspaces"
_TOP = ("", _SESSIONS, _WORKSPACES)


class PastEntries:
    """What the server has said of entries of the past, for a short time: rights may end and versions be deleted."""

    def __init__(self, context: BridgeContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._entries: TTLCache[str, PastEntry] = TTLCache(_MOST_CACHED, _CACHED_SECONDS)

    def get(self, path: str) -> PastEntry:
        """Return an entry; raises `CfsError`, such as `NotFound`."""
        with self._lock:
            entry = self._entries.get(path)
        if entry is None:
            entry = self._context.server.call(api.past_entry(path))
            self._keep({path: entry})
        return entry

    def members(self, path: str) -> list[PastEntry]:
        """Return what is in a directory; raises `CfsError`."""
        if path == "":
            return [_top_directory(_SESSIONS), _top_directory(_WORKSPACES)]
        if path == _SESSIONS:
            cache = self._context.cache
            ids = [session for root in cache.roots() for session in (root, *cache.family(root))]
            names = [file_name_of(session) for session in ids]
            return [_top_directory(name) for name in names if len(name.encode()) <= NAME_MAX]
        entries = self._context.server.call(api.past_entries(path)).entries
        self._keep({f"{path}/{entry.name}": entry for entry in entries})
        return list(entries)

    def attributes(self, path: str) -> Attributes:
        """Return the attributes of a file or directory."""
        attributes = self._context.attributes
        if path in _TOP:
            return attributes.directory(self._context.cache.changed_at, mode=stat.S_IFDIR | 0o555)
        entry = self.get(path)
        if entry.type == "folder":
            return attributes.directory(entry.at, mode=stat.S_IFDIR | entry.mode)
        return attributes.file(entry.size, entry.at, mode=stat.S_IFREG | entry.mode)

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory at a path; raises `CfsError`."""
        return path in _TOP or self.get(path).type == "folder"

    def _keep(self, entries: dict[str, PastEntry]) -> None:
        with self._lock:
            self._entries.update(entries)


class PastHandle:
    """An open file of the past. It is read in pieces; the last one is kept."""

    def __init__(self, context: BridgeContext, entries: PastEntries, path: str) -> None:
        """Open a file; raises `CfsError`."""
        self._context = context
        self._path = path
        self._attributes = entries.attributes(path)
        self._size = int(self._attributes["st_size"])
        self._lock = threading.Lock()
        self._piece = b""
        self._first = 0
        self._fetch(0)

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return a part of the file."""
        with self._lock:
            data = b""
            while len(data) < size and offset + len(data) < self._size:
                position = offset + len(data)
                if not self._first <= position < self._first + len(self._piece):
                    self._fetch(position)
                start = position - self._first
                data += self._piece[start : start + size - len(data)]
            return data

    def write(self, data: bytes, offset: int) -> None:  # noqa: ARG002 - whatever it is
        """Refuse."""
        raise_read_only()

    def commit(self) -> None:
        """Nothing is to be done."""

    def truncate(self, size: int) -> None:  # noqa: ARG002 - whatever it is
        """Refuse."""
        raise_read_only()

    def attributes(self) -> Attributes:
        """Describe the file."""
        return self._attributes

    def close(self) -> None:
        """Nothing is to be done."""

    def _fetch(self, position: int) -> None:
        if self._size:
            part = self._context.server.call(api.read_past(self._path, position, _PIECE_BYTES))
            if not part.content or part.size != self._size:
                raise OSError(errno.ESTALE, "the file is another one now; open it again")
            self._piece, self._first = part.content, position


def require_present(*paths: str | None) -> None:
    """Raise `OSError` (EROFS) if a change is about the past."""
    if any(path is not None and is_past(path) for path in paths):
        raise_read_only()


def raise_read_only() -> NoReturn:
    """Raise `OSError` (EROFS)."""
    raise OSError(errno.EROFS, "the past can only be read: copy a version to where you want it")


def _top_directory(name: str) -> PastEntry:
    return PastEntry(name=name, type="folder", at=0.0, mode=0o555)
