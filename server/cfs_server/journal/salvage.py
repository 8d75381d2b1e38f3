"""Reads what can be read of a damaged file, page by page, and sets the file aside. Nothing is deleted.

SQLite gives up a table at its first damaged page. This module reads each page by itself, in the file and in its
write-ahead log, as SQLite documents their format, and takes the rows whose checksum is right. Rows never change, so an
old image of a page does no harm. A session whose rows are all there is kept as it is. Any other one begins again
with the messages that could be read, and with another key, so that no reader takes it for the old one.
"""

import json
import mmap
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cfs.wire import Message, Settings
from cfs_server.domain.changes import Created, Record, Renamed, SettingsChanged
from cfs_server.domain.events import Event, new_nonce
from cfs_server.domain.ids import ancestors_of
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.state import Head, SessionState
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.journal.journal import Batch, Kept
from cfs_server.journal.records import (
    DELETED,
    HISTORY,
    Row,
    UnknownRecord,
    decode,
    decode_change,
    decode_head,
    decode_messages,
    encode,
    encode_head,
)
from cfs_server.journal.sqlite_file import FRAME_HEADER, PAGE, WAL_HEADER, checksum

_CREATED = HISTORY[0]
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8}
_CONSTANTS = {0: None, 8: 0, 9: 1}
_UNREADABLE = (IndexError, KeyError, ValueError, TypeError, struct.error, RecursionError)


# -- pages ------------------------------------------------------------------------------------------------------------


class _Pages:
    """All images of the pages of a file: those in the file, then those in its WAL."""

    def __init__(self, path: Path) -> None:
        data, log = _mapped(path), _mapped(path.with_name(f"{path.name}-wal"))
        self._size = len(data) + len(log)
        self._images: dict[int, list[memoryview]] = {}
        for number, at in enumerate(range(0, len(data), PAGE), 1):
            self._images.setdefault(number, []).append(data[at : at + PAGE])
        salts = log[WAL_HEADER + 8 : WAL_HEADER + 16]
        for at in range(WAL_HEADER, len(log), FRAME_HEADER + PAGE):
            if log[at + 8 : at + 16] == salts:
                (number,) = struct.unpack_from(">I", log, at)
                self._images.setdefault(number, []).append(log[at + FRAME_HEADER : at + FRAME_HEADER + PAGE])

    def cells(self) -> Iterator[tuple[int | None, list[Any]]]:
        """Yield the rows of all images of all pages, with their rowid if they are of a table. Some may be wrong."""
        for number, images in self._images.items():
            for image in images:
                yield from self._cells_of(bytes(image), 100 if number == 1 else 0)

    def _cells_of(self, page: bytes, at: int) -> Iterator[tuple[int | None, list[Any]]]:
        if len(page) < PAGE or page[at] not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        kind, (count,) = page[at], struct.unpack_from(">H", page, at + 3)
        pointers = at + (12 if kind == _INDEX_INTERIOR else 8)
        for cell in range(min(count, (PAGE - pointers) // 2)):
            with suppress(*_UNREADABLE):
                (start,) = struct.unpack_from(">H", page, pointers + 2 * cell)
                yield from self._cell(page, kind, start + (4 if kind == _INDEX_INTERIOR else 0))

    def _cell(self, page: bytes, kind: int, at: int) -> Iterator[tuple[int | None, list[Any]]]:
        size, at = _varint(page, at)
        rowid: int | None = None
        most = (PAGE - 12) * 64 // 255 - 23
        if kind == _TABLE_LEAF:
            (rowid, at), most = _varint(page, at), PAGE - 35
        least = (PAGE - 12) * 32 // 255 - 23
        local = least + (size - least) % (PAGE - 4)
        if size > self._size:
            raise ValueError("the row is longer than the file")
        if size <= most:
            yield rowid, _values(page[at : at + size])
            return
        local = local if local <= most else least
        (overflow,) = struct.unpack_from(">I", page, at + local)
        for which in (-1, 0):  # the newest images of the other pages, then the oldest ones
            yield rowid, _values(page[at : at + local] + self._overflow(overflow, size - local, which))

    def _overflow(self, number: int, size: int, which: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            page = self._images[number][which]
            (number,) = struct.unpack_from(">I", page)
            found += page[4 : 4 + min(size - len(found), PAGE - 4)]
        return bytes(found)


def _mapped(path: Path) -> memoryview:
    if not path.exists() or not path.stat().st_size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        value = (value << 7) | (data[place] & 0x7F)
        if data[place] < 0x80:
            return value, place + 1
    return (value << 8) | data[at + 8], at + 9


def _values(payload: bytes) -> list[Any]:
    """Return the columns of a row."""
    end, at = _varint(payload, 0)
    body, values = end, []
    while at < end:
        kind, at = _varint(payload, at)
        size = _WIDTHS.get(kind, max(kind - 12, 0) // 2)
        data, body = payload[body : body + size], body + size
        if len(data) < size:
            raise ValueError("the row is longer than its page")
        values.append(_value(kind, data))
    return values


def _value(kind: int, data: bytes) -> Any:
    if kind >= 12:
        return data.decode() if kind % 2 else data
    if kind == 7:
        return struct.unpack(">d", data)[0]
    return _CONSTANTS[kind] if kind in _CONSTANTS else int.from_bytes(data, "big", signed=True)


# -- rows -------------------------------------------------------------------------------------------------------------


class _Content:
    """The rows of all tables. A session has a number in the file, and perhaps several keys in damaged rows."""

    def __init__(self, pages: _Pages) -> None:
        self.sessions: set[str] = set()
        self.heads: dict[str, Head] = {}
        self.kept: dict[tuple[str, str], str] = {}
        self.rows: dict[str, dict[int, Row]] = defaultdict(dict)
        self.indexed: dict[str, set[int]] = defaultdict(set)
        self.gone: set[str] = set()
        keys: dict[int, set[str]] = defaultdict(set)
        known, deleted = set[int](), set[int]()
        records: dict[tuple[int, int], set[tuple[Any, ...]]] = defaultdict(set)
        index: dict[int, set[int]] = defaultdict(set)
        for rowid, values in pages.cells():
            match rowid, values:
                case int(), [None, int(session), at, str(kind), _, _, body, _, _, _, int()]:
                    records[session, rowid].add((rowid, float(at), *values[3:]))
                    if kind == _CREATED:
                        with suppress(*_UNREADABLE):
                            keys[session].add(json.loads(body)["key"])
                case int(), [None, str(key), int(seq), head, int(total), mark]:
                    keys[rowid].add(key)
                    known.add(rowid)
                    deleted |= set() if mark is None else {rowid}
                    if isinstance(head, str) and checksum(key, seq, head) == total:
                        self._take_head(head)
                case None, [str(space), str(name), str(value), int(total)]:
                    if checksum(space, name, value) == total:
                        self.kept[space, name] = value
                case None, [str(key), int(session)]:
                    keys[session].add(key)
                case None, [int(session), int(seq)]:
                    index[session].add(seq)
        for (session, seq), images in records.items():
            for image in images:
                for key in keys[session]:
                    row = Row(seq, key, *image[1:-1])
                    if checksum(*row) == image[-1]:
                        self.sessions.add(key)
                        self.rows[key][seq] = row
        for session, names in keys.items():
            for key in names:
                self.indexed[key] |= index[session]
                if session in deleted or any(row.kind == DELETED for row in self.rows[key].values()):
                    self.gone.add(key)
        self.lost = sum(not keys[session] & self.sessions for session in known - deleted)

    def _take_head(self, text: str) -> None:
        with suppress(*_UNREADABLE, UnknownRecord):
            head = decode_head(text)
            self.sessions.add(head.key)
            if head.key not in self.heads or head.seq >= self.heads[head.key].seq:
                self.heads[head.key] = head


def _is_whole(head: Head | None, rows: Sequence[Row], indexed: set[int]) -> bool:
    """Return whether a session can be restored as it was: no row that is needed is missing or unreadable."""
    if not rows or rows[0].kind != _CREATED:
        return False
    seq, number = (0, 0) if head is None else (head.seq, head.number)
    tail = [row for row in rows if row.seq > seq]
    try:
        for row in tail:
            number += len(decode(row).events)
            if row.number != number:
                return False
        begins_at = rows[0].seq if head is None else head.history.begins_at
        before = [row for row in rows if begins_at <= row.seq <= seq and row.kind in HISTORY]
        count = sum(len(decode_messages(row)) for row in before)
    except (*_UNREADABLE, UnknownRecord):
        return False
    missing = {each for each in indexed if each > seq} - {row.seq for row in tail}
    return not missing and count == (0 if head is None else head.history.count)


# -- sessions ---------------------------------------------------------------------------------------------------------


@dataclass
class Salvaged:
    """What was read: batches for a new file, and a report in sentences."""

    batches: list[Batch]
    report: list[str]


class _Writer:
    """Numbers the rows of sessions that begin again after all others."""

    def __init__(self, content: _Content) -> None:
        rows = [row for rows in content.rows.values() for row in rows.values()]
        self._seq = max((row.seq for row in rows), default=0)
        self._seq = max([self._seq, *(head.seq for head in content.heads.values())])
        self._position = max((row.position for row in rows), default=0)

    def created(self, name: str, owner: str, settings: Settings, history: SizedMessages | None = None) -> Row:
        """Return the row of a new session."""
        self._seq += 1
        self._position += 1
        at = time.time()
        change = Created(name, uuid.uuid4().hex, new_nonce(), owner, settings, history or SizedMessages())
        blank = SessionState()
        blank.account = StorageUsage(owner, Quota())
        (draft,) = change.apply(blank, at)
        event = Event(draft.type, draft.session, 1, self._position, at, draft.data)
        return encode(self._seq, Record(change.key, at, change, (event,), None, 1, self._position))


def _changes(rows: Iterable[Row]) -> Iterator[Any]:
    for row in rows:
        with suppress(*_UNREADABLE, UnknownRecord):
            yield decode_change(row)


def _remains(head: Head | None, rows: Sequence[Row]) -> tuple[str, str, Settings, SizedMessages]:
    """Return what can be read of a session: its id, its owner, its settings and its messages with their times."""
    name, owner, settings = "", "the server", Settings()
    if head is not None:
        name, owner, settings = head.id, head.owner, head.settings
    for change in _changes(row for row in rows if head is None or row.seq > head.seq):
        if isinstance(change, Created):
            name, owner, settings = change.id, change.owner, change.settings
        elif isinstance(change, Renamed):
            name = change.id
        elif isinstance(change, SettingsChanged):
            settings = change.settings
    begins = [n for n, row in enumerate(rows) if row.kind in HISTORY[:2]]
    found: list[tuple[Message, float]] = []
    for row in rows[begins[-1] if begins else 0 :]:
        if row.kind in HISTORY:
            with suppress(*_UNREADABLE, UnknownRecord):
                found += decode_messages(row)
    history = replace(SizedMessages.of(message for message, _ in found), times=tuple(at for _, at in found))
    return name, owner, settings, history


def salvage(path: Path) -> Salvaged:
    """Read all sessions that a damaged file contains. Deleted ones stay deleted. Raises `OSError`."""
    content = _Content(_Pages(path))
    writer, batches, names = _Writer(content), list[Batch](), set[str]()
    broken: list[tuple[str, Head | None, list[Row]]] = []
    for key in content.sessions - content.gone:
        head, rows = content.heads.get(key), sorted(content.rows[key].values())
        if _is_whole(head, rows, content.indexed[key]):
            batches.append(Batch(rows, heads=[] if head is None else [(key, head.seq, encode_head(head))]))
            names.add(_remains(head, rows)[0])
        else:
            broken.append((key, head, rows))
    report = [f"{len(names)} sessions are complete, {len(broken)} are not, and {content.lost} are lost"]
    for key, head, rows in broken:
        name, owner, settings, history = _remains(head, rows)
        if not name or name in names:
            name = f"recovered-{key[:8]}"
        names.add(name)
        batches.append(Batch([writer.created(name, owner, settings, history)]))
        report.append(f"session {name!r} begins again with {len(history.messages)} messages")
    missing = {above for name in names for above in ancestors_of(name)} - names
    batches += [Batch([writer.created(name, "the server", Settings())]) for name in sorted(missing)]
    batches.append(Batch(kept=[Kept(space, name, value) for (space, name), value in content.kept.items()]))
    return Salvaged(batches, report)


def set_aside(path: Path, salvaged: Path) -> None:
    """Put the salvaged file in the place of a damaged one, which gets another name. Can be done again after a crash."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for end in ("-wal", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
    salvaged.rename(path)
