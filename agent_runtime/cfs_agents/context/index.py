"""The index of the items that a session has stored."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cfs_agents.context.documents import SCHEMA_VERSION, ItemRecord, Unreadable, read_document
from cfs_filesystem import FileSystemError, FsHandle, NotFoundError

INDEX = "index.json"
MAX_HISTORY = 1_000
"""How many removed items are remembered."""


class Index:
    """Records by item id, in the order of off-loading, and records of removed items."""

    def __init__(self, records: Iterable[ItemRecord] = (), removed: Iterable[ItemRecord] = ()) -> None:
        self.records = {record.item_id: record for record in records}
        self.removed = list(removed)
        self._lines: dict[str, tuple[ItemRecord, str]] = {}

    def __iter__(self) -> Iterator[ItemRecord]:
        return iter(self.records.values())

    def stems(self) -> set[str]:
        """Paths that are taken, in lower case and without endings."""
        return {record.stem.lower() for record in self}

    def forget(self, gone: Iterable[ItemRecord]) -> None:
        """Move records, whose paths are cleared already, to the removed ones."""
        for record in gone:
            self.records.pop(record.item_id, None)
            self.removed.append(record)
        del self.removed[:-MAX_HISTORY]

    def encoded(self, session_id: str) -> bytes:
        """Return the index as JSON with a line for each item, so that a tool that reads by lines can show a part."""
        head = json.dumps({"schema_version": SCHEMA_VERSION, "session_id": session_id})[:-1]
        self._lines = {record.item_id: self._line(record) for record in self}
        items = ",\n".join(line for _, line in self._lines.values())
        removed = ",\n".join(json.dumps(record.dump()) for record in self.removed)
        return f'{head}, "items": [\n{items}\n], "removed": [\n{removed}\n]}}\n'.encode()

    def _line(self, record: ItemRecord) -> tuple[ItemRecord, str]:
        """Return a record's line, encoded once: an index of hundreds is written often, and few records are new."""
        cached = self._lines.get(record.item_id)
        return cached if cached is not None and cached[0] is record else (record, json.dumps(record.dump()))


def decoded(data: bytes) -> Index:
    """Read an index; raises `Unreadable` if it is cut off or not ours."""
    try:
        state: Mapping[str, Any] = json.loads(data)
        if state["schema_version"] != SCHEMA_VERSION:
            raise Unreadable(f"an index of version {state['schema_version']!r}")
        return Index(map(ItemRecord.load, state["items"]), map(ItemRecord.load, state["removed"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(error)) from error


def rebuilt(handle: FsHandle, previous: Index, put_aside: Callable[[str], object]) -> Index:
    """Return the index of the items that are on disk; `previous` is the last index.

    Every item is read. If a crash left one in two places, the place that `previous` names stays, else the older one.
    Texts that are missing or differ are written again. What is in the way of one is `put_aside`.
    """
    sizes = {meta["path"][1:]: meta["size"] for meta in handle.list("/")}
    named = {record.path for record in previous}
    records = [record for path in sizes if (record := _read(handle, path, sizes, put_aside)) is not None]
    by_id: dict[str, ItemRecord] = {}
    for record in sorted(records, key=lambda record: (record.path not in named, record.time)):
        other = by_id.setdefault(record.item_id, record)
        if other is not record and other.stem == record.stem:
            handle.delete(f"/{record.path}")  # the same one, compressed or not
        elif other is not record:
            remove_files(handle, record)
    return Index(sorted(by_id.values(), key=lambda record: record.time), previous.removed)


def check_integrity(index: Index, handle: FsHandle) -> list[str]:
    """Compare the index with the files; each line is a violation."""
    sizes = {meta["path"][1:]: meta["size"] for meta in handle.list("/")}
    problems = []
    for record in index:
        if record.path not in sizes or sizes.get(record.text_path or "") != record.size:
            problems.append(f"{record.item_id} leads to nothing")
        elif _read(handle, record.path, sizes) != record:
            problems.append(f"{record.item_id} is not what its file says")
    if len(index.stems()) != len(index.records):
        problems.append("two items share a name")
    listed = {INDEX} | {path for record in index for path in (record.path, record.text_path)}
    unlisted = {path for path in sizes if ".aside-" not in path} - listed
    return [*problems, *(f"{path} belongs to no item" for path in sorted(unlisted))]


def remove_files(handle: FsHandle, record: ItemRecord) -> None:
    """Remove both files of an item, the text first, so that no text is left without its JSON."""
    for path in (record.text_path, record.path):
        with suppress(NotFoundError):
            handle.delete(f"/{path}")


def _read(
    handle: FsHandle, path: str, sizes: Mapping[str, int], put_aside: Callable[[str], object] = lambda _: None
) -> ItemRecord | None:
    """Read an item, and write its text again where that is missing or differs, as no write waits for it.

    Return None for a file that holds no item.
    """
    if path == INDEX or not path.endswith((".json", ".json.gz")):
        return None
    try:
        data = handle.read_binary(f"/{path}")
        document = read_document(data)
    except (Unreadable, FileSystemError, OSError):
        return None
    record = document.record(path, len(data) + len(document.text()))
    text = record.text_path or ""
    if sizes.get(text) != record.size or not _holds(handle, text, document.text()):
        with suppress(OSError, FileSystemError):  # a full disk; the item itself can be read all the same
            try:
                handle.write(f"/{text}", document.text())
            except (OSError, FileSystemError):
                put_aside(text)
                handle.write(f"/{text}", document.text())
    return record


def _holds(handle: FsHandle, path: str, content: bytes) -> bool:
    with suppress(OSError, FileSystemError):
        return handle.read_binary(f"/{path}") == content
    return False
