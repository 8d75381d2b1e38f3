"""Work on a file of sessions that no server uses: describe it, check it, and put another one in its place."""

import asyncio
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from cfs_server.domain.events import new_nonce
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.domain.state import Head
from cfs_server.domain.turns import InvalidTransition
from cfs_server.engine.contract.interface import Engine
from cfs_server.journal.journal import StoreDamaged, StoreFailed
from cfs_server.journal.records import Row, UnknownRecord, decode, decode_head
from cfs_server.journal.sqlite_file import (
    ROW,
    SCHEMA,
    checksum,
    connect,
    copy_file,
    opening,
    problems,
    read_row,
    require_store,
)
from cfs_server.journal.sqlite_wal import size_of, wal_of
from cfs_server.sessions.store import SessionStore

SCRATCH = ".backup"
"""The beginning of the names of folders for copies, beside the file. Only their owner can read them."""
_LIVING = "SELECT key, head FROM sessions WHERE deleted IS NULL"
_WITH_LIFE = ("session.created", "session.renamed")
"""The kinds of records that contain the life of a session."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a file contains; `bytes` with its write-ahead log."""

    path: Path
    bytes: int
    sessions: int
    records: int


def describe(path: Path) -> StoreInfo:
    """Return what a file contains. Raises `StoreFailed` if it cannot be read, or is in use."""
    with _opened(path) as connection:
        return _info(connection, path)


def copy(path: Path, target: Path) -> None:
    """Copy a file to a new one. Raises `StoreFailed`."""
    with _opened(path) as connection:
        copy_file(connection, target)


def check(path: Path, engine: Engine) -> tuple[StoreInfo, list[str]]:
    """Check the pages, the checksums, the form of all records, and that they lead to the stored heads.

    The sessions need an engine, but do not use it. Returns what is wrong. Raises `StoreFailed` if the file cannot be
    opened.
    """
    with _opened(path) as connection:
        damage = problems(connection)
        if not damage:
            damage = asyncio.run(_replay(connection, engine))
        return _info(connection, path), damage


def prepare(backup: Path, part: Path) -> None:
    """Make a new file of the sessions of a backup, in which they begin other lives.

    All versions and cursors that clients have seen become invalid, because what they name may never have happened in
    the restored sessions. Raises `StoreFailed` if the backup is damaged.
    """
    with _opened(backup) as connection:
        if damage := problems(connection):
            raise StoreDamaged(f"{backup} is damaged: {damage[0]}")
        copy_file(connection, part)
    with _opened(part) as connection:
        _begin_new_lives(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def require_unused(path: Path) -> None:
    """Raise `StoreInUse` if a server uses a file. It may be missing or damaged."""
    if path.exists() and path.stat().st_size:
        with suppress(StoreDamaged), _opened(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def restoring(path: Path) -> Path:
    """Return the file that is there while a restore puts its files in place. Its first line is the backup."""
    return path.with_name(f"{path.name}.restoring")


def require_no_restore(path: Path) -> None:
    """Raise `StoreFailed` if a restore was killed after it had replaced something."""
    if restoring(path).exists():
        backup = restoring(path).read_text(errors="replace")
        raise StoreFailed(
            f"a restore of {path} was interrupted: run it again, `cfs restore --force {backup}`. The files that were"
            f" there before have names that end with .replaced-TIME"
        )


def set_aside(*paths: Path) -> list[Path]:
    """Return the files and folders that a repair or a restore has set aside, beside these ones, the newest last."""
    entries = [
        entry
        for path in paths
        for entry in path.parent.glob(f"{path.name}.*")
        if (".damaged-" in entry.name or ".replaced-" in entry.name) and not entry.name.endswith(("-wal", "-shm"))
    ]
    return sorted(entries, key=lambda entry: entry.stat().st_mtime)


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Make a folder for copies beside a file or folder."""
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}-", dir=path.parent) as folder:
        yield Path(folder)


def remove_leftovers(path: Path) -> None:
    """Remove copies that were being made when their process was killed. Only for who has the file open."""
    for folder in path.parent.glob(f"{SCRATCH}-*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to errors that do not name it."""
    try:
        yield
    except StoreDamaged as error:
        if str(path) in str(error):
            raise
        raise StoreDamaged(f"{path} is damaged, or no file of CFS sessions: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open and lock a file of sessions. Raises `StoreFailed`."""
    if not path.is_file():
        raise StoreFailed(f"{path} does not exist")
    with _naming(path), opening(path):
        require_store(path)
        with closing(connect(path)) as connection:
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if schema != SCHEMA:
                age = "a newer" if schema > SCHEMA else "an older"
                raise StoreFailed(f"{path} has been written by {age} CFS: schema {schema}, and this one knows {SCHEMA}")
            yield connection


def _info(connection: sqlite3.Connection, path: Path) -> StoreInfo:
    (sessions,) = connection.execute("SELECT count(*) FROM sessions WHERE deleted IS NULL").fetchone()
    (records,) = connection.execute("SELECT count(*) FROM records").fetchone()
    return StoreInfo(path, size_of(path), sessions, records)


async def _replay(connection: sqlite3.Connection, engine: Engine) -> list[str]:
    """Replay the records of each session up to its head, and compare. Return what is wrong."""
    heads = {key: decode_head(text) for key, text in connection.execute(f"{_LIVING} AND head IS NOT NULL")}
    pruned = connection.execute("SELECT 1 FROM meta WHERE name = 'pruned'").fetchone() is not None
    query = (
        f"SELECT {ROW} FROM records JOIN sessions ON session = id WHERE deleted IS NULL ORDER BY session, records.seq"  # noqa: S608
    )
    failures: list[str] = []
    for key, rows in groupby(map(read_row, connection.execute(query)), key=lambda row: row.session):
        head = heads.get(key)
        try:
            replayed = _head_of(rows, head, engine)
        except (ValueError, UnknownRecord, InvalidTransition) as error:
            failures.append(f"session {key}: {error}")
            continue
        if head is not None and _comparable(head, pruned=pruned) != _comparable(replayed, pruned=pruned):
            failures.append(f"session {head.id!r} ({key}): its records do not lead to its stored state")
    return failures


def _head_of(rows: Iterable[Row], head: Head | None, engine: Engine) -> Head:
    """Return the state to which the records of a session lead, at the record of a head or at the last one."""
    records = [(row.seq, decode(row)) for row in rows]
    store = SessionStore(engine)
    store.replay(
        [(seq, record) for seq, record in records if head is None or seq <= head.seq],
        lambda owner: StorageUsage(owner, Quota()),
    )
    for session in store:
        return session.head()
    raise ValueError("its first record is missing")


def _comparable(head: Head, *, pruned: bool) -> Head:
    """Return a head without what depends on the version of the program, or on tokens that may have been removed."""
    running = head.running
    if pruned and running is not None:
        running = replace(running, said=())
    return replace(head, history=replace(head.history, cost=0), running=running)


def _begin_new_lives(connection: sqlite3.Connection) -> None:
    """Give the store and each session another life, which cursors and versions contain."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE meta SET value = ? WHERE name = 'life'", (new_nonce(),))
    created = f"SELECT {ROW} FROM records JOIN sessions ON session = id WHERE key = ? AND kind IN (?, ?)"  # noqa: S608
    for key, seq, head in connection.execute("SELECT key, seq, head FROM sessions WHERE deleted IS NULL").fetchall():
        rows = [read_row(values) for values in connection.execute(created, (key, *_WITH_LIFE))]
        life = json.loads(head or rows[0].body)["life"]
        old, new = f'"life":"{life}"', f'"life":"{new_nonce()}"'
        for row in rows:
            changed = row._replace(body=row.body.replace(old, new), events=row.events.replace(old, new))
            connection.execute(
                "UPDATE records SET body = ?, events = ?, sum = ? WHERE seq = ?",
                (changed.body, changed.events, checksum(*changed), row.seq),
            )
        if head is not None:
            text = head.replace(old, new)
            connection.execute(
                "UPDATE sessions SET head = ?, sum = ? WHERE key = ?", (text, checksum(key, seq, text), key)
            )
    connection.execute("COMMIT")


def replace_file(path: Path, part: Path, aside: Path) -> None:
    """Put a new file in the place of a file of sessions, which gets the name `aside`. Raises `StoreInUse`.

    The old file keeps its name until the new one takes it, so that a kill in between leaves one of the two.
    """
    wal = wal_of(path)
    if not path.exists() and not wal.exists():
        part.rename(path)
        return
    require_unused(path)
    if path.exists():
        _second_name(path, aside)
    if wal.exists():  # it belongs to the old file only
        wal.rename(wal_of(aside))
    try:
        part.replace(path)
    except OSError:
        if path.exists():
            aside.unlink(missing_ok=True)
        else:
            aside.rename(path)
        if wal_of(aside).exists():
            wal_of(aside).rename(wal)
        raise


def _second_name(path: Path, name: Path) -> None:
    try:
        name.hardlink_to(path)
    except OSError:  # a disk without hard links
        path.rename(name)
