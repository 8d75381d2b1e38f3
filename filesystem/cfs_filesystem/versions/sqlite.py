"""A store of versions in a SQLite file, or in memory.

Contents are addressed by their SHA-256 within one scope: a workspace and its forks. Nothing is shared between scopes,
so that neither the size of the store nor the time of a write tells anything of another workspace.

A commit survives the end of the process at once, and a power loss after the next `checkpoint`. A power loss before it
takes versions, never files: the next look at the folder records what is there.
"""

import errno
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar, cast

from cfs_filesystem._errors import NotFoundError
from cfs_filesystem.versions.codec import FULL, LARGE, STRIDE, chunks, decode_chain, encode, verified
from cfs_filesystem.versions.model import (
    Author,
    Change,
    Content,
    DamagedVersionError,
    Entry,
    EntryType,
    Kind,
    State,
    VersionRetention,
    equal,
    require_kept,
)
from cfs_filesystem.versions.recent import RecentContents

K = TypeVar("K")
V = TypeVar("V")
SCHEMA = 1
_SHARED_MEMORY = 64 << 10
"""Bytes that SQLite needs on the disk to open a file in WAL mode, with some to spare."""
APPLICATION = 0x43465356
"""Marks a SQLite file as a store of versions."""
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
_ENTRY = "path, number, at, type, mode, size, digest, stamp"
_AMONG = "number IN (SELECT value FROM json_each(?))"
_WORKSPACE = """
SELECT id, scope, last, oldest, changes.at FROM workspaces
LEFT JOIN changes ON changes.workspace = id AND changes.number = last WHERE name = ?
"""
_CHAIN = """
WITH RECURSIVE chain (depth, id, base, size, data) AS (
    SELECT 0, id, base, size, data FROM contents WHERE id = ?
    UNION ALL SELECT depth + 1, contents.id, contents.base, contents.size, contents.data
    FROM chain JOIN contents ON contents.id = chain.base
) SELECT size, data FROM chain ORDER BY depth DESC
"""
_UNUSED = """
SELECT id FROM contents WHERE scope = :scope
AND NOT EXISTS (
    SELECT 1 FROM workspaces CROSS JOIN entries ON entries.workspace = workspaces.id
    WHERE workspaces.scope = :scope AND entries.digest = contents.digest
) AND NOT EXISTS (SELECT 1 FROM parts WHERE part = contents.id)
"""


_REMEMBERED = 4096
"""How many rows of a kind are kept in memory."""


@dataclass(frozen=True, slots=True)
class _WorkspaceRow:
    """The row of a workspace, with the time of its last change; None if that is not kept."""

    id: int
    scope: bytes
    last: int
    oldest: int
    at: float | None


@dataclass(frozen=True, slots=True)
class _ContentRow:
    """The row of a content. One that is not whole consists of parts."""

    id: int
    base: int | None
    step: int
    whole: int


class SqliteVersions:
    """A `VersionStore` in a file that only its owner can read, or, without a path, in memory.

    Only one program may have the file open, so `changing` has nothing to do. `clock` returns the time of changes.
    """

    shared = False

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file. Raises `OSError`, and `DamagedVersionError` if it is no store of versions."""
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._syncing = threading.Lock()
        self._holds = 0
        self._recent = RecentContents()
        self._workspaces: dict[str, _WorkspaceRow | None] = {}
        self._newest: dict[tuple[int, str], Entry | None] = {}
        self._stored: dict[tuple[bytes, bytes], _ContentRow] = {}
        """Rows that were read or written last: workspaces, newest entries, contents. Most writes need no query then.

        A write of a content or a change keeps them true. Any other change clears them.
        """
        if path is not None:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
        self._database = _connected(path)
        self._checkpoints = None if path is None else _connected(path)
        self._synced = self._database.total_changes

    def close(self) -> None:
        """Copy what is in the write-ahead log to the file, and close it."""
        with self._syncing, self._lock:
            if self._checkpoints is not None:
                self._checkpoints.close()
                self._checkpoints = None
            self._truncate_log()
            self._database.close()

    def checkpoint(self) -> None:
        """Flush what was committed to the disk. Writers go on meanwhile."""
        with self._syncing:
            if self._checkpoints is not None and self._synced != (changes := self._database.total_changes):
                with suppress(sqlite3.OperationalError):  # the disk is full: it stays in the log
                    self._checkpoints.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    self._synced = changes

    def prepare(
        self,
        workspace: str,
        data: bytes,
        previous: Entry | None = None,
        previous_data: Callable[[], bytes] | None = None,
    ) -> Content:
        """See `VersionStore`."""
        digest = hashlib.sha256(data).digest()
        base, step, dictionary = None, 0, None
        with self._lock:
            scope = self._scope(workspace)
            if scope is None:
                return Content(digest, len(data), data, encode(data))
            before = b"" if previous is None else bytes.fromhex(previous.digest)
            edited = digest != before and (scope, before) in self._stored  # most writes: saves a look into the file
            if not edited and self._content(scope, digest) is not None:
                return Content(digest, len(data), data)
            if previous is not None and previous_data is not None and previous.size:
                base, step, dictionary = self._base(scope, before, previous_data)
            self._recent.add(scope, digest, data)
        return Content(digest, len(data), data, encode(data, dictionary), base, step)

    def _base(
        self, scope: bytes, before: bytes, before_data: Callable[[], bytes]
    ) -> tuple[int | None, int, bytes | None]:
        """Choose the content that is the dictionary of the one after `before`; return its id, step and bytes."""
        stored, data = self._content(scope, before), self._recent.get(scope, before)
        if data is None:
            data = before_data()
            if hashlib.sha256(data).digest() != before:  # the version would be unreadable
                return None, 0, None
        if stored is None or not stored.whole:
            return None, 0, None
        step = stored.step + 1
        if step % STRIDE:
            return stored.id, step, data
        if step % FULL == 0:
            return None, 0, None
        key, base, step_of_key = stored.id, stored.base, stored.step
        while base is not None and step_of_key % STRIDE:
            key, base, step_of_key = self._one("SELECT id, base, step FROM contents WHERE id = ?", base)
        return key, step, self._decoded(key)

    def changing(self, workspaces: Iterable[str], path: str | None = None) -> AbstractContextManager[None]:  # noqa: ARG002
        """See `VersionStore`."""
        return nullcontext()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """See `VersionStore`."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def keep(self, workspace: str, source: BinaryIO, previous: Entry | None = None) -> Content:
        """See `VersionStore`."""
        data = source.read(LARGE + 1)
        if len(data) <= LARGE:
            usable = previous is not None and previous.type is EntryType.FILE and 0 < previous.size <= LARGE
            before = partial(self.read, workspace, previous) if previous is not None and usable else None
            content = self.prepare(workspace, data, previous, before)
            with self._transaction(keeps=True):
                self._store(self._made(workspace).scope, content)
            return Content(content.digest, content.size)
        return self._keep_chunks(workspace, data, source)

    def _keep_chunks(self, workspace: str, beginning: bytes, source: BinaryIO) -> Content:
        digest, size, parts = hashlib.sha256(), 0, []
        for chunk in chunks(beginning, source):
            digest.update(chunk)
            size += len(chunk)
            part = Content(hashlib.sha256(chunk).digest(), len(chunk), chunk, encode(chunk))
            with self._transaction():
                self._store(self._made(workspace).scope, part)
            parts.append(part.digest)
        with self._transaction():
            self._store(self._made(workspace).scope, Content(digest.digest(), size, parts=tuple(parts)))
        return Content(digest.digest(), size)

    def content_of(self, entry: Entry) -> Content:
        """See `VersionStore`."""
        return Content(bytes.fromhex(entry.digest), entry.size)

    def record(
        self,
        workspace: str,
        author: Author,
        kind: Kind,
        states: Mapping[str, State | None],
        above: Mapping[str, State] = MappingProxyType({}),
        *,
        ends: bool = False,  # noqa: ARG002
    ) -> int:
        """See `VersionStore`."""
        with self._transaction(keeps=True):
            states = {path: state for path, state in above.items() if not self._is_folder(workspace, path)} | dict(
                states
            )
            known = self._made(workspace)
            number = known.last + 1
            now = self._clock() if known.at is None else max(self._clock(), known.at)
            row = (known.id, number, now, author.principal, author.agent, author.call, kind)
            self._database.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._database.execute("UPDATE workspaces SET last = ? WHERE id = ?", (number, known.id))
            for path, state in states.items():
                content = None if state is None else state.content
                if content is not None:
                    self._store(known.scope, content)
                values = (
                    (None, None, None, None, "")
                    if state is None
                    else (
                        state.type,
                        state.mode,
                        0 if content is None else content.size,
                        None if content is None else content.digest,
                        state.stamp,
                    )
                )
                self._database.execute(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (known.id, os.fsencode(path), number, now, *values),
                )
                entry = None if state is None else _recorded(path, number, now, state)
                self._remember(self._newest, (known.id, path), entry)
            self._workspaces[workspace] = replace(known, last=number, at=now)
        return number

    def _is_folder(self, workspace: str, path: str) -> bool:
        newest = self.at(workspace, path)
        return newest is not None and newest.type is EntryType.FOLDER

    def _store(self, scope: bytes, content: Content) -> None:
        """Store a content unless it is there. Its base may have been removed since it was prepared."""
        there = self._one(
            "SELECT EXISTS (SELECT 1 FROM contents WHERE scope = ? AND digest = ?) content,"
            " EXISTS (SELECT 1 FROM contents WHERE id = ?) base",
            scope,
            content.digest,
            content.base,
        )
        if there["content"]:
            return
        encoded, base, step = content.encoded, content.base, content.step
        gone = base is not None and not there["base"]
        if content.parts is None and (encoded is None or gone):
            if content.raw is None:
                raise NotFoundError("the content is no longer kept")
            encoded, base, step = encode(content.raw), None, 0
        cursor = self._database.execute(
            "INSERT INTO contents (scope, digest, size, base, step, data) VALUES (?, ?, ?, ?, ?, ?)",
            (scope, content.digest, content.size, base, step, encoded),
        )
        for position, part in enumerate(content.parts or ()):
            stored = self._content(scope, part)
            if stored is None:
                raise NotFoundError("the content is no longer kept")  # the workspace was purged meanwhile
            self._database.execute("INSERT INTO parts VALUES (?, ?, ?)", (cursor.lastrowid, position, stored.id))
        self._remember(
            self._stored,
            (scope, content.digest),
            _ContentRow(cast("int", cursor.lastrowid), base, step, content.parts is None),
        )

    def restamp(self, workspace: str, stamps: Mapping[str, str]) -> None:
        """See `VersionStore`."""
        with self._transaction():
            name = self._made(workspace).id
            for path, stamp in stamps.items():
                key = (name, os.fsencode(path))
                self._database.execute(
                    "UPDATE entries SET stamp = ? WHERE workspace = ? AND path = ? AND number ="
                    " (SELECT max(number) FROM entries WHERE workspace = ? AND path = ?)",
                    (stamp, *key, *key),
                )

    def last(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._lock:
            row = self._workspace(workspace)
            return 0 if row is None else row.last

    def oldest(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._lock:
            row = self._workspace(workspace)
            return 0 if row is None else row.oldest

    def number_at(self, workspace: str, time: float, order: int | None = None) -> int:  # noqa: ARG002
        """See `VersionStore`."""
        with self._lock:
            row = self._workspace(workspace)
            if row is None:
                return 0
            result = self._one("SELECT max(number) n FROM changes WHERE workspace = ? AND at <= ?", row.id, time)
            if result["n"] is None and row.oldest > 0:
                raise NotFoundError(f"the past of {workspace!r} before its change {row.oldest} is no longer kept")
            return int(result["n"] or 0)

    def common(self, workspace: str, other: str) -> int | None:
        """See `VersionStore`."""
        with self._lock:
            one, two = self._workspace(workspace), self._workspace(other)
            if one is None or two is None or one.scope != two.scope:
                return None
            shared = self._one(
                "SELECT max(one.number) n FROM changes one JOIN changes two USING (number, at)"
                " WHERE one.workspace = ? AND two.workspace = ?",
                one.id,
                two.id,
            )
            return cast("int | None", shared["n"])

    def at(self, workspace: str, path: str, number: int | None = None) -> Entry | None:
        """See `VersionStore`."""
        with self._lock:
            row = self._required(workspace, number)
            if row is None:
                return None
            if number is None and (row.id, path) in self._newest:
                return self._newest[row.id, path]
            match = self._one(
                f"SELECT {_ENTRY} FROM entries WHERE workspace = ? AND path = ? AND number <= ?"  # noqa: S608
                " ORDER BY number DESC LIMIT 1",
                row.id,
                os.fsencode(path),
                row.last if number is None else number,
            )
            entry = None if match is None else _entry(match)
            if number is None:
                self._remember(self._newest, (row.id, path), entry)
            return entry

    def _remember(self, rows: dict[K, V], key: K, row: V) -> None:
        if len(rows) >= _REMEMBERED:
            rows.clear()
        rows[key] = row

    def tree_at(self, workspace: str, number: int | None = None, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._lock:
            row = self._required(workspace, number)
            if row is None:
                return {}
            rows = self._all(
                # SQLite takes the other columns from the row with the maximum
                "SELECT path, max(number) number, at, type, mode, size, digest, stamp FROM entries"  # noqa: S608
                f" WHERE workspace = ? AND number <= ? AND {_BELOW} GROUP BY path HAVING type IS NOT NULL",
                row.id,
                row.last if number is None else number,
                *_below(below),
            )
        return {entry.path: entry for record in rows if (entry := _entry(record)) is not None}

    def paths(self, workspace: str, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._lock:
            row = self._workspace(workspace)
            if row is None:
                return {}
            rows = self._all(
                "SELECT path, max(number) number, at, type, mode, size, digest, stamp FROM entries"  # noqa: S608
                f" WHERE workspace = ? AND type IS NOT NULL AND {_BELOW} GROUP BY path",
                row.id,
                *_below(below),
            )
        return {entry.path: entry for record in rows if (entry := _entry(record)) is not None}

    def changes(
        self, workspace: str, path: str = "", before: int | None = None, limit: int | None = None
    ) -> Sequence[Change]:
        """See `VersionStore`."""
        with self._lock:
            row = self._workspace(workspace)
            if row is None:
                return ()
            numbers = [
                record["number"]
                for record in self._all(
                    f"SELECT DISTINCT number FROM entries WHERE workspace = ? AND number < ? AND {_BELOW}"  # noqa: S608
                    " AND EXISTS (SELECT 1 FROM changes WHERE changes.workspace = entries.workspace"
                    " AND changes.number = entries.number) ORDER BY number DESC LIMIT ?",
                    row.id,
                    row.last + 1 if before is None else before,
                    *_below(path),
                    -1 if limit is None else limit,
                )
            ]
            return self._changes(row.id, numbers, path) if numbers else ()

    def _changes(self, name: int, numbers: Sequence[int], below: str) -> list[Change]:
        """Return these changes, with what they did at and below a path."""
        which = (name, json.dumps(numbers))
        rows = self._all(f"SELECT * FROM changes WHERE workspace = ? AND {_AMONG}", *which)  # noqa: S608
        changes = {row["number"]: row for row in rows}
        entries: dict[int, dict[str, Entry | None]] = {number: {} for number in numbers}
        for row in self._all(
            f"SELECT {_ENTRY} FROM entries WHERE workspace = ? AND {_AMONG} AND {_BELOW} ORDER BY path",  # noqa: S608
            *which,
            *_below(below),
        ):
            entries[row["number"]][os.fsdecode(row["path"])] = _entry(row)
        return [
            Change(
                number,
                changes[number]["at"],
                Author(changes[number]["principal"], changes[number]["agent"], changes[number]["call"]),
                Kind(changes[number]["kind"]),
                entries[number],
            )
            for number in numbers
        ]

    def changes_between(self, workspace: str, first: int, last: int) -> dict[str, tuple[Entry | None, Entry | None]]:
        """See `VersionStore`."""
        with self._lock:
            row = self._required(workspace, first)
            self._required(workspace, last)
            if row is None:
                return {}
            low, high = sorted((first, last))
            paths = [
                os.fsdecode(record["path"])
                for record in self._all(
                    "SELECT DISTINCT path FROM entries WHERE workspace = ? AND number > ? AND number <= ?",
                    row.id,
                    low,
                    high,
                )
            ]
            pairs = {path: (self.at(workspace, path, first), self.at(workspace, path, last)) for path in sorted(paths)}
        return {path: (one, other) for path, (one, other) in pairs.items() if not equal(one, other)}

    def read(self, workspace: str, entry: Entry) -> bytes:
        """See `VersionStore`."""
        with self.open(workspace, entry) as content:
            return content.read()

    def open(self, workspace: str, entry: Entry) -> BinaryIO:
        """See `VersionStore`."""
        return self._open(workspace, entry, remembered=True)

    def _open(self, workspace: str, entry: Entry, *, remembered: bool) -> BinaryIO:
        """Open a content as it is stored, or one that is remembered and still stored."""
        if not entry.digest:
            return BytesIO()
        with self._lock:
            scope = self._scope(workspace)
            digest = bytes.fromhex(entry.digest)
            stored = None if scope is None else self._content(scope, digest)
            if stored is None:
                raise NotFoundError(f"the content of {entry.path!r} at {entry.number} is no longer kept", entry.path)
            if remembered and scope is not None and (data := self._recent.get(scope, digest)) is not None:
                return BytesIO(data)
            if stored.whole:
                chain = self._chain(stored.id)
        content: BinaryIO = BytesIO(decode_chain(chain)) if stored.whole else self._joined(stored.id)
        return verified(content, entry)

    def _joined(self, content: int) -> BinaryIO:
        joined = cast("BinaryIO", SpooledTemporaryFile(max_size=LARGE))  # noqa: SIM115 - the caller closes it
        with self._lock:
            parts = [
                row["part"] for row in self._all("SELECT part FROM parts WHERE content = ? ORDER BY position", content)
            ]
        for part in parts:
            joined.write(self._decoded(part))
        joined.seek(0)
        return joined

    def _decoded(self, content: int) -> bytes:
        with self._lock:
            chain = self._chain(content)
        return decode_chain(chain)

    def _chain(self, content: int) -> list[tuple[int, bytes]]:
        return [(row["size"], row["data"]) for row in self._all(_CHAIN, content)]

    def workspaces(self) -> Sequence[str]:
        """See `VersionStore`."""
        with self._lock:
            return [os.fsdecode(row["name"]) for row in self._all("SELECT name FROM workspaces ORDER BY name")]

    def usage(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._lock:
            scope = self._scope(workspace)
            row = self._one("SELECT coalesce(sum(length(data)), 0) bytes FROM contents WHERE scope = ?", scope)
            return int(row["bytes"])

    def fork(self, workspace: str, copy: str) -> None:
        """See `VersionStore`."""
        with self._transaction():
            self._forget(copy)
            row = self._workspace(workspace)
            if row is None:
                return
            new_id = self._database.execute(
                "INSERT INTO workspaces (name, scope, last, oldest) VALUES (?, ?, ?, ?)",
                (os.fsencode(copy), row.scope, row.last, row.oldest),
            ).lastrowid
            for table, columns in (
                ("changes", "number, at, principal, agent, call, kind"),
                ("entries", "path, number, at, type, mode, size, digest, ''"),
            ):
                self._database.execute(
                    f"INSERT INTO {table} SELECT ?, {columns} FROM {table} WHERE workspace = ?",  # noqa: S608
                    (new_id, row.id),
                )

    def rename(self, workspace: str, name: str) -> None:
        """See `VersionStore`."""
        with self._transaction():
            self._forget(name)
            self._database.execute(
                "UPDATE workspaces SET name = ? WHERE name = ?", (os.fsencode(name), os.fsencode(workspace))
            )

    def purge(self, workspace: str) -> None:
        """See `VersionStore`."""
        with self._transaction():
            self._forget(workspace)
        self._shrink()

    def _forget(self, workspace: str) -> None:
        row = self._workspace(workspace)
        if row is None:
            return
        for table, column in (("entries", "workspace"), ("changes", "workspace"), ("workspaces", "id")):
            self._database.execute(f"DELETE FROM {table} WHERE {column} = ?", (row.id,))  # noqa: S608
        self._recent.forget(row.scope)
        self._collect(row.scope)

    def claim_pruning(self, seconds: float) -> bool:  # noqa: ARG002
        """See `VersionStore`. The caller keeps the time."""
        return True

    def prune(self, workspace: str, retention: VersionRetention) -> int:
        """See `VersionStore`."""
        with self._transaction():
            row = self._workspace(workspace)
            if row is None or self._holds:
                return 0 if row is None else row.oldest
            oldest = row.oldest
            if retention.changes is not None:
                oldest = max(oldest, row.last - retention.changes)
            if retention.seconds is not None:
                result = self._one(
                    "SELECT max(number) n FROM changes WHERE workspace = ? AND at <= ?",
                    row.id,
                    time.time() - retention.seconds,
                )
                oldest = max(oldest, result["n"] or 0)
            self._cut(row, oldest)
            while retention.size is not None and self.usage(workspace) > retention.size and oldest < row.last:
                oldest += max(1, (row.last - oldest) // 8)
                self._cut(row, oldest)
        if oldest != row.oldest:
            self._shrink()
        return oldest

    def _cut(self, row: _WorkspaceRow, oldest: int) -> None:
        """Forget what can be read only before the change `oldest`."""
        self._database.execute("DELETE FROM changes WHERE workspace = ? AND number < ?", (row.id, oldest))
        self._database.execute(
            "DELETE FROM entries WHERE workspace = ? AND number <= ? AND (EXISTS (SELECT 1 FROM entries later"
            " WHERE later.workspace = entries.workspace AND later.path = entries.path"
            " AND later.number > entries.number AND later.number <= ?) OR (type IS NULL AND number < ?))",
            (row.id, oldest, oldest, oldest),
        )
        self._database.execute("UPDATE workspaces SET oldest = ? WHERE id = ?", (oldest, row.id))
        self._collect(row.scope)

    def _collect(self, scope: bytes) -> None:
        """Delete the contents of a scope that no entry has. Encode those anew that were encoded against one of them."""
        unused = {row["id"] for row in self._all(_UNUSED, {"scope": scope})}
        for row in self._all(
            "SELECT id, base, size FROM contents WHERE scope = ? AND base IS NOT NULL ORDER BY id", scope
        ):
            if row["base"] in unused and row["id"] not in unused:
                data = encode(self._decoded(row["id"]))
                self._database.execute(
                    "UPDATE contents SET base = NULL, step = 0, data = ? WHERE id = ?", (data, row["id"])
                )
        for content in unused:
            self._database.execute("DELETE FROM parts WHERE content = ?", (content,))
            self._database.execute("DELETE FROM contents WHERE id = ?", (content,))
        if unused and self._all(_UNUSED + " LIMIT 1", {"scope": scope}):  # the chunks of what was deleted
            self._collect(scope)

    def _shrink(self) -> None:
        """Remove what was deleted from the write-ahead log, too, and give its space back."""
        with self._syncing, self._lock:
            with suppress(sqlite3.OperationalError):
                self._database.execute("PRAGMA incremental_vacuum").fetchall()
            self._truncate_log()

    def _truncate_log(self) -> None:
        with suppress(sqlite3.OperationalError):  # the disk is full: the next one does it
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def check_integrity(self) -> None:
        """See `VersionStore`."""
        with self._lock:
            problems = [row[0] for row in self._all("PRAGMA integrity_check(20)") if row[0] != "ok"]
            if problems:
                raise DamagedVersionError(f"the store of versions is damaged: {problems[0]}")
        for workspace in self.workspaces():
            name = self._made(workspace).id
            for row in self._all(f"SELECT {_ENTRY} FROM entries WHERE workspace = ?", name):  # noqa: S608
                if (entry := _entry(row)) is not None and entry.digest:
                    self._open(workspace, entry, remembered=False).close()

    def backup(self, target: Path) -> None:
        """Write a copy of the store, which is in use, to a new file that only its owner can read. Raises `OSError`."""
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            with closing(sqlite3.connect(target, isolation_level=None)) as copy, self._lock:
                self._database.backup(copy)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"versions cannot be copied: {error}") from None

    @contextmanager
    def _transaction(self, *, keeps: bool = False) -> Iterator[None]:
        """Make the block one transaction. It clears the remembered rows, unless the block `keeps` them true."""
        with self._lock:
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
        self._workspaces.clear()
        self._newest.clear()
        self._stored.clear()

    def _workspace(self, workspace: str) -> _WorkspaceRow | None:
        if workspace not in self._workspaces:
            row = self._one(_WORKSPACE, os.fsencode(workspace))
            self._remember(self._workspaces, workspace, None if row is None else _WorkspaceRow(*row))
        return self._workspaces[workspace]

    def _required(self, workspace: str, number: int | None) -> _WorkspaceRow | None:
        """Return the row of a workspace, None if it has no changes. Raises `NotFoundError` for a wrong number."""
        row = self._workspace(workspace)
        last, oldest = (0, 0) if row is None else (row.last, row.oldest)
        require_kept(workspace, number, oldest, last)
        return row

    def _made(self, workspace: str) -> _WorkspaceRow:
        """Return the row of a workspace, which is created if it does not exist."""
        row = self._workspace(workspace)
        if row is None:
            scope = secrets.token_bytes(16)
            row_id = self._database.execute(
                "INSERT INTO workspaces (name, scope) VALUES (?, ?)", (os.fsencode(workspace), scope)
            ).lastrowid
            row = self._workspaces[workspace] = _WorkspaceRow(cast("int", row_id), scope, 0, 0, None)
        return row

    def _scope(self, workspace: str) -> bytes | None:
        row = self._workspace(workspace)
        return None if row is None else row.scope

    def _content(self, scope: bytes, digest: bytes) -> _ContentRow | None:
        stored = self._stored.get((scope, digest))
        if stored is None:
            row = self._one(
                "SELECT id, base, step, data IS NOT NULL FROM contents WHERE scope = ? AND digest = ?", scope, digest
            )
            if row is not None:
                self._remember(self._stored, (scope, digest), stored := _ContentRow(*row))
        return stored

    def _one(self, statement: str, *values: object) -> Any:
        return self._database.execute(statement, values).fetchone()

    def _all(self, statement: str, *values: object) -> list[sqlite3.Row]:
        bound: Any = values[0] if values and isinstance(values[0], dict) else values
        return self._database.execute(statement, bound).fetchall()


_BELOW = "(? = X'' OR path = ? OR (path > ? AND path < ?))"


def _below(path: str) -> tuple[bytes, bytes, bytes, bytes]:
    name = os.fsencode(path)
    return name, name, name + b"/", name + b"0"  # "0" follows "/"


def _recorded(path: str, number: int, at: float, state: State) -> Entry:
    size, digest = (0, "") if state.content is None else (state.content.size, state.content.digest.hex())
    return Entry(path, number, at, state.type, state.mode, size, digest, state.stamp)


def _entry(row: sqlite3.Row) -> Entry | None:
    if row["type"] is None:
        return None
    digest = "" if row["digest"] is None else row["digest"].hex()
    return Entry(
        os.fsdecode(row["path"]),
        row["number"],
        row["at"],
        EntryType(row["type"]),
        row["mode"],
        row["size"],
        digest,
        row["stamp"],
    )


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
