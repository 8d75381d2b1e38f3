"""The items of one session on disk (O1).

`{root}/{session_id}/` holds `index.json`, `tool_result/{tool}/{call_id}.json`, `user_message/{item_id}.json` and so on
for each type; beside each JSON a `.txt` (see `records`). A file is complete before the index names it, and leaves the
index before it is removed, so the index never leads to nothing, whenever the process is killed.
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
from cfs_agents.context.folder import Folder, in_our_words
from cfs_agents.context.index import INDEX, check_integrity, remove_files
from cfs_agents.context.items import ContextItem
from cfs_agents.context.names import distinct_name, new_session_id, safe_name, valid_session_id
from cfs_agents.context.records import GZIP_ABOVE, Document, Record, Unreadable, compressed, read_document
from cfs_filesystem import DiskFileSystem, FileSystemError, Grant

DEFAULT_ROOT = Path("~/.agent/context")
RESERVE = 64 * 1024 * 1024
"""Bytes of the disk that off-loading leaves free."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What came of an order to off-load: by item id the records of what is on disk now, and why the rest is not.

    `contents` are the texts as they were written, without secrets.
    """

    records: Mapping[str, Record] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
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


class ContextFileSystem:
    """Keeps items of one session in files. One object at a time may have a session open; any number of threads.

    Nothing is made on disk before the first item is off-loaded. `shown_as` is what the model sees in place of the
    root, where its file tools have paths of their own; without it a placeholder names the path on the disk. `durable`
    waits for the disk; without it a crash of the machine (not of the process) can lose the last items. `reserve` is
    how many bytes of the disk stay free. Where others may change what is around the folder (an agent's commands may),
    `trusted` is the directory above it that they cannot replace: no link below it is followed. Else that is the root.

    Whatever touches the disk raises `Conflict` if somebody else has the session open, `Unavailable` or `StorageFull` if
    the disk does not let us; only `offload` says the last two in its result.
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
        self._folder: Folder | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder, so that somebody else may open it; happens by itself when the object is gone."""
        with self._lock:
            if self._folder is not None:
                self._folder.close()
            self._folder = None

    def _open(self) -> Folder:
        if self._folder is None:
            self._folder = Folder(self.path, self._trusted, durable=self._durable)
        return self._folder

    def _look(self) -> Folder | None:
        """Open the folder if there is one."""
        return self._open() if self._folder is not None or self.path.is_dir() else None

    # -- writing --------------------------------------------------------------------------------------------------

    def offload(self, items: Iterable[ContextItem], summaries: Mapping[str, str] | None = None) -> Offloaded:
        """Write items that are not on disk yet, then the index, once; say which are there now.

        An item whose content is not its own any more (off-loaded, destroyed) is not written. `summaries` has a line for
        each id (O7). A full disk, or one that cannot be written, is no exception: the items up to there are on disk,
        the others are not, and `refused` says why.
        """
        records: dict[str, Record] = {}
        contents: dict[str, str] = {}
        replaced: list[Record] = []
        refused: CfsError | None = None
        with self._lock:
            try:
                with in_our_words(self.path):
                    folder = self._open()
                    for item in items:
                        known = folder.index.records.get(item.item_id)
                        if not (item.offloaded or item.destroyed):
                            document = Document.of(item, (summaries or {}).get(item.item_id, ""), self.now())
                            if known is None or known.digest != document.digest:
                                replaced += [known] if known else []
                                known = folder.index.records[item.item_id] = self._write(folder, document)
                            contents[item.item_id] = document.content
                        if known is not None:
                            records[item.item_id] = known
            except (StorageFull, Unavailable) as error:
                refused = error
                self.close()  # should somebody have taken the folder away, the next one makes it again
            offloaded = Offloaded(records, contents, refused)
            return self._settle(offloaded, replaced) if contents else offloaded

    def _settle(self, offloaded: Offloaded, replaced: list[Record]) -> Offloaded:
        """Write the index; if that fails, nothing was off-loaded."""
        try:
            with in_our_words(self.path):
                folder = self._open()
                folder.save(wait=False)
                for record in replaced:
                    remove_files(folder.handle, record)
        except (StorageFull, Unavailable) as error:
            self.close()  # what is true is on the disk, and read again
            return Offloaded(refused=error)
        return offloaded

    def _write(self, folder: Folder, document: Document) -> Record:
        data, text = document.encoded(), document.text()
        path = distinct_name(_stem(document), document.item_id, folder.index.stems()) + ".json"
        folder.require_space(len(data) + len(text), self._reserve)
        record = document.record(path, len(data) + len(text))
        try:
            folder.hasty.write(f"/{path}", data)
            folder.hasty.write(f"/{record.text_path}", text)
            folder.settle(path)
        except BaseException:
            remove_files(folder.handle, record)  # or the next one to open the folder would take it in
            raise
        return record

    def compress(self) -> int:
        """Compress the files of large items where that halves them (O7); return how many bytes that freed.

        Not done when they are written, as somebody waits then, and it takes longer than the writing.
        """
        with self._lock, in_our_words(self.path):
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
        """Remove the files of items; the index remembers that they were there. Return how many bytes that freed."""
        with self._lock, in_our_words(self.path):
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
        """Remove the session from the disk; raises `Unavailable` if something in it was not written here."""
        with self._lock, in_our_words(self.path):
            if (folder := self._look()) is not None:
                for record in folder.index:
                    remove_files(folder.handle, record)
                with suppress(FileSystemError):  # there is none
                    folder.handle.delete(f"/{INDEX}")
                folder.remove()
                self.close()

    # -- reading --------------------------------------------------------------------------------------------------

    def restore(self, item_id: str) -> Restored:
        """Read an item back. Raises `NotFound` if it was never off-loaded here, or has been cleaned away."""
        with self._lock:
            folder = self._look()
            record = folder.index.records.get(item_id) if folder else None
            if folder is None or record is None:
                raise NotFound(f"no item {item_id!r} is off-loaded in {self.session_id}")
            try:
                return Restored(record, read_document(folder.handle.read_binary(f"/{record.path}")).message)
            except (Unreadable, FileSystemError) as error:
                raise NotFound(f"the file of {item_id!r} cannot be read: {error}") from None

    def history(self) -> list[Record]:
        """Return what was ever off-loaded, the oldest first; what has been cleaned away has no path."""
        with self._lock:
            folder = self._look()
            records = [*folder.index.removed, *folder.index] if folder else []
            return sorted(records, key=lambda record: record.offloaded_at)

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
        prefix = self.shown + "/"
        with self._lock:
            files = DiskFileSystem(self._open().descriptor, prefix=prefix)
        return files, Grant(prefix=prefix, ops={"list", "file", "read"})

    def check_integrity(self) -> list[str]:
        """Compare the index with the files; every line is a violation."""
        with self._lock:
            folder = self._look()
            return check_integrity(folder.index, folder.handle) if folder else []


def _packed(folder: Folder, record: Record) -> Record | None:
    """Write the compressed file of an item beside the other one; None where that is not worth while."""
    path = record.path or ""
    if not path.endswith(".json") or record.stored <= GZIP_ABOVE:
        return None
    try:
        data = folder.handle.read_binary(f"/{path}")
    except FileSystemError:
        return None  # the next one to open the folder will notice
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
