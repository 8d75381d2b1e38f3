"""The index of words in the file of sessions: FTS5 without content, since the records contain the messages.

Messages are indexed some at a time, after the commits that store them, and before each search: so no search misses a
message, and no commit waits for the index. The number of the last indexed record is stored with each step. The index of
an older file is built in the same way.

A document is a message. Its text begins with words for its role and its session, which no message can contain. Those
of deleted sessions are taken out. FTS5 keeps the words of a document that is taken out until it merges its segments, so
all segments are merged afterwards, step by step.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

from cfs.wire import Message
from cfs_server.domain.words import FORMAT, Criteria, document_words, parts_of
from cfs_server.journal.journal import Hit, Hits, StoreDamaged
from cfs_server.journal.records import HISTORY, Row, decode_messages
from cfs_server.journal.sqlite_file import ROW, read_row

AT_ONCE = 64
"""Records with messages that wait for the index at most, unless it is being built."""
_STEP_ROWS, _STEP_BYTES, _STEP_SPAN = 200, 1 << 17, 5_000
"""What one step looks at: records with messages, their text, and all records. A step delays the next commit."""
_MERGED_PAGES = 64
_TABLES = (
    "CREATE VIRTUAL TABLE search_words USING fts5(text, content='', columnsize=0, tokenize='ascii')",
    "CREATE TABLE search_documents (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, part INTEGER NOT NULL)",
)
_BEGINS = HISTORY[:2]
_FORMAT, _SEQ, _EPOCH, _PURGE = "search.format", "search.seq", "search.epoch", "search.purge"
"""Names in `meta`: how texts are divided, the last indexed record, the last epoch in which the index was cared for,
and whether words of deleted messages are still in it."""


class SqliteIndex:
    """The index of one file. All methods run in the journal's thread; those that write, in a transaction."""

    def __init__(self) -> None:
        self._seq = 0
        self._stale = True
        """Whether the index must be built anew."""
        self.waiting = 0
        """Records with messages that have been stored since the last step."""
        self.behind = True
        """Whether there are more than those."""
        self.purging = False
        """Whether words of deleted messages are still in it."""

    def load(self, connection: sqlite3.Connection, meta: dict[str, str]) -> None:
        """Read how far the index is. One that another version of CFS has not cared for is built anew."""
        last = connection.execute("SELECT label FROM epochs ORDER BY rowid DESC LIMIT 1").fetchone()
        self._stale = meta.get(_FORMAT) != FORMAT or last is None or meta.get(_EPOCH) != last[0]
        self._seq = 0 if self._stale else int(meta[_SEQ])
        self.purging = not self._stale and meta.get(_PURGE) == "1"

    def begin_epoch(self, connection: sqlite3.Connection, label: str) -> None:
        """Note that this program has the file from now on."""
        if not self._stale:
            _note(connection, _EPOCH, label)

    def discard(self) -> None:
        """Build the index anew: it is damaged."""
        self._stale, self._seq, self.behind, self.purging = True, 0, True, False

    def step(self, connection: sqlite3.Connection) -> None:
        """Index some records."""
        if self._stale:
            self._create(connection)
        (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()
        end = min(last, self._seq + _STEP_SPAN)
        size = count = 0
        with closing(connection.cursor()) as cursor:
            for *values, deleted in cursor.execute(
                f"SELECT {ROW}, deleted FROM records JOIN sessions ON session = id WHERE records.seq > ?"  # noqa: S608
                " AND records.seq <= ? AND kind IN (?, ?, ?) ORDER BY records.seq",
                (self._seq, end, *HISTORY),
            ):
                with suppress(StoreDamaged):  # reads of it say so
                    if deleted is None:
                        self._add(connection, read_row(values))
                self._seq, count, size = values[0], count + 1, size + len(values[6])
                if count == _STEP_ROWS or size >= _STEP_BYTES:
                    break
            else:
                self._seq = max(self._seq, end)
        _note(connection, _SEQ, str(self._seq))
        self.behind = self._seq < last
        self.waiting = max(0, self.waiting - count) if self.behind else 0

    def _create(self, connection: sqlite3.Connection) -> None:
        for name in ("search_words", "search_documents"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in _TABLES:
            connection.execute(statement)
        (label,) = connection.execute("SELECT label FROM epochs ORDER BY rowid DESC LIMIT 1").fetchone()
        for name, value in ((_FORMAT, FORMAT), (_SEQ, "0"), (_EPOCH, label), (_PURGE, "0")):
            _note(connection, name, value)
        self._stale, self._seq = False, 0

    def _add(self, connection: sqlite3.Connection, row: Row) -> None:
        if row.kind == _BEGINS[1]:
            self._remove(connection, _former(connection, row))
        for part, (message, _) in enumerate(decode_messages(row)):
            if text := _text(row, message):
                number = connection.execute(
                    "INSERT INTO search_documents (seq, part) VALUES (?, ?)", (row.seq, part)
                ).lastrowid
                connection.execute("INSERT INTO search_words (rowid, text) VALUES (?, ?)", (number, text))

    def remove(self, connection: sqlite3.Connection, records: Iterable[Sequence[Any]]) -> None:
        """Take the messages of some records out, before the records are deleted. `merge` then removes their words."""
        if self._stale:
            return
        try:
            count = self._remove(connection, [read_row(values) for values in records])
        except StoreDamaged:  # then it is unknown which words to take out
            connection.execute("DELETE FROM meta WHERE name = ?", (_FORMAT,))
            self.discard()
            return
        if count and not self.purging:
            _note(connection, _PURGE, "1")
            self.purging = True

    def _remove(self, connection: sqlite3.Connection, rows: Iterable[Row]) -> int:
        count = 0
        for row in rows:
            documents = _documents(connection, row.seq)
            messages = decode_messages(row) if documents else []
            for number, part in documents:
                text = _text(row, messages[part][0])
                connection.execute(
                    "INSERT INTO search_words (search_words, rowid, text) VALUES ('delete', ?, ?)", (number, text)
                )
            connection.execute(
                "DELETE FROM search_documents WHERE id BETWEEN ? AND ?",
                (documents[0][0], documents[-1][0]) if documents else (0, -1),
            )
            count += len(documents)
        return count

    def merge(self, connection: sqlite3.Connection, *, first: bool) -> bool:
        """Rewrite some pages without the words of deleted messages. Returns whether there are more."""
        before = connection.total_changes
        pages = -_MERGED_PAGES if first else _MERGED_PAGES
        connection.execute("INSERT INTO search_words (search_words, rank) VALUES ('merge', ?)", (pages,))
        if connection.total_changes - before >= 2:
            return True
        _note(connection, _PURGE, "0")
        self.purging = False
        return False

    def search(
        self,
        connection: sqlite3.Connection,
        criteria: Criteria,
        keys: Sequence[str] | None,
        before: int | None,
        max_hits: int,
    ) -> Hits:
        """Return messages that match; see `Backend.search`."""
        if self._stale:
            return Hits(behind=True)
        numbers = [
            number
            for part in parts_of(keys)
            for (number,) in connection.execute(
                "SELECT rowid FROM search_words WHERE search_words MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?",
                (expression(criteria, part), 1 << 62 if before is None else before, max_hits),
            )
        ]
        numbers = sorted(numbers, reverse=True)[:max_hits]
        hits = [
            Hit(read_row(values), part)
            for part, *values in connection.execute(
                f"SELECT part, {ROW} FROM search_documents JOIN records ON records.seq = search_documents.seq"  # noqa: S608
                " JOIN sessions ON session = sessions.id"
                f" WHERE search_documents.id IN ({','.join(map(str, numbers))}) AND deleted IS NULL"
                " ORDER BY search_documents.id DESC",
            )
        ]
        recent = [hit for hit in hits if hit.row.at >= criteria.since]
        more = len(numbers) == max_hits and (len(recent) > 0 or not hits)
        return Hits(recent, numbers[-1] if more else None, self.behind)


def expression(criteria: Criteria, keys: Sequence[str] | None) -> str:
    """Return a query of FTS5. Words have no characters that mean something there."""
    terms = [f'"{" ".join(term.words)}"' + (" *" if term.prefix else "") for term in criteria.query.terms]
    terms += ["(" + " OR ".join(f'"{word}"' for word in words) + ")" for words in criteria.alternatives(keys)]
    return " AND ".join(terms)


def _text(row: Row, message: Message) -> str:
    return " ".join(document_words(message.role, row.session, message.content))


def _former(connection: sqlite3.Connection, row: Row) -> list[Row]:
    """Return the records of the history that a record replaces."""
    rows: list[Row] = []
    for values in connection.execute(
        f"SELECT {ROW} FROM sessions JOIN records ON session = id WHERE key = ? AND records.seq < ?"  # noqa: S608
        " AND kind IN (?, ?, ?) ORDER BY records.seq DESC",
        (row.session, row.seq, *HISTORY),
    ):
        rows.append(read_row(values))
        if rows[-1].kind in _BEGINS:
            break
    return rows


def _documents(connection: sqlite3.Connection, seq: int) -> list[tuple[int, int]]:
    """Return the documents of a record with their parts, by bisection: their numbers grow with those of the records."""
    low, high = 1, connection.execute("SELECT coalesce(max(id), 0) + 1 FROM search_documents").fetchone()[0]
    while low < high:
        middle = (low + high) // 2
        entry = connection.execute(
            "SELECT id, seq FROM search_documents WHERE id >= ? ORDER BY id LIMIT 1", (middle,)
        ).fetchone()
        if entry is None or entry[1] >= seq:
            high = middle
        else:
            low = entry[0] + 1
    entries = connection.execute("SELECT id, part, seq FROM search_documents WHERE id >= ? ORDER BY id", (low,))
    documents: list[tuple[int, int]] = []
    for number, part, record in entries:
        if record != seq:
            break
        documents.append((number, part))
    return documents


def _note(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
