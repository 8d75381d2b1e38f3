"""The file of a store of versions: how SQLite opens, writes, flushes, shrinks and copies it."""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from cfs_filesystem.versions.model import DamagedVersionError

K = TypeVar("K")
V = TypeVar("V")
SCHEMA = 1
APPLICATION = 0x43465356
"""Marks a SQLite file as a store of versions."""
_SHARED_MEMORY = 64 << 10
"""Bytes that SQLite needs on the disk to open a file in WAL mode, with some to spare."""
_REMEMBERED = 4096
"""How many rows of a kind are kept in memory."""
_TABLES = """
CREATE TABLE workspaces (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, scope BLOB NOT NULL,
    last INTEGER NOT NULL DEFAULT 0, oldest INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX workspaces_by_scope ON workspaces (scope);
CREATE TABLE changes (
    workspace INTEGER, number INTEGER, at REAL NOT NULL, principal TEXT NOT NULL, agent TEXT NOT NULL,
    call TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (workspace, number)
) WITHOUT ROWID;
-- What a change left at a path; a path without a type was removed. Names are bytes.
CREATE TABLE entries (
    workspace INTEGER, path BLOB, number INTEGER, at REAL NOT NULL, type TEXT, mode INTEGER, size INTEGER, digest BLOB,
    stamp TEXT, PRIMARY KEY (workspace, path, number)
) WITHOUT ROWID;
CREATE INDEX entries_by_number ON entries (workspace, number);
CREATE INDEX entries_by_digest ON entries (digest);
-- `base` is the content that is the dictionary of this one. A content without data consists of parts.
CREATE TABLE contents (
    id INTEGER PRIMARY KEY, scope BLOB NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL, base INTEGER,
    step INTEGER NOT NULL, data BLOB, UNIQUE (scope, digest)
);
CREATE INDEX contents_by_base ON contents (base) WHERE base IS NOT NULL;
CREATE TABLE parts (
    content INTEGER, position INTEGER, part INTEGER NOT NULL, PRIMARY KEY (content, position)
) WITHOUT ROWID;
CREATE INDEX parts_by_part ON parts (part);
"""
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "wal_autocheckpoint = 0",
    "secure_delete = ON",
    "trusted_schema = OFF",
    "temp_store = MEMORY",
    "cache_size = -8192",
)


class RememberedRows(dict[K, V]):
    """Rows that were read or written last: most writes need no query then. It is emptied when it is full."""

    def __setitem__(self, key: K, row: V) -> None:
        if len(self) >= _REMEMBERED:
            self.clear()
        super().__setitem__(key, row)


class SqliteFile:
    """A SQLite database with the tables of a store of versions, in a file that only its owner can read, or in memory.

    Only one program may open the file. Hold `lock` to read; `transaction` holds it to write.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create the file. Raises `OSError`, and `DamagedVersionError` if it is no store of versions."""
        self.lock = threading.RLock()
        self._syncing = threading.Lock()
        self._remembered: list[RememberedRows[Any, Any]] = []
        if path is not None:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
        self._database = _connected(path)
        self.execute = self._database.execute
        """Runs a statement, with a sequence or a mapping of values."""
        self._checkpoints = None if path is None else _connected(path)
        self._synced = self._database.total_changes

    def close(self) -> None:
        """Copy what is in the write-ahead log to the file, and close it."""
        with self._syncing, self.lock:
            if self._checkpoints is not None:
                self._checkpoints.close()
                self._checkpoints = None
            self._truncate_log()
            self._database.close()

    def one(self, statement: str, *values: object) -> Any:
        """Return the first row of a query, or None."""
        return self.execute(statement, values).fetchone()

    def all(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        return self.execute(statement, values).fetchall()

    def remembered(self) -> RememberedRows[Any, Any]:
        """Return a place for rows in memory, which each transaction empties unless it `keeps` them true."""
        rows = RememberedRows[Any, Any]()
        self._remembered.append(rows)
        return rows

    @contextmanager
    def transaction(self, *, keeps: bool = False) -> Iterator[None]:
        """Make the block one transaction. It clears the remembered rows, unless the block `keeps` them true.

        Raises `OSError` if the disk is full, or fails.
        """
        with self.lock:
            if self._database.in_transaction:
                yield
                return
            if not keeps:
                self._forget_rows()
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException as error:
                keeps = False
                if self._database.in_transaction:  # a full disk may have ended it
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    full = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL
                    raise OSError(errno.ENOSPC if full else errno.EIO, f"versions cannot be stored: {error}") from None
                raise
            finally:
                if not keeps:
                    self._forget_rows()

    def _forget_rows(self) -> None:
        for rows in self._remembered:
            rows.clear()

    def checkpoint(self) -> None:
        """Flush what was committed to the disk. Writers go on meanwhile."""
        with self._syncing:
            if self._checkpoints is not None and self._synced != (changes := self._database.total_changes):
                with suppress(sqlite3.OperationalError):  # the disk is full: it stays in the log
                    self._checkpoints.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    self._synced = changes

    def shrink(self) -> None:
        """Remove what was deleted from the write-ahead log, too, and give its space back."""
        with self._syncing, self.lock:
            with suppress(sqlite3.OperationalError):
                self._database.execute("PRAGMA incremental_vacuum").fetchall()
            self._truncate_log()

    def _truncate_log(self) -> None:
        with suppress(sqlite3.OperationalError):  # the disk is full: the next one does it
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def check_integrity(self) -> None:
        """Let SQLite look at the whole file. Raises `DamagedVersionError`."""
        with self.lock:
            problems = [row[0] for row in self.all("PRAGMA integrity_check(20)") if row[0] != "ok"]
        if problems:
            raise DamagedVersionError(f"the store of versions is damaged: {problems[0]}")

    def backup(self, target: Path) -> None:
        """Write a copy of the store, which is in use, to a new file that only its owner can read. Raises `OSError`."""
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(target, isolation_level=None)) as copy, self.lock:
                self._database.backup(copy)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"versions cannot be copied: {error}") from None


def _is_full(error: sqlite3.DatabaseError, folder: Path) -> bool:
    """Return whether an error comes from a full disk; SQLite reports the files beside the database as other errors."""
    primary = error.sqlite_errorcode & 0xFF
    if primary not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return primary == sqlite3.SQLITE_FULL
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize < _SHARED_MEMORY


def _connected(path: Path | None) -> sqlite3.Connection:
    """Open the file and create its tables. Raises `DamagedVersionError`, or `OSError` (ENOSPC) if the disk is full."""
    database = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
    database.row_factory = sqlite3.Row
    try:
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}").fetchall()
        if not tables:
            database.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {APPLICATION};"
                f" PRAGMA user_version = {SCHEMA}; COMMIT;"
            )
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        if (application, schema) != (APPLICATION, SCHEMA):
            raise DamagedVersionError(f"{path} is no store of versions that this CFS knows")
    except sqlite3.DatabaseError as error:
        database.close()
        if path is not None and _is_full(error, path.parent):
            raise OSError(errno.ENOSPC, f"{path} cannot be opened: the disk is full") from None
        raise DamagedVersionError(f"{path} cannot be read: {error}") from None
    except BaseException:
        database.close()
        raise
    return database
