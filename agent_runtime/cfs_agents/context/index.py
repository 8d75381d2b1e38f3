"""The index of a session: which items are on disk, and which were. Pure but for the file system it is handed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cfs_agents.context.records import SCHEMA_VERSION, Record, Unreadable, read_document
from cfs_filesystem import EntryMeta, FileSystemError, FsHandle, NotFoundError

INDEX = "index.json"
MAX_HISTORY = 1_000
"""How many items that were cleaned away are remembered."""


class Index:
    """Records by item id, in the order of off-loading; and those of items whose files are gone."""

    def __init__(self, records: Iterable[Record] = (), removed: Iterable[Record] = ()) -> None:
        self.records = {record.item_id: record for record in records}
        self.removed = list(removed)
        self._lines: dict[str, tuple[Record, str]] = {}

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def stems(self) -> set[str]:
        """Paths that are taken, in lower case and without endings."""
        return {record.stem.lower() for record in self}

    def forget(self, gone: Iterable[Record]) -> None:
        """Move records to the history; each has lost its paths already."""
        for record in gone:
            self.records.pop(record.item_id, None)
            self.removed.append(record)
        del self.removed[:-MAX_HISTORY]

    def encoded(self, session_id: str) -> bytes:
        """Write the index, a line to each item, so that a tool that reads by lines can show a part of it."""
        head = json.dumps({"schema_version": SCHEMA_VERSION, "session_id": session_id})[:-1]
        self._lines = {record.item_id: self._line(record) for record in self}
        items = ",\n".join(line for _, line in self._lines.values())
        removed = ",\n".join(json.dumps(record.dump()) for record in self.removed)
        return f'{head}, "items": [\n{items}\n], "removed": [\n{removed}\n]}}\n'.encode()

    def _line(self, record: Record) -> tuple[Record, str]:
        """Write a record, once: hundreds are written again and again, and few are new."""
        known = self._lines.get(record.item_id)
        return known if known is not None and known[0] is record else (record, json.dumps(record.dump()))


def decoded(data: bytes) -> Index:
    """Read an index; raises `Unreadable` for one that is cut off or was not written here."""
    try:
        state: Mapping[str, Any] = json.loads(data)
        if state["schema_version"] != SCHEMA_VERSION:
            raise Unreadable(f"an index of version {state['schema_version']!r}")
        return Index(map(Record.load, state["items"]), map(Record.load, state["removed"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(error)) from error


def recovered(index: Index | None, handle: FsHandle) -> tuple[Index, bool]:
    """Compare an index with the files that are there; return a true one, and whether it differs.

    Without an index all is read anew. Files that no record names, as a kill between file and index leaves them, are
    taken in, or removed if the index knows the item elsewhere. Records without a file are dropped. Texts that are
    missing or cut off are written again.
    """
    files = {meta["path"][1:]: meta for meta in handle.list("/")}
    old = index or Index()
    kept = {
        record.item_id: record for record in old if record.path in files and _has_text(handle, record, files, mend=True)
    }
    known = {record.path for record in kept.values()}
    found = [record for path in files if path not in known and (record := _read(handle, path)) is not None]
    for record in sorted(found, key=lambda record: record.offloaded_at):
        if record.item_id in kept and kept[record.item_id].stem == record.stem:
            handle.delete(f"/{record.path}")  # the same one, compressed or not
        elif record.item_id in kept:
            remove_files(handle, record)
        elif _has_text(handle, record, files, mend=True):
            kept[record.item_id] = record
    return Index(kept.values(), old.removed), index is None or [*kept.values()] != [*old]


def check_integrity(index: Index, handle: FsHandle) -> list[str]:
    """Compare the records with the files that they lead to; every line is a violation."""
    files = {meta["path"][1:]: meta for meta in handle.list("/")}
    problems = []
    for record in index:
        if record.path not in files or not _has_text(handle, record, files, mend=False):
            problems.append(f"{record.item_id} leads to nothing")
        elif (true := _read(handle, record.path)) is None or true != record:
            problems.append(f"{record.item_id} is not what its file says")
    if len(index.stems()) != len(index.records):
        problems.append("two items share a name")
    unlisted = files.keys() - {INDEX} - {path for record in index for path in (record.path, record.text_path)}
    return [*problems, *(f"{path} belongs to no item" for path in sorted(unlisted))]


def remove_files(handle: FsHandle, record: Record) -> None:
    """Remove both files of an item: the text first, for without the JSON nobody would know what it is."""
    for path in (record.text_path, record.path):
        with suppress(NotFoundError):
            handle.delete(f"/{path}")


def _read(handle: FsHandle, path: str) -> Record | None:
    """Make a record of a file that holds an item; None for any other file."""
    if path == INDEX or not path.endswith((".json", ".json.gz")):
        return None
    try:
        data = handle.read_binary(f"/{path}")
        document = read_document(data)
        return document.record(path, len(data) + len(document.text()))
    except (Unreadable, FileSystemError):
        return None


def _has_text(handle: FsHandle, record: Record, files: Mapping[str, EntryMeta], *, mend: bool) -> bool:
    """Say whether the text is there in its full length; write it again if it is not, for no write waits for it."""
    text = files.get(record.text_path or "")
    if text is not None and text["size"] == record.size:
        return True
    try:
        if mend:
            document = read_document(handle.read_binary(f"/{record.path}"))
            with suppress(OSError):  # a full disk; the item itself can be read all the same
                handle.write(f"/{record.text_path}", document.text())
    except (Unreadable, FileSystemError):
        return False
    return mend
