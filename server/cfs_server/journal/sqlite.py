"""Stores the journal in one SQLite file: one process, one connection, one thread.

The file is locked as long as it is open, and the kernel releases the lock with the process, however it ends. The
write-ahead log (WAL) is copied into the file between commits, never by SQLite itself, which ignores the errors of that.

A write error is final for this connection: after a failed `fsync` the kernel forgets which pages it could not write, so
a second one would succeed without reason. Only a full disk is tried again.
"""

import ctypes
import os
import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from cfs_server.domain.state import Head
from cfs_server.domain.words import Criteria
from cfs_server.journal.journal import Batch, Hits, Opened, StoreDamaged, StoreFailed, StoreFull
from cfs_server.journal.records import DELETED, HISTORY, TOKENS, Row, decode_head, require_known
from cfs_server.journal.reserve import FULL, MAX_BYTES, Reserve
from cfs_server.journal.salvage import salvage, set_aside
from cfs_server.journal.sqlite_file import (
    ROW,
    checksum,
    connect,
    copy_file,
    make_private,
    opening,
    prepare,
    problems,
    read_row,
    require_local,
    require_store,
)
from cfs_server.journal.sqlite_index import AT_ONCE, SqliteIndex
from cfs_server.journal.sqlite_wal import PAGE, require_whole_wal, size_of, whole_frames

EVENT_WINDOW = 65_536
"""Tokens are pruned when there are this many newer events. The messages that contain their text are not."""
_CREATED = HISTORY[0]
_CHECKED_BYTES = 32 << 20
"""A file up to this size is checked completely at each start, a larger one only if a repair is wanted."""
_WAL_PAGES = 4_000
"""Pages in the WAL after which it is copied into the file."""
_CHUNK = 1_000
"""Records, or pages, that one step of maintenance touches. A step delays the next commit by some milliseconds."""
_COMMIT_BYTES = 1 << 16
"""Room for a deletion."""
_SMALL_CHUNK, _SMALL_WAL_PAGES = 100, 100
"""The same, and the limit of the WAL, while there is only the reserve for them."""
_INSERT = (
    "INSERT INTO records (seq, session, at, kind, version, author, body, events, number, position, sum)"
    " VALUES (?, (SELECT id FROM sessions WHERE key = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_DAMAGED_INDEX = 267
"""SQLITE_CORRUPT_VTAB: the index of words is damaged, and nothing else."""
_CATCH_UP_STEPS = 4
"""Steps of the index that a search waits for."""
_open_files: set[tuple[int, int]] = set()
"""Devices and inodes that this process has open. SQLite's locks do not exclude the process itself."""


class IndexDamaged(StoreFailed):
    """The index of words is damaged. It is built anew, so this is not final."""


class SqliteBackend:
    """A file of sessions. `fast` survives a crash of the process, but may lose the last seconds at a power failure.

    With `repair`, a damaged file is set aside and what can be read of it is copied into a new one.
    """

    durable = True

    def __init__(
        self,
        path: Path,
        *,
        fast: bool = False,
        repair: bool = False,
        event_window: int = EVENT_WINDOW,
        reserve_bytes: int = MAX_BYTES,
    ) -> None:
        self.path = path
        self._fast = fast
        self._repair = repair
        self._window = event_window
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._failure: str | None = None
        self._reserve = Reserve(path, reserve_bytes)
        self.shortage: str | None = None
        self._room_before = 0
        self._epoch: tuple[str, int, int, float] | None = None
        self._position = 0
        self._max_wal_pages = _WAL_PAGES
        self._wal_pages, self._wal_limit = 0, _WAL_PAGES
        """An estimate of the pages in the WAL, and at which estimate it is copied: SQLite tells only then."""
        self._removing: dict[int, int] = {}
        """Deleted sessions that still have records, and the record of the deletion, which stays."""
        self._removed = False
        self._index = SqliteIndex()
        self._merging = False
        self._pruned = self._prune_at = 0

    def open(self) -> Opened:
        """Open or create the file, begin a new epoch and return the content. Raises `StoreFailed`."""
        require_local(self.path)
        salvaged = self.path.with_name(f"{self.path.name}.salvaged")
        with opening(self.path):
            if salvaged.exists():  # a crash came in between
                set_aside(self.path, salvaged)
        try:
            return self._open()
        except StoreDamaged as error:
            if not self._repair:
                raise StoreDamaged(
                    f"{self.path} is damaged: {error}. Start with --store-repair to set the file aside and keep what"
                    " can be read of it, or restore a backup. Nothing has been removed"
                ) from error
            reason = str(error)
        with opening(self.path):
            salvaged_content = salvage(self.path)
            try:
                write_new(salvaged, salvaged_content.batches)
            except StoreFull as error:
                raise StoreFailed(f"{self.path} cannot be repaired: {error}") from error
            set_aside(self.path, salvaged)
        return self._open([f"{self.path} was damaged ({reason}) and has been set aside", *salvaged_content.report])

    def _open(self, repairs: Sequence[str] = ()) -> Opened:
        with opening(self.path):
            connection = self._lock()
        try:
            with opening(self.path):
                opened = self._load(connection, repairs)
        except BaseException as error:
            if isinstance(error, StoreDamaged):
                self._leave_open()
            else:
                self._close()
            raise
        self._max_wal_pages = self._wal_limit = min(
            _WAL_PAGES, max(_SMALL_WAL_PAGES, self._reserve.max_bytes // 2 // PAGE)
        )
        if not self._reserve.restock(size_of(self.path)):
            self._run_short(f"{self.path.parent} has no room for the reserve of the sessions")
        self._epoch = opened.epoch, opened.seq, opened.position, time.time()
        with suppress(StoreFull):  # then the first commit writes the epoch
            self.commit(Batch())
        return opened

    def _lock(self) -> sqlite3.Connection:
        make_private(self.path)
        state = self.path.stat()
        inode = state.st_dev, state.st_ino
        if inode in _open_files:
            raise StoreFailed(f"{self.path} is open in this process already")
        require_store(self.path)
        self._connection, self._inode = connect(self.path), inode
        _open_files.add(inode)
        return self._connection

    def _load(self, connection: sqlite3.Connection, repairs: Sequence[str]) -> Opened:
        prepare(connection, self.path)
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if self._fast else 'FULL'}")
        used = self._copied_frames(connection)
        if not self._fast:
            require_whole_wal(self.path, used)
        if (self._repair or self.path.stat().st_size <= _CHECKED_BYTES) and (damage := problems(connection)):
            raise StoreDamaged(damage[0])
        meta: dict[str, str] = dict(connection.execute("SELECT name, value FROM meta"))
        heads, rows, documents = _heads(connection), _tail(connection), _documents(connection)
        marks = [
            *connection.execute("SELECT seq, position FROM epochs"),
            *connection.execute("SELECT seq, position FROM records ORDER BY seq DESC LIMIT 1"),
            *((head.seq, 0) for head in heads),
        ]
        seq, self._position = (max(column) for column in zip((0, 0), *marks, strict=True))
        self._pruned = int(meta.get("pruned", 0))
        self._index.load(connection, meta)
        self._removing = dict(
            connection.execute(
                "SELECT id, deleted FROM sessions WHERE deleted IS NOT NULL AND EXISTS"
                " (SELECT 1 FROM records WHERE session = id AND records.seq <> deleted)"
            )
        )
        return Opened(secrets.token_hex(4), meta["life"], seq, self._position, heads, rows, documents, repairs)

    def _copied_frames(self, connection: sqlite3.Connection) -> int:
        """Copy the WAL into the file if there is room, and return how many frames SQLite accepts."""
        try:
            ((_, used, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            if not self._is_full(error):
                raise
            used = self._wal_pages = whole_frames(self.path)
        return int(used)

    def close(self) -> None:
        """Finish the maintenance and close the file. After a failure it stays open until the process ends."""
        if self._connection is None or self._failure is not None:
            return
        with suppress(StoreFailed, StoreFull):
            while self.tidy():
                pass
            self._checkpoint("TRUNCATE")
        if self._failure is None:
            self._close()

    def _close(self) -> None:
        if self._connection is not None and self._inode is not None:
            self._connection.close()
            _open_files.discard(self._inode)
            self._connection = self._inode = None

    def _leave_open(self) -> None:
        """Never close the connection, because that writes and synchronizes. The lock ends with the process."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    @property
    def connection(self) -> sqlite3.Connection:
        """The only connection to the file, for use in the thread that opened it."""
        if self._connection is None:
            raise StoreFailed(f"{self.path} is not open")
        return self._connection

    def commit(self, batch: Batch) -> None:
        """Store a batch completely or not at all. Raises `StoreFull` or `StoreFailed`.

        The records of a deleted session are invisible at once; `tidy` removes them. The batch that fills the disk is
        stored with the help of the reserve. After it, only those that free space are.
        """
        if self.shortage is not None and not batch.frees and not self._restock():
            raise StoreFull(self.shortage, reserve=self._reserve.room >= _COMMIT_BYTES)
        while True:
            try:
                return self._commit(batch)
            except StoreFull as error:
                self._run_short(str(error))
                if not self._reserve.spend(last=True):
                    raise

    def _commit(self, batch: Batch) -> None:
        rows = batch.rows
        deleted: list[tuple[int, int]] = []
        with self._transaction() as connection:
            if self._epoch is not None:
                connection.execute("INSERT INTO epochs (label, seq, position, at) VALUES (?, ?, ?, ?)", self._epoch)
                self._index.begin_epoch(connection, self._epoch[0])
            connection.executemany(
                "INSERT INTO sessions (key) VALUES (?)", [(row.session,) for row in rows if row.kind == _CREATED]
            )
            connection.executemany(_INSERT, [(*row, checksum(*row)) for row in rows])
            connection.executemany(
                "UPDATE sessions SET seq = ?, head = ?, sum = ? WHERE key = ? AND deleted IS NULL",
                [(seq, head, checksum(key, seq, head), key) for key, seq, head in batch.heads],
            )
            for row in rows:
                if row.kind == DELETED:
                    mark = "UPDATE sessions SET deleted = ?, head = NULL WHERE key = ?"
                    connection.execute(mark, (row.seq, row.session))
                    deleted += connection.execute("SELECT id, deleted FROM sessions WHERE key = ?", (row.session,))
            connection.executemany(
                "DELETE FROM kept WHERE space = ? AND name = ?",
                [(document.space, document.name) for document in batch.kept],
            )
            connection.executemany(
                "INSERT INTO kept VALUES (?, ?, ?, ?)",
                [(*document, checksum(*document)) for document in batch.kept if document.value is not None],
            )
        self._epoch = None
        self._removing.update(deleted)
        if rows:
            self._position = rows[-1].position
            self._index.waiting += sum(row.kind in HISTORY for row in rows)
        self._wal_pages += 4 + 2 * len(batch.heads) + sum(1 + _size(row) // 4_000 for row in rows)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction. An error of SQLite ends all writing, unless the disk is full."""
        if self._failure is not None:
            raise StoreFailed(self._failure)
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failed(error) from error
            raise

    def _failed(self, error: sqlite3.Error) -> StoreFull | StoreFailed:
        if getattr(error, "sqlite_errorcode", 0) == _DAMAGED_INDEX:
            self._index.discard()
            return IndexDamaged(f"the index of {self.path} is damaged, and is built again")
        if self._is_full(error):
            return StoreFull(f"{self.path}: {error}")
        self._failure = f"{self.path}: {error} ({getattr(error, 'sqlite_errorname', 'unknown')})"
        self._leave_open()
        return StoreFailed(self._failure)

    def _is_full(self, error: sqlite3.Error) -> bool:
        code = getattr(error, "sqlite_errorcode", 0)
        return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR_WRITE and _has_no_room(self.path.parent))

    def _run_short(self, reason: str) -> None:
        """Store only what frees space from now on, until there is a reserve again."""
        if self.shortage is None:
            self.shortage = reason
            self._room_before = self._room - _COMMIT_BYTES
            # zeros in all pages of what is deleted would fill the reserve; the pages leave the file soon anyway
            self._run("PRAGMA secure_delete = FAST")

    @property
    def _room(self) -> int:
        """Return the bytes that the store has and can get: fewer than before if another program has taken some."""
        return size_of(self.path) + self._reserve.room

    def _restock(self) -> bool:
        """Make the reserve again if there is room, which ends a shortage."""
        if not self._reserve.restock(size_of(self.path)):
            return False
        if self.shortage is not None:
            self.shortage = None
            self._run("PRAGMA secure_delete = ON")
        return True

    def tidy(self) -> bool:
        """Do one step of maintenance, and return whether there is more to do. Raises `StoreFailed`.

        Copies the WAL into the file, removes the records of deleted sessions, frees space, and prunes old tokens.
        """
        if self._failure is not None:
            return False
        try:
            limit = self._wal_limit if self.shortage is None else _SMALL_WAL_PAGES
            if self._wal_pages >= limit and self._can_copy():
                self._checkpoint("PASSIVE")
            elif self._removing:
                self._remove(*next(iter(self._removing.items())))
            elif self._index.purging and self.shortage is None:
                self._merge()
            elif self._removed:
                return self._free()
            elif self._can_index and (self._index.behind or self._index.waiting >= AT_ONCE):
                self._index_some()
            elif self._position > max(self._window, self._prune_at):
                self._prune()
            else:
                self._restock()
                return False
        except IndexDamaged:
            return True
        except StoreFull as error:
            self._run_short(str(error))
            return self._reserve.spend(last=self._room >= self._room_before)
        return True

    @property
    def _can_index(self) -> bool:
        return self.shortage is None and self._failure is None

    def _index_some(self) -> None:
        try:
            with self._transaction() as connection:
                self._index.step(connection)
        except StoreFull:
            self._reload_index()
            raise
        self._wal_pages += 100

    def _reload_index(self) -> None:
        """Read again how far the index is, after a step that was not stored."""
        meta: dict[str, str] = dict(self.connection.execute("SELECT name, value FROM meta"))
        self._index.load(self.connection, meta)
        self._index.behind = True

    def _merge(self) -> None:
        """Remove words of deleted messages from the index. Then their pages are freed."""
        with self._transaction() as connection:
            self._merging = self._index.merge(connection, first=not self._merging)
        self._removed = True
        self._wal_pages += 130

    def _can_copy(self) -> bool:
        """Return whether the pages that the file lacks have room during a shortage: part of them would fill it."""
        if self.shortage is None:
            return True
        ((pages,),) = self._run("PRAGMA page_count")
        return pages * PAGE - self.path.stat().st_size <= self._reserve.room

    @property
    def _chunk(self) -> int:
        return _CHUNK if self.shortage is None else _SMALL_CHUNK

    def _checkpoint(self, mode: str) -> None:
        estimate, self._wal_pages = self._wal_pages, 0
        try:
            ((_, used, _),) = self._run(f"PRAGMA wal_checkpoint({mode})")
        except StoreFull:
            self._wal_pages = estimate
            raise
        if used > 0:
            max_pages = self._max_wal_pages
            self._wal_limit = min(max(max_pages, max_pages * estimate // used), 16 * max_pages)

    def _run(self, statement: str) -> list[tuple[int, ...]]:
        try:
            return self.connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _remove(self, session: int, tombstone: int) -> None:
        part = (session, tombstone, chunk := self._chunk)
        some = "SELECT seq FROM records WHERE session = ? AND seq <> ? ORDER BY seq LIMIT ?"
        with self._transaction() as connection:
            rows = connection.execute(
                f"SELECT {ROW} FROM records JOIN sessions ON session = id"  # noqa: S608
                f" WHERE records.seq IN ({some}) AND kind IN (?, ?, ?)",
                (*part, *HISTORY),
            )
            self._index.remove(connection, rows.fetchall())
            removed = connection.execute(f"DELETE FROM records WHERE seq IN ({some})", part).rowcount  # noqa: S608
        self._wal_pages += 4 + removed
        if removed < chunk:
            del self._removing[session]
            self._removed = True

    def _free(self) -> bool:
        """Return free pages to the file system, and finally empty the WAL, which contains what was removed.

        Returns whether anything could be done.
        """
        try:  # `execute` stops after the first page, because it takes its empty row for the last one
            self.connection.executescript(f"PRAGMA incremental_vacuum({self._chunk})")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if self.shortage is not None:
            self._wal_pages += self._chunk
        if self._run("PRAGMA freelist_count")[0][0]:
            return True
        if not self._can_copy():
            return False
        self._checkpoint("TRUNCATE")
        self._removed = False
        return True

    def _prune(self) -> None:
        """Remove old records of deletions, and old tokens that the head of their session includes."""
        with self._transaction() as connection:
            (end,) = connection.execute(
                "SELECT max(seq) FROM (SELECT seq, position FROM records WHERE seq > ? ORDER BY seq LIMIT ?)"
                " WHERE position <= ?",
                (self._pruned, _CHUNK, self._position - self._window),
            ).fetchone()
            tokens = (self._pruned, end, TOKENS)
            (needed,) = connection.execute(
                "SELECT min(records.seq) FROM records JOIN sessions ON session = id"
                " WHERE records.seq > ? AND records.seq <= ? AND kind = ? AND records.seq > sessions.seq",
                tokens,
            ).fetchone()
            connection.execute(
                "DELETE FROM records WHERE seq > ? AND seq <= ? AND kind = ?"
                " AND seq <= (SELECT seq FROM sessions WHERE id = session)",
                tokens,
            )
            tombstones = (self._pruned, end, DELETED)
            connection.execute(
                "DELETE FROM sessions WHERE id IN"
                " (SELECT session FROM records WHERE seq > ? AND seq <= ? AND kind = ?)",
                tombstones,
            )
            connection.execute("DELETE FROM records WHERE seq > ? AND seq <= ? AND kind = ?", tombstones)
            if end is None or needed is not None:
                self._prune_at = self._position + _CHUNK
            if end is not None:
                self._pruned = end if needed is None else needed - 1
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('pruned', ?)", (str(self._pruned),))
        self._wal_pages += _CHUNK // 4

    def rows(self, session: str, begins_at: int, kinds: Iterable[str]) -> list[Row]:
        """Return the rows of a session of these kinds, from a sequence number on, in order."""
        names = tuple(kinds)
        with self._reading() as connection:
            cursor = connection.execute(
                f"SELECT {ROW} FROM sessions JOIN records ON session = id WHERE key = ? AND deleted IS NULL"  # noqa: S608
                f" AND records.seq >= ? AND kind IN ({', '.join('?' * len(names))}) ORDER BY records.seq",
                (session, begins_at, *names),
            )
            return [read_row(values) for values in cursor]

    def orders(self, session: str) -> Mapping[int, int]:  # noqa: ARG002
        """Return nothing: messages and changes of files have the time of one clock."""
        return {}

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:
        """Return messages that may match, newest first; see `Backend.search`. First the index catches up."""
        for _ in range(_CATCH_UP_STEPS):
            if not (self._can_index and (self._index.behind or self._index.waiting)):
                break
            with suppress(StoreFull, IndexDamaged):
                self._index_some()
        try:
            with self._reading() as connection:
                return self._index.search(connection, criteria, keys, before, max_hits)
        except IndexDamaged:
            return Hits(behind=True)

    def events(self, session: str | None, after: int, limit: int) -> list[Row] | None:
        """Return rows with events after a number of a session's log, or after a position of the common log.

        Stops after about `limit` bytes. None if some of these events have been pruned or belong to deleted sessions.
        """
        which, key = ("true", ()) if session is None else ("key = ? AND deleted IS NULL", (session,))
        query = (
            f"SELECT CASE events WHEN '' THEN 0 ELSE json_array_length(events) END, {ROW}"  # noqa: S608
            f" FROM records JOIN sessions ON session = id WHERE {which} AND records.seq >= ?"
            " AND (deleted IS NULL OR records.seq = deleted) ORDER BY records.seq"
        )
        result: list[Row] = []
        size = 0
        with self._reading() as connection, closing(connection.cursor()) as cursor:
            for count, *values in cursor.execute(query, (*key, _first(connection, session, after))):
                row = read_row(values)
                last = row.position if session is None else row.number
                if last - count > after:
                    return None
                if count:
                    result.append(row)
                    after, size = last, size + _size(row)
                    if size >= limit:
                        break
        return result

    def last_of(self, epoch: str, session: str | None) -> int | None:
        """Return the last durable number of a log in an epoch; None if the epoch is unknown."""
        with self._reading() as connection:
            began = connection.execute("SELECT rowid FROM epochs WHERE label = ?", (epoch,)).fetchone()
            if began is None:
                return None
            following = "SELECT seq, position FROM epochs WHERE rowid > ? ORDER BY rowid LIMIT 1"
            seq, position = connection.execute(following, began).fetchone() or (sys.maxsize, self._position)
            if session is None:
                return int(position)
            row = connection.execute(
                "SELECT number FROM records WHERE session = (SELECT id FROM sessions WHERE key = ?) AND seq <= ?"
                " ORDER BY seq DESC LIMIT 1",
                (session, seq),
            ).fetchone()
            return 0 if row is None else int(row[0])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Translate errors of reading. They do not end the writing."""
        try:
            yield self.connection
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == _DAMAGED_INDEX:
                raise self._failed(error) from error
            raise StoreDamaged(f"{self.path} cannot be read: {error}") from error

    def backup(self, target: Path, between: Callable[[], None] = lambda: None) -> None:
        """Copy the store to a new file while it is in use; see `copy_file`. Raises `StoreFailed`."""
        copy_file(self.connection, target, between)

    def interrupt(self) -> None:
        """Do nothing: the file is on this machine."""


def write_new(path: Path, batches: Iterable[Batch]) -> None:
    """Write a new file, which has its name only when it is complete. Raises `StoreFailed` or `StoreFull`."""
    part = path.with_name(f"{path.name}.part")
    for end in ("-wal", ""):
        part.with_name(part.name + end).unlink(missing_ok=True)
    backend = SqliteBackend(part, reserve_bytes=0)
    backend.open()
    for batch in batches:
        backend.commit(batch)
    backend.close()
    part.rename(path)


def _heads(connection: sqlite3.Connection) -> list[Head]:
    heads = []
    query = "SELECT key, seq, head, sum FROM sessions WHERE head IS NOT NULL AND deleted IS NULL"
    for key, seq, head, total in connection.execute(query):
        if checksum(key, seq, head) != total:
            raise StoreDamaged(f"the head of session {key} does not match its checksum")
        heads.append(decode_head(head))
    return heads


def _tail(connection: sqlite3.Connection) -> list[Row]:
    """Return the rows that no head includes. A look at the index for each session is faster than a scan."""
    cursor = connection.execute(
        f"SELECT {ROW} FROM sessions CROSS JOIN records INDEXED BY records_of_session"  # noqa: S608
        " ON session = id AND records.seq > sessions.seq WHERE deleted IS NULL"
    )
    rows = sorted(map(read_row, cursor), key=lambda row: row.seq)
    for row in rows:
        require_known(row)
    return rows


def _documents(connection: sqlite3.Connection) -> dict[str, dict[str, str]]:
    documents: dict[str, dict[str, str]] = {}
    for space, name, value, total in connection.execute("SELECT space, name, value, sum FROM kept"):
        if checksum(space, name, value) != total:
            raise StoreDamaged(f"the document {space}/{name} does not match its checksum")
        documents.setdefault(space, {})[name] = value
    return documents


def _first(connection: sqlite3.Connection, session: str | None, after: int) -> int:
    """Return the first sequence number in a log after a number, by bisection: the numbers grow with it."""
    query, key = "SELECT seq, position FROM records WHERE seq >= ? ORDER BY seq LIMIT 1", []
    if session is not None:
        key = [connection.execute("SELECT id FROM sessions WHERE key = ?", (session,)).fetchone()[0]]
        query = "SELECT seq, number FROM records WHERE session = ? AND seq >= ? ORDER BY seq LIMIT 1"
    low, high = 0, connection.execute("SELECT ifnull(max(seq), 0) + 1 FROM records").fetchone()[0]
    while low < high:
        middle = (low + high) // 2
        row = connection.execute(query, (*key, middle)).fetchone()
        if row is None or row[1] > after:
            high = middle
        else:
            low = row[0] + 1
    return int(low)


def _size(row: Row) -> int:
    return len(row.body) + len(row.events)


def _has_no_room(folder: Path) -> bool:
    """Return whether a small file cannot be written, because the disk or the owner's part of it is full."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in FULL
    return False
