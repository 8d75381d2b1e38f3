"""The SQLite file of the journal: its schema, its lock, its permissions, and the checks before it is used.

Each row has a checksum, because SQLite notices damaged pages but not damaged texts.
"""

import fcntl
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from cfs_server.journal.journal import StoreDamaged, StoreFailed, StoreInUse
from cfs_server.journal.records import Row, UnknownRecord
from cfs_server.journal.sqlite_wal import PAGE, wal_of

SCHEMA = 1
"""The version of the schema that this program writes."""
APPLICATION = 0x43465353
"""Marks a SQLite file as a store of sessions."""
TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- A cursor names the epoch in which its event was numbered. `seq` and `position` are the last ones before it.
CREATE TABLE epochs (label TEXT PRIMARY KEY, seq INTEGER NOT NULL, position INTEGER NOT NULL, at REAL NOT NULL);
-- `head` includes the records up to `seq`. `deleted` is the record of the deletion, which stays for readers of events.
-- All other records of the session are removed.
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    seq INTEGER NOT NULL DEFAULT 0,
    head TEXT,
    sum INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER
);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    events TEXT NOT NULL,
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX records_of_session ON records (session);
CREATE TABLE kept (space TEXT, name TEXT, value TEXT NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (space, name))
WITHOUT ROWID;
INSERT INTO meta VALUES ('life', lower(hex(randomblob(4))));
"""
MIGRATIONS: Mapping[int, str] = MappingProxyType({})
"""The statements that bring a file to a version of the schema from the version before it."""
ROW = "records.seq, key, at, kind, version, author, body, events, number, position, records.sum"
"""The columns of a `Row`, and its checksum, from `sessions` joined with `records`."""

_PRAGMAS = (
    "locking_mode = EXCLUSIVE",  # before the WAL is used for the first time: then there is no file of shared memory
    "journal_mode = WAL",
    "wal_autocheckpoint = 0",
    "secure_delete = ON",
    "cell_size_check = ON",
    "trusted_schema = OFF",
    "temp_store = MEMORY",
    "cache_size = -16384",
)
_SHARED = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "gpfs", "ncp", "fuse", "davfs")
_NOT_SHARED = ("fuseblk", "fuse.fuse-overlayfs")
"""Beginnings of the names of file systems whose locks may not exclude other machines, and exceptions."""
_FLOCK = "hhqqi"


def checksum(*values: object) -> int:
    """Return the checksum of the values of a row."""
    return crc32("\0".join(map(str, values)).encode())


def read_row(values: Sequence[Any]) -> Row:
    """Return the row of the columns `ROW`. Raises `StoreDamaged`."""
    row = Row(*values[:-1])
    if checksum(*row) != values[-1]:
        raise StoreDamaged(f"record {row.seq} does not match its checksum")
    return row


def problems(connection: sqlite3.Connection) -> list[str]:
    """Check a whole file: its pages, its indices and all checksums. Return what is wrong."""
    connection.text_factory = lambda data: data.decode(errors="replace")  # then the checksum is wrong, not all the rest
    messages: list[str] = []
    try:
        messages.extend(_problems(connection))
    except sqlite3.Error as error:
        messages.append(str(error))
    finally:
        connection.text_factory = str
    return messages


def _problems(connection: sqlite3.Connection) -> Iterator[str]:
    for (text,) in connection.execute("PRAGMA integrity_check(20)"):
        yield from (line for line in text.splitlines() if line != "ok" and not line.startswith("***"))
    for row in connection.execute(f"SELECT {ROW} FROM records LEFT JOIN sessions ON session = id"):  # noqa: S608
        if checksum(*row[:-1]) != row[-1]:
            yield f"record {row[0]} does not match its checksum"
    for key, seq, head, total in connection.execute("SELECT key, seq, head, sum FROM sessions WHERE head IS NOT NULL"):
        if checksum(key, seq, head) != total:
            yield f"the head of session {key} does not match its checksum"
    for space, name, value, total in connection.execute("SELECT space, name, value, sum FROM kept"):
        if checksum(space, name, value) != total:
            yield f"the document {space}/{name} does not match its checksum"


def check_file(path: Path) -> list[str]:
    """Check a file that no server uses, such as a backup. Return what is wrong. Raises `StoreFailed`."""
    if not path.is_file():
        raise StoreFailed(f"{path} does not exist")
    with opening(path):
        require_store(path)
        with closing(connect(path)) as connection:
            return problems(connection)


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Translate what may happen when a file is opened and read. Raises `StoreFailed` and `StoreDamaged`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # an error of Python, which would show the text
            raise StoreDamaged("a record is no text in UTF-8") from error
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreInUse(f"{path} is in use by {_holder(path)}; only one server can use it") from None
        if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreDamaged(str(error)) from error
        raise StoreFailed(f"{path} cannot be opened: {error}") from error
    except OSError as error:
        raise StoreFailed(f"{path} cannot be opened: {error.strerror}") from error
    except (UnknownRecord, ValueError) as error:  # not damaged, as the checksum is right
        raise StoreFailed(f"{path} has been written by another version of CFS: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open a file and lock it until the connection is closed. Raises errors of SQLite."""
    connection = sqlite3.connect(path, timeout=0.2, isolation_level=None, cached_statements=64)
    try:
        if not path.stat().st_size:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # writes, so it would need space at each start
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def require_store(path: Path) -> None:
    """Raise `StoreFailed` or `StoreDamaged` unless a file begins like a store, or is new.

    SQLite may delete the write-ahead log of a file whose first page is damaged.
    """
    with path.open("rb") as file:
        head = file.read(100)
    if not head and not wal_of(path).exists():
        return
    magic, *form = struct.unpack(">16sHBBBBBB", head[:24]) if len(head) == 100 else (b"",)
    if magic != b"SQLite format 3\0" or form[0] != PAGE or form[1] != form[2] or form[3:] != [0, 64, 32, 32]:
        raise StoreDamaged("it does not begin like a store of sessions")
    if struct.unpack(">I", head[68:72]) != (APPLICATION,):
        raise StoreFailed(f"{path} is a SQLite file of another program")


def make_private(path: Path) -> None:
    """Create a file that only its owner can read, or take the right from others. Raises `OSError`.

    An existing file is not opened: closing it would release the locks of a connection in this process.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        raise PermissionError(0, "it is read-only")


def require_local(path: Path, mounts: str = "/proc/self/mountinfo") -> None:
    """Raise `StoreFailed` for a file on a network file system, whose locks may not exclude other machines."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return  # not Linux
    folder, kind, longest = path.absolute().parent.resolve(), "", -1
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = mount.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
        if folder.is_relative_to(point) and len(point) >= longest:
            longest, kind = len(point), source.split(" ")[0]
    if kind.startswith(_SHARED) and not kind.startswith(_NOT_SHARED):
        raise StoreFailed(
            f"{path} is on a {kind} file system, where locks do not exclude other machines: use a local disk"
        )


def _holder(path: Path) -> str:
    """Return which process has locked the file. Not to be called for a file that this process has open."""
    if sys.platform != "linux":
        return "another process"
    request = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("rb") as file:
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
    return f"process {pid}" if kind != fcntl.F_UNLCK and pid > 0 else "another process"


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file, or migrate an old one after a backup. Raises `StoreFailed` for a newer one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > SCHEMA:
        raise StoreFailed(f"{path} has been written by a newer CFS: schema {version}, and this one knows {SCHEMA}")
    if not tables:
        _change(connection, f"{TABLES} PRAGMA application_id = {APPLICATION};")
    elif version < SCHEMA:
        copy_file(connection, path.with_name(f"{path.name}.schema-{version}-{time.time_ns()}"))
        _change(connection, "".join(MIGRATIONS[step + 1] for step in range(version, SCHEMA)))


def _change(connection: sqlite3.Connection, statements: str) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {SCHEMA}; COMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def copy_file(connection: sqlite3.Connection, target: Path, between: Callable[[], None] = lambda: None) -> None:
    """Copy a store that is in use to a new file. `between` is called after each megabyte, and may commit.

    Raises `StoreFailed` if the target exists or cannot be written.
    """
    part = target.with_name(f"{target.name}.part")
    if target.exists():
        raise StoreFailed(f"{target} exists already")
    try:
        part.unlink(missing_ok=True)
        make_private(part)
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            connection.backup(copy, pages=256, progress=lambda *_: between())
        part.rename(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            part.unlink()
        raise StoreFailed(f"{target} cannot be written: {error}") from error
