"""Stores the off-loaded items of one session on disk, with an index (O1).

`{root}/{session_id}/` holds `index.json`, `tool_result/{tool}/{call_id}.json`, `user_message/{item_id}.json` and so on
for each type; beside each JSON a `.txt`. A file is complete before the index names it, and leaves the index before it
is removed, so the index never names a missing file, whenever the process is killed. Opening a session rebuilds the
index from the files; of the old one only the list of removed items is needed.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs.errors import CfsError, NotFound, StorageFull, Unavailable
from cfs.wire import Message
from cfs_agents.base.logs import get_logger
from cfs_agents.context.documents import GZIP_ABOVE, Document, ItemRecord, Unreadable, compressed, read_document
from cfs_agents.context.folder import ItemFolder, translated_errors
from cfs_agents.context.index import INDEX, check_integrity, remove_files
from cfs_agents.context.items import ContextItem
from cfs_agents.context.names import distinct_name, new_session_id, safe_name, valid_session_id
from cfs_filesystem import DiskFileSystem, FileSystemError, Grant

_log = get_logger(__name__)


DEFAULT_ROOT = Path("~/.agent/context")
RESERVE = 64 * 1024 * 1024
"""Free bytes that off-loading leaves on the disk."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Result of off-loading: by item id the records of what is on disk now, and why the rest was refused.

    `contents` are the texts as written, without secrets.
    """

    records: Mapping[str, ItemRecord] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    refused: CfsError | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """An item that was read back. If it is `redacted`, secrets are missing from it."""

    record: ItemRecord
    message: Message

    @property
    def redacted(self) -> bool:
        """Whether secrets were taken out before it was written."""
        return bool(self.record.redactions)


class ContextFileSystem:
    """Stores the off-loaded items of one session. One object at a time can have a session open; threads may share it.

    Nothing is created on disk before the first item is off-loaded.

    - `root` is the folder of all sessions, `~/.agent/context` unless given.
    - `shown_as` replaces the root in the paths that the model sees, for file tools with paths of their own.
    - `durable` waits for the disk. Without it a crash of the machine (not of the process) can lose the last items.
    - `reserve` is the number of bytes that stay free on the disk.
    - `warn` gets a sentence if files of the session were damaged.
    - `trusted` is a directory above the folder that others (an agent's commands) cannot replace; no link below it is
      followed. It is the root unless given.

    What touches the disk raises `Conflict` if another object has the session open, and `Unavailable` or `StorageFull`
    if the disk refuses; only `offload` reports the last two in its result.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        session_id: str | None = None,
        *,
        shown_as: str | None = None,
        trusted: Path | None = None,
        durable: bool = True,
        reserve: int = RESERVE,
        warn: Callable[[str], None] = _log.warning,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.root = Path(root if root is not None else DEFAULT_ROOT).expanduser().absolute()
        self.session_id = valid_session_id(session_id if session_id is not None else new_session_id(now()))
        self.path = self.root / self.session_id
        self.shown = f"{str(self.root) if shown_as is None else shown_as.rstrip('/')}/{self.session_id}"
        self.now = now
        self._trusted = self.root if trusted is None else trusted.absolute()
        self._durable = durable
        self._reserve = reserve
        self._warn = warn
        self._folder: ItemFolder | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the session, so that others can open it; a lost object closes by itself."""
        with self._lock:
            if self._folder is not None:
                self._folder.close()
            self._folder = None

    def _open(self) -> ItemFolder:
        if self._folder is None:
            self._folder = ItemFolder(self.path, self._trusted, durable=self._durable, warn=self._warn)
        return self._folder

    def _look(self) -> ItemFolder | None:
        """Open the folder if it exists."""
        return self._open() if self._folder is not None or self.path.is_dir() else None

    def offload(self, items: Iterable[ContextItem], summaries: Mapping[str, str] | None = None) -> Offloaded:
        """Write items that are not on disk yet, then the index once; return which are on disk now.

        Items that were off-loaded or destroyed already have no content of their own and are not written. `summaries`
        has a line for each id (O7). A disk that is full or cannot be written raises nothing: `refused` is the reason
        why the remaining items were not written.
        """
        records: dict[str, ItemRecord] = {}
        contents: dict[str, str] = {}
        replaced: list[ItemRecord] = []
        refused: CfsError | None = None
        with self._lock:
            try:
                with translated_errors(self.path):
                    folder = self._open()
                    for item in items:
                        stored = folder.index.records.get(item.item_id)
                        if not (item.offloaded or item.destroyed):
                            document = Document.of(item, (summaries or {}).get(item.item_id, ""), self.now())
                            if stored is None or stored.digest != document.digest:
                                replaced += [stored] if stored else []
                                stored = folder.index.records[item.item_id] = self._write(folder, document)
                            contents[item.item_id] = document.content
                        if stored is not None:
                            records[item.item_id] = stored
            except (StorageFull, Unavailable) as error:
                refused = error
                self.close()  # if the folder was removed, the next call creates it again
            offloaded = Offloaded(records, contents, refused)
            return self._settle(offloaded, replaced) if contents else offloaded

    def _settle(self, offloaded: Offloaded, replaced: list[ItemRecord]) -> Offloaded:
        """Write the index; if that fails, nothing counts as off-loaded."""
        try:
            with translated_errors(self.path):
                folder = self._open()
                folder.save(wait=False)
                for record in replaced:
                    remove_files(folder.handle, record)
        except (StorageFull, Unavailable) as error:
            self.close()  # the next call reads the state from the disk
            return Offloaded(refused=error)
        return offloaded

    def _write(self, folder: ItemFolder, document: Document) -> ItemRecord:
        data, text = document.encoded(), document.text()
        path = distinct_name(_stem(document), document.item_id, folder.index.stems()) + ".json"
        folder.require_space(len(data) + len(text), self._reserve)
        record = document.record(path, len(data) + len(text))
        try:
            folder.hasty.write(f"/{path}", data)
            folder.hasty.write(f"/{record.text_path}", text)
            folder.settle(path)
        except BaseException:
            remove_files(folder.handle, record)  # or it would be in the next index
            raise
        return record

    def compress(self) -> int:
        """Compress large items where that halves them (O7); return the number of bytes freed.

        This is not done at off-loading, when the model waits: it takes longer than writing.
        """
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is None:
                return 0
            packed = [new for record in folder.index if (new := _packed(folder, record)) is not None]
            before = [folder.index.records[record.item_id] for record in packed]
            folder.index.records.update({record.item_id: record for record in packed})
            if packed:
                folder.save()
            for record in before:
                folder.handle.delete(f"/{record.path}")
            return sum(old.stored - new.stored for old, new in zip(before, packed, strict=True))

    def remove(self, item_ids: Iterable[str], because: str) -> int:
        """Remove items from the disk; the index remembers them. Return the number of bytes freed."""
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is None:
                return 0
            doomed = [record for item_id in item_ids if (record := folder.index.records.get(item_id)) is not None]
            if doomed:
                folder.index.forget(record.gone(self.now(), because) for record in doomed)
                folder.save()
                for record in doomed:
                    remove_files(folder.handle, record)
            return sum(record.stored for record in doomed)

    def discard(self) -> None:
        """Remove the session from the disk; raises `Unavailable` if it holds files of others."""
        with self._lock, translated_errors(self.path):
            if (folder := self._look()) is not None:
                for record in folder.index:
                    remove_files(folder.handle, record)
                with suppress(FileSystemError):  # there is none
                    folder.handle.delete(f"/{INDEX}")
                folder.remove()
                self.close()

    def restore(self, item_id: str) -> Restored:
        """Read an item back. Raises `NotFound` if it was never off-loaded here, or was removed."""
        with self._lock:
            folder = self._look()
            record = folder.index.records.get(item_id) if folder else None
            if folder is None or record is None:
                raise NotFound(f"no item {item_id!r} is off-loaded in {self.session_id}")
            try:
                return Restored(record, read_document(folder.handle.read_binary(f"/{record.path}")).message)
            except (Unreadable, FileSystemError) as error:
                raise NotFound(f"the file of {item_id!r} cannot be read: {error}") from None

    def history(self) -> list[ItemRecord]:
        """Return the records of all items ever off-loaded, oldest first; removed ones have no path."""
        with self._lock:
            folder = self._look()
            records = [*folder.index.removed, *folder.index] if folder else []
            return sorted(records, key=lambda record: record.time)

    def open(self) -> None:
        """Open the session now, if it exists, so that `warn` hears of damaged files before they are needed."""
        with self._lock:
            self._look()

    def path_of(self, record: ItemRecord) -> str:
        """Return the path by which the model reads an item's content."""
        return f"{self.shown}/{record.text_path}"

    @property
    def index_path(self) -> str:
        """The path by which the model reads the index."""
        return f"{self.shown}/{INDEX}"

    def reader(self) -> tuple[DiskFileSystem, Grant]:
        """Return a file system with the paths that placeholders name, and the grant to read it.

        Raises `InvalidPathError` if those are not logical paths (for example, a root with a `*` in its name).
        """
        prefix = self.shown + "/"
        with self._lock:
            files = DiskFileSystem(self._open().descriptor, prefix=prefix)
        return files, Grant(prefix=prefix, ops={"list", "file", "read"})

    def check_integrity(self) -> list[str]:
        """Compare the index with the files; every line is a violation."""
        with self._lock:
            folder = self._look()
            return check_integrity(folder.index, folder.handle) if folder else []


def _packed(folder: ItemFolder, record: ItemRecord) -> ItemRecord | None:
    """Write the compressed file of an item beside the plain one; return None if it does not pay."""
    path = record.path or ""
    if not path.endswith(".json") or record.stored <= GZIP_ABOVE:
        return None
    try:
        data = folder.handle.read_binary(f"/{path}")
    except FileSystemError:
        return None  # the next open will notice it
    smaller = compressed(data)
    if smaller is None:
        return None
    folder.handle.write(f"/{path}.gz", smaller)
    return replace(record, path=f"{path}.gz", stored=record.stored - len(data) + len(smaller))


def _stem(document: Document) -> str:
    """Make the path of an item's files, without an ending."""
    name = document.item_id
    kind: str = document.item_type
    if document.item_type == "tool_result":
        kind += "/" + safe_name(str(document.metadata.get("name") or ""), "unknown")
        name = str(document.metadata.get("tool_call_id") or "")
    return f"{kind}/{safe_name(name, document.item_id)}"
