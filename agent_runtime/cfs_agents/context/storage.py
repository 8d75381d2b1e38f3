"""The items of one session on disk (O1).

`{root}/{session_id}/` holds `index.json`, `tool_result/{tool}/{call_id}.json`, `user_message/{item_id}.json` and so on
for each type; beside each JSON a `.txt` (see `records`). A file is complete before the index names it, and leaves the
index before it is removed, so the index never leads to nothing, whenever the process is killed.
"""

import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs.errors import CfsError, Conflict, NotFound, StorageFull, Unavailable
from cfs.wire import Message
from cfs_agents.context import index as indexes
from cfs_agents.context.index import INDEX, Index
from cfs_agents.context.items import ContextItem
from cfs_agents.context.names import distinct_name, new_session_id, safe_name, valid_session_id
from cfs_agents.context.records import Document, Record, Unreadable, compressed, read_document
from cfs_filesystem import DiskFileSystem, FileSystemError, FsHandle, Grant

DEFAULT_ROOT = Path("~/.agent/context")
RESERVE = 64 * 1024 * 1024
"""Bytes of the disk that off-loading leaves free."""

_SLACK = 65_536
_EVERYTHING = Grant(prefix="/", ops={"list", "file", "read", "write", "delete"})
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What came of an order to off-load: the records of the items that are on disk now, and why others are not."""

    records: Mapping[str, Record]
    refused: CfsError | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """An item as it was read back. If it is `redacted`, its secrets are not in it any more."""

    record: Record
    message: Message

    @property
    def redacted(self) -> bool:
        """Whether something was taken out before it was written."""
        return bool(self.record.redactions)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A session's folder: locked, with two views (one waits for the disk, one does not), and its index."""

    handle: FsHandle
    hasty: FsHandle
    index: Index


class ContextFileSystem:
    """Keeps items of one session in files. One object at a time may have a session open; any number of threads.

    Nothing is made on disk before the first item is off-loaded. `shown_as` is what the model sees in place of the
    root, where its file tools have paths of their own; without it a placeholder names the path on the disk. `durable`
    waits for the disk; without it a crash of the machine (not of the process) can lose the last items. `reserve` is
    how many bytes of the disk stay free.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        *,
        shown_as: str | None = None,
        durable: bool = True,
        reserve: int = RESERVE,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.root = Path(root if root is not None else DEFAULT_ROOT).expanduser().absolute()
        self.session_id = valid_session_id(session_id if session_id is not None else new_session_id(now()))
        self.folder = self.root / self.session_id
        self.shown = f"{str(self.root) if shown_as is None else shown_as.rstrip('/')}/{self.session_id}"
        self.now = now
        self._durable = durable
        self._reserve = reserve
        self._state: _Opened | None = None
        self._lock = threading.RLock()
        self._close: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder, so that somebody else may open it; happens by itself when the object is gone."""
        with self._lock:
            self._state = None
            self._close()

    # -- writing --------------------------------------------------------------------------------------------------

    def offload(self, items: Iterable[ContextItem], summaries: Mapping[str, str] | None = None) -> Offloaded:
        """Write items that are not on disk yet, then the index, once; say which are there now.

        `summaries` has a line for each id (O7). A full disk, or one that cannot be written, is no exception: the items
        up to there are on disk, the others are not, and `refused` says why. Raises `Conflict` if somebody else has the
        session open.
        """
        with self._lock:
            written: dict[str, Record] = {}
            replaced: list[Record] = []
            refused: CfsError | None = None
            try:
                with _in_our_words(self.folder):
                    state = self._open()
                    for item in items:
                        document = Document.of(item, (summaries or {}).get(item.item_id, ""), self.now())
                        known = state.index.records.get(item.item_id)
                        if known is None or known.digest != document.digest:
                            replaced += [known] if known else []
                            known = self._write(state, document)
                            state.index.records[item.item_id] = known
                        written[item.item_id] = known
            except (StorageFull, Unavailable) as error:
                refused = error
            return self._settle(written, replaced, refused) if written else Offloaded({}, refused)

    def _settle(self, written: dict[str, Record], replaced: list[Record], refused: CfsError | None) -> Offloaded:
        """Write the index; if that fails, nothing was off-loaded."""
        state = self._open()
        try:
            with _in_our_words(self.folder):
                self._save(state)
        except (StorageFull, Unavailable) as error:
            self._state = None  # what is true is on disk: read it again
            self._close()
            return Offloaded({}, error)
        for record in replaced:
            indexes.remove_files(state.handle, record)
        return Offloaded(written, refused)

    def _write(self, state: _Opened, document: Document) -> Record:
        data, text = document.encoded(), document.text()
        smaller = compressed(data)
        stem = self._free_stem(state, document)
        path, text_path = stem + (".json" if smaller is None else ".json.gz"), stem + ".txt"
        data = smaller or data
        self._require_space(len(data) + len(text))
        state.handle.write(f"/{path}", data)
        state.hasty.write(f"/{text_path}", text)
        return document.record(path, text_path, len(data) + len(text))

    def _free_stem(self, state: _Opened, document: Document) -> str:
        name = document.item_id
        folder: str = document.item_type
        if document.item_type == "tool_result":
            folder += "/" + safe_name(str(document.metadata.get("name") or ""), "unknown")
            name = str(document.metadata.get("tool_call_id") or "")
        taken = state.index.stems()
        return distinct_name(f"{folder}/{safe_name(name, document.item_id)}", document.item_id, taken)

    def _require_space(self, size: int) -> None:
        status = os.statvfs(self.folder)
        free = status.f_bavail * status.f_frsize
        if free < size + _SLACK + self._reserve:
            raise StorageFull(
                f"the disk of {self.folder} has {free:,} bytes left, of which {self._reserve:,} are kept free:"
                " nothing more is off-loaded until there is room"
            )

    def _save(self, state: _Opened) -> None:
        state.handle.write(f"/{INDEX}", state.index.encoded(self.session_id))

    def remove(self, item_ids: Iterable[str], because: str) -> int:
        """Remove the files of items; the index remembers that they were there. Return how many bytes that freed."""
        with self._lock:
            if (state := self._look()) is None:
                return 0
            doomed = [record for item_id in item_ids if (record := state.index.records.get(item_id)) is not None]
            if doomed:
                with _in_our_words(self.folder):
                    state.index.forget(record.gone(self.now(), because) for record in doomed)
                    self._save(state)
                    for record in doomed:
                        indexes.remove_files(state.handle, record)
            return sum(record.stored for record in doomed)

    def discard(self) -> bool:
        """Remove the session from the disk; False if something is in its folder that was not written here."""
        with self._lock:
            if (state := self._look()) is not None:
                for record in state.index:
                    indexes.remove_files(state.handle, record)
                state.handle.delete(f"/{INDEX}")
                for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
                    folder.rmdir()
                self.folder.rmdir()
                self.close()
            return True

    # -- reading --------------------------------------------------------------------------------------------------

    def restore(self, item_id: str) -> Restored:
        """Read an item back. Raises `NotFound` if it was never off-loaded here, or has been cleaned away."""
        with self._lock:
            state = self._look()
            record = state.index.records.get(item_id) if state else None
            if state is None or record is None:
                raise NotFound(f"no item {item_id!r} is off-loaded in {self.session_id}")
            try:
                return Restored(record, read_document(state.handle.read_binary(f"/{record.path}")).message)
            except (Unreadable, FileSystemError) as error:
                raise NotFound(f"the file of {item_id!r} cannot be read: {error}") from None

    def history(self) -> list[Record]:
        """Return what was ever off-loaded, the oldest first; what has been cleaned away has no path."""
        with self._lock:
            state = self._look()
            records = [*state.index.removed, *state.index] if state else []
            return sorted(records, key=lambda record: record.offloaded_at)

    def __contains__(self, item_id: object) -> bool:
        with self._lock:
            state = self._look()
            return state is not None and item_id in state.index.records

    def path_of(self, record: Record) -> str:
        """Return the path by which the model reads an item's content."""
        return f"{self.shown}/{record.text_path}"

    @property
    def index_path(self) -> str:
        """The path by which the model reads the index."""
        return f"{self.shown}/{INDEX}"

    def reader(self) -> tuple[DiskFileSystem, Grant]:
        """Return the files as the model's tools may read them, with the paths that placeholders name, and the grant.

        Raises `InvalidPathError` if those are no logical paths (say, a root with a `*` in its name).
        """
        with self._lock:
            self._open()
            return DiskFileSystem(self.folder, prefix=self.shown + "/"), Grant(
                prefix=self.shown + "/", ops={"list", "file", "read"}
            )

    @property
    def stored(self) -> int:
        """Bytes of all files of items."""
        with self._lock:
            state = self._look()
            return state.index.stored if state else 0

    def check_integrity(self) -> list[str]:
        """Compare the index with the files; every line is a violation."""
        with self._lock:
            state = self._look()
            return indexes.check_integrity(state.index, state.handle) if state else []

    # -- opening --------------------------------------------------------------------------------------------------

    def _look(self) -> _Opened | None:
        """Open the session if there is anything of it."""
        return self._open() if self._state is not None or self.folder.is_dir() else None

    def _open(self) -> _Opened:
        """Open the session, which is made if need be. Raises `Conflict`, `Unavailable` or `StorageFull`."""
        while self._state is None:
            with _in_our_words(self.folder):
                _make_private(self.folder)
                lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._close = weakref.finalize(self, os.close, lock)
                try:
                    _take(lock, self.session_id)
                    if os.path.samestat(os.fstat(lock), self.folder.stat()):  # not removed while we waited for it
                        self._state = self._read()
                except BaseException:
                    self._close()
                    raise
        return self._state

    def _read(self) -> _Opened:
        handle, hasty = (
            DiskFileSystem(self.folder, durable=durable, private=True).create_handle([_EVERYTHING])
            for durable in (self._durable, False)
        )
        index = None
        with suppress(Unreadable, FileSystemError):
            index = indexes.decoded(handle.read_binary(f"/{INDEX}"))
        true, differs = indexes.recovered(index, handle)
        state = _Opened(handle, hasty, true)
        if differs and true.records:
            with suppress(OSError):  # a disk that is full now: the next opening finds the same
                self._save(state)
        return state


def _take(lock: int, session_id: str) -> None:
    """Lock a folder until its descriptor is closed; a disk without locks lets everybody in."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"the context {session_id!r} is in use by another program, or by another object here") from None
    except OSError:
        pass


def _make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for its owner alone."""
    for missing in [*(parent for parent in reversed(folder.parents) if not parent.exists()), folder]:
        missing.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _in_our_words(folder: Path) -> Iterator[None]:
    """Raise what a failure of the disk means: `StorageFull`, or `Unavailable` for any other."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"the disk of {folder} is full: nothing more is off-loaded until there is room") from None
        raise Unavailable(f"{folder} cannot be written: {error.strerror or error}") from None
    except FileSystemError as error:
        raise Unavailable(f"{folder} cannot be written: {error}") from None
