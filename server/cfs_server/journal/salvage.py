"""Reads what can be read of a damaged file, page by page, and sets the file aside. Nothing is deleted.

SQLite gives up a table at its first damaged page. This module reads each page by itself, in the file and in its
write-ahead log, as SQLite documents their format, and takes the rows whose checksum is right. Rows never change, so an
old image of a page does no harm. A session whose rows are all there is kept as it is. Any other one begins again
with the messages that could be read, and with another key, so that no reader takes it for the old one.
"""

import json
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
from cfs_server.domain.events import LoggedEvent, new_nonce
from cfs_server.domain.ids import ancestors_of
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.state import Head, SessionState
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.journal.journal import Batch, StoredDocument
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
from cfs_server.journal.sqlite_file import checksum
from cfs_server.journal.sqlite_pages import UNREADABLE, Pages

_CREATED = HISTORY[0]


class _SalvagedRows:
    """The rows of all tables. A session has a number in the file, and perhaps several keys in damaged rows."""

    def __init__(self, pages: Pages) -> None:
        self.sessions: set[str] = set()
        self.heads: dict[str, Head] = {}
        self.kept: dict[tuple[str, str], str] = {}
        self.rows: dict[str, dict[int, Row]] = defaultdict(dict)
        self.indexed: dict[str, set[int]] = defaultdict(set)
        self.gone: set[str] = set()
        keys: dict[int, set[str]] = defaultdict(set)
        sessions, deleted = set[int](), set[int]()
        records: dict[tuple[int, int], set[tuple[Any, ...]]] = defaultdict(set)
        index: dict[int, set[int]] = defaultdict(set)
        for rowid, values in pages.cells():
            match rowid, values:
                case int(), [None, int(session), at, str(kind), _, _, body, _, _, _, int()]:
                    records[session, rowid].add((rowid, float(at), *values[3:]))
                    if kind == _CREATED:
                        with suppress(*UNREADABLE):
                            keys[session].add(json.loads(body)["key"])
                case int(), [None, str(key), int(seq), head, int(total), mark]:
                    keys[rowid].add(key)
                    sessions.add(rowid)
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
        self.lost = sum(not keys[session] & self.sessions for session in sessions - deleted)

    def _take_head(self, text: str) -> None:
        with suppress(*UNREADABLE, UnknownRecord):
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
    except (*UNREADABLE, UnknownRecord):
        return False
    missing = {index_seq for index_seq in indexed if index_seq > seq} - {row.seq for row in tail}
    return not missing and count == (0 if head is None else head.history.count)


@dataclass
class Salvaged:
    """What was read: batches for a new file, and a report in sentences."""

    batches: list[Batch]
    report: list[str]


class _Writer:
    """Numbers the rows of sessions that begin again after all others."""

    def __init__(self, content: _SalvagedRows) -> None:
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
        event = LoggedEvent(draft.type, draft.session, 1, self._position, at, draft.data)
        return encode(self._seq, Record(change.key, at, change, (event,), None, 1, self._position))


def _changes(rows: Iterable[Row]) -> Iterator[Any]:
    for row in rows:
        with suppress(*UNREADABLE, UnknownRecord):
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
    messages: list[tuple[Message, float]] = []
    for row in rows[begins[-1] if begins else 0 :]:
        if row.kind in HISTORY:
            with suppress(*UNREADABLE, UnknownRecord):
                messages += decode_messages(row)
    history = replace(SizedMessages.of(message for message, _ in messages), times=tuple(at for _, at in messages))
    return name, owner, settings, history


def salvage(path: Path) -> Salvaged:
    """Read all sessions that a damaged file contains. Deleted ones stay deleted. Raises `OSError`."""
    content = _SalvagedRows(Pages(path))
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
    batches.append(Batch(kept=[StoredDocument(space, name, value) for (space, name), value in content.kept.items()]))
    return Salvaged(batches, report)


def set_aside(path: Path, salvaged: Path) -> None:
    """Put the salvaged file in the place of a damaged one, which gets another name. Can be done again after a crash."""
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    for end in ("-wal", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
    salvaged.rename(path)
