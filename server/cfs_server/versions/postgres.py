"""A store of versions in a PostgreSQL database that several servers share.

Contents are addressed by their SHA-256 within one scope, a workspace and its forks, as in a file. Each transaction that
writes locks the row of its workspace and then the scope. So what it finds there is not removed meanwhile.
"""

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from psycopg.errors import DivisionByZero

from cfs_filesystem import NotFoundError
from cfs_filesystem.versions import (
    Author,
    Change,
    Content,
    Entry,
    EntryType,
    Kind,
    State,
    VersionRetention,
)
from cfs_filesystem.versions.codec import LARGE, Basis, chunks, encode, verified
from cfs_filesystem.versions.model import equal, require_kept
from cfs_filesystem.versions.recent import RecentContents
from cfs_server.journal.postgres_connection import escape, unescape
from cfs_server.versions import contents
from cfs_server.versions.connections import Statement, VersionsConnection, VersionsConnections
from cfs_server.versions.contents import StoredContent

_KEY_BYTES = 1024
"""An index of PostgreSQL takes about 2,700 bytes."""
_STRIPES = 64
_READ = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
_ENTRY = "path, number, at, type, mode, size, digest, stamp"
_NEWEST = (
    f"SELECT {_ENTRY} FROM (SELECT DISTINCT ON (key) {_ENTRY} FROM cfs.version_entries"  # noqa: S608
    " WHERE workspace = %s AND number <= %s AND {below} ORDER BY key, number DESC) AS newest WHERE type IS NOT NULL"
)


_LOCK = "SELECT pg_advisory_lock(key) FROM unnest(%s::bigint[]) AS key"
_LOCK_SCOPE = (
    "SELECT pg_advisory_xact_lock(%s) FROM (SELECT 1 FROM cfs.version_workspaces WHERE id = %s FOR UPDATE) AS workspace"
)
_CONTENTS = """
INSERT INTO cfs.version_contents (scope, digest, size, base, step, data)
SELECT %b, new.* FROM unnest(%b::bytea[], %s::bigint[], %s::bigint[], %s::integer[], %b::bytea[])
    AS new (digest, size, base, step, data)
WHERE base IS NULL OR EXISTS (SELECT 1 FROM cfs.version_contents AS kept WHERE kept.id = new.base)
ON CONFLICT (scope, digest) DO NOTHING
"""
_RECORD = """
WITH workspace AS (
    UPDATE cfs.version_workspaces SET last = last + 1 WHERE id = %s RETURNING id, scope, last
), change AS (
    INSERT INTO cfs.version_changes (workspace, number, at, principal, agent, call, kind)
    SELECT id, last, greatest(
        extract(epoch FROM clock_timestamp())::double precision,
        (SELECT at FROM cfs.version_changes WHERE workspace = id AND number = last - 1)
    ), %s, %s, %s, %s FROM workspace RETURNING workspace, number, at
), states AS (
    SELECT * FROM unnest(
        %b::bytea[], %b::bytea[], %s::text[], %s::integer[], %s::bigint[], %b::bytea[], %s::text[], %s::boolean[]
    ) AS state (key, path, type, mode, size, digest, stamp, above)
), entries AS (
    INSERT INTO cfs.version_entries
    SELECT workspace, key, change.number, path, at, type, mode, size, digest, stamp FROM change, states
    WHERE NOT above OR (
        SELECT newest.type FROM cfs.version_entries AS newest
        WHERE newest.workspace = change.workspace AND newest.key = states.key ORDER BY newest.number DESC LIMIT 1
    ) IS DISTINCT FROM 'folder'
)
SELECT last, 1 / (last IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM states WHERE digest IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM cfs.version_contents AS kept WHERE kept.scope = workspace.scope AND kept.digest = states.digest
    )
))::integer FROM (SELECT) AS one LEFT JOIN workspace ON true
"""
"""Fails with a division by zero if the workspace or a content is not there: it was removed since somebody looked."""


class _Workspace(NamedTuple):
    id: int
    scope: bytes
    last: int
    oldest: int


class _Newest(NamedTuple):
    """What a block that changes one path has found there when it got its locks."""

    row: _Workspace | None
    entry: Entry | None = None
    content: StoredContent | None = None


class _PathBlock:
    """A block that changes one path. `newest` is None once the block has recorded something."""

    def __init__(self, workspace: str, path: str, newest: _Newest) -> None:
        self.workspace = workspace
        self.path = path
        self.newest: _Newest | None = newest


class PostgresVersions:
    """A `VersionStore` in a database whose tables `prepare` has made. Blocks of `changing` hold locks of the database.

    A commit is as durable as one of a session: see `synchronous_commit`.
    """

    shared = True

    def __init__(self, url: str) -> None:
        """Connect to a database. Raises `OSError` if it cannot be used, or has no locks."""
        self._connections = VersionsConnections(url)
        self._block: ContextVar[_PathBlock | None] = ContextVar("versions_block", default=None)
        self._recent = RecentContents()
        self._recent_lock = threading.Lock()
        self._holds = 0
        self._holds_lock = threading.Lock()
        try:
            self._require_locks()
        except BaseException:
            self.close()
            raise

    def _require_locks(self) -> None:
        key = _key_of("start", secrets.token_hex(8))
        with self._connections.alone(_LOCK, [key]), self._connections.connection() as database:
            held = database.execute(
                "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted"
            )
        if not held:
            raise OSError(errno.ENOTSUP, f"{self._connections.place}: the database has no advisory locks")

    def close(self) -> None:
        """See `VersionStore`."""
        self._connections.close()

    def checkpoint(self) -> None:
        """See `VersionStore`. The database does so with each commit."""

    @contextmanager
    def changing(self, workspaces: Iterable[str], path: str | None = None) -> Iterator[None]:
        """See `VersionStore`."""
        keys = {workspace: _key_of("workspace", workspace) for workspace in workspaces}
        if path is None:
            with self._connections.alone(_LOCK, sorted(keys.values())):
                yield
            return
        ((workspace, key),) = keys.items()
        stripe = hashlib.sha256(name := os.fsencode(path)).digest()[0] % _STRIPES
        locks = (key, _key_of(f"path {stripe}", workspace))
        begin = "SELECT * FROM cfs.begin_version(%s, %s, %b, %b)"
        with self._connections.alone(begin, *locks, os.fsencode(workspace), _path_key(name)) as rows:
            token = self._block.set(_PathBlock(workspace, path, _newest(rows)))
            try:
                yield
            finally:
                self._block.reset(token)

    def _known(self, workspace: str, path: str | None = None) -> _Newest | None:
        """Return what this block knows of a workspace, or of a path: no other program can change that meanwhile."""
        block = self._block.get()
        if block is None or block.workspace != workspace or path not in (None, block.path):
            return None
        return block.newest

    def _forget_known(self) -> None:
        if (block := self._block.get()) is not None:
            block.newest = None

    @contextmanager
    def holding(self) -> Iterator[None]:
        """See `VersionStore`."""
        with self._connections.connection() as database:
            database.locked = True
            database.execute("SELECT pg_advisory_lock_shared(%s)", _HOLDING)
            with self._holds_lock:
                self._holds += 1
            try:
                yield
            finally:
                with self._holds_lock:
                    self._holds -= 1
                database.execute("SELECT pg_advisory_unlock_shared(%s)", _HOLDING)

    @contextmanager
    def _reading(self) -> Iterator[VersionsConnection]:
        """Let the statements of a block see one state of the database."""
        with self._connections.connection() as database, database.transaction(_READ):
            yield database

    @contextmanager
    def _writing(self) -> Iterator[VersionsConnection]:
        self._forget_known()
        with self._connections.connection() as database, database.transaction():
            yield database

    def prepare(
        self,
        workspace: str,
        data: bytes,
        previous: Entry | None = None,
        previous_data: Callable[[], bytes] | None = None,
    ) -> Content:
        """See `VersionStore`."""
        digest = hashlib.sha256(data).digest()
        before = bytes.fromhex(previous.digest) if previous is not None and previous.size else b""
        scope, stored = self._look_up(workspace, digest, before)
        if scope is None:
            return Content(digest, len(data), data, encode(data))
        if digest in stored:
            return Content(digest, len(data), data)
        basis = Basis()
        if before in stored and previous_data is not None:
            with self._recent_lock:
                known = self._recent.get(scope, before)
            previous_content = known or previous_data()
            # a wrong dictionary would make the version unreadable
            if known is not None or hashlib.sha256(previous_content).digest() == before:
                basis = contents.basis_after(self._reading, stored[before], previous_content)
        with self._recent_lock:
            self._recent.add(scope, digest, data)
        return Content(digest, len(data), data, encode(data, basis.dictionary), basis.id, basis.step)

    def _look_up(self, workspace: str, *digests: bytes) -> tuple[bytes | None, dict[bytes, StoredContent]]:
        """Return the scope of a workspace, and which of some contents it is known to have."""
        if (known := self._known(workspace)) is not None:
            stored = {}
            if known.entry is not None and known.content is not None:
                stored[bytes.fromhex(known.entry.digest)] = known.content
            return None if known.row is None else known.row.scope, stored
        with self._reading() as database:
            row = _find(database, workspace)
            if row is None:
                return None, {}
            rows = {digest: contents.find(database, row.scope, digest) for digest in digests if digest}
            return row.scope, {digest: content for digest, content in rows.items() if content is not None}

    def keep(self, workspace: str, source: BinaryIO, previous: Entry | None = None) -> Content:
        """See `VersionStore`."""
        data = source.read(LARGE + 1)
        if len(data) <= LARGE:
            usable = previous is not None and previous.type is EntryType.FILE and 0 < previous.size <= LARGE
            before = partial(self.read, workspace, previous) if previous is not None and usable else None
            content = self.prepare(workspace, data, previous, before)
            self._keep(workspace, content)
            return Content(content.digest, content.size)
        digest, size, parts = hashlib.sha256(), 0, []
        for chunk in chunks(data, source):
            digest.update(chunk)
            size += len(chunk)
            part = Content(hashlib.sha256(chunk).digest(), len(chunk), chunk, encode(chunk))
            self._keep(workspace, part)
            parts.append(part.digest)
        self._keep(workspace, Content(digest.digest(), size, parts=tuple(parts)))
        return Content(digest.digest(), size)

    def _keep(self, workspace: str, content: Content) -> None:
        with self._writing() as database:
            contents.store(database, _made(database, workspace).scope, content)

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
        ends: bool = False,
    ) -> int:
        """See `VersionStore`. The time is that of the database."""
        with self._connections.connection() as database:
            known = self._known(workspace)
            self._forget_known()
            if ends and known is not None and (row := known.row) is not None:
                with suppress(DivisionByZero):  # a content was removed since it was prepared
                    return _record_at_once(database, row, (author, kind, states, above))
            with database.transaction():
                row = _made(database, workspace)
                for state in states.values():
                    if state is not None and state.content is not None:
                        contents.store(database, row.scope, state.content)
                ((number, _),) = database.execute(*_recording(row.id, author, kind, states, above))
        return int(number)

    def restamp(self, workspace: str, stamps: Mapping[str, str]) -> None:
        """See `VersionStore`."""
        with self._writing() as database:
            row = _made(database, workspace)
            keys = [(path, _path_key(os.fsencode(path))) for path in stamps]
            database.insert(
                "UPDATE cfs.version_entries SET stamp = %s WHERE workspace = %s AND key = %b AND number ="
                " (SELECT max(number) FROM cfs.version_entries WHERE workspace = %s AND key = %b)",
                [(stamps[path], row.id, key, row.id, key) for path, key in keys],
            )

    def last(self, workspace: str) -> int:
        """See `VersionStore`."""
        if (known := self._known(workspace)) is not None:
            return 0 if known.row is None else known.row.last
        with self._connections.connection() as database:
            row = _find(database, workspace)
            return 0 if row is None else row.last

    def oldest(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._connections.connection() as database:
            row = _find(database, workspace)
            return 0 if row is None else row.oldest

    def number_at(self, workspace: str, time: float, order: int | None = None) -> int:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _find(database, workspace)
            if row is None:
                return 0
            ((number,),) = database.execute(
                "SELECT max(number) FROM cfs.version_changes WHERE workspace = %s"
                ' AND CASE WHEN %s::bigint IS NULL THEN at <= %s ELSE coalesce("order", 0) <= %s END',
                *(row.id, order, time, order),
            )
            if number is None and row.oldest > 0:
                raise NotFoundError(f"the past of {workspace!r} before its change {row.oldest} is no longer kept")
            return int(number or 0)

    def common(self, workspace: str, other: str) -> int | None:
        """See `VersionStore`."""
        with self._reading() as database:
            one, two = _find(database, workspace), _find(database, other)
            if one is None or two is None or one.scope != two.scope:
                return None
            ((number,),) = database.execute(
                "SELECT max(one.number) FROM cfs.version_changes AS one JOIN cfs.version_changes AS two"
                " USING (number, at) WHERE one.workspace = %s AND two.workspace = %s",
                one.id,
                two.id,
            )
            return None if number is None else int(number)

    def at(self, workspace: str, path: str, number: int | None = None) -> Entry | None:
        """See `VersionStore`."""
        if number is None and (known := self._known(workspace, path)) is not None:
            return known.entry
        with self._reading() as database:
            row = _required(database, workspace, number)
            if row is None:
                return None
            rows = database.execute(
                f"SELECT {_ENTRY} FROM cfs.version_entries WHERE workspace = %s AND key = %b AND number <= %s"  # noqa: S608
                " ORDER BY number DESC LIMIT 1",
                row.id,
                _path_key(os.fsencode(path)),
                row.last if number is None else number,
            )
        return _entry(rows[0]) if rows else None

    def tree_at(self, workspace: str, number: int | None = None, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _required(database, workspace, number)
            if row is None:
                return {}
            which, values = _below(below)
            rows = database.execute(
                _NEWEST.format(below=which), row.id, row.last if number is None else number, *values
            )
        return _by_path(rows)

    def paths(self, workspace: str, below: str = "") -> dict[str, Entry]:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _find(database, workspace)
            if row is None:
                return {}
            which, values = _below(below)
            rows = database.execute(_NEWEST.format(below=f"type IS NOT NULL AND {which}"), row.id, row.last, *values)
        return _by_path(rows)

    def changes(
        self, workspace: str, path: str = "", before: int | None = None, limit: int | None = None
    ) -> Sequence[Change]:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _find(database, workspace)
            if row is None:
                return ()
            which, values = _below(path)
            numbers = database.execute(
                "SELECT number, at, principal, agent, call, kind FROM cfs.version_changes AS changes"  # noqa: S608
                " WHERE workspace = %s AND number < %s AND EXISTS (SELECT 1 FROM cfs.version_entries AS entries"
                f" WHERE entries.workspace = changes.workspace AND entries.number = changes.number AND {which})"
                " ORDER BY number DESC LIMIT %s::bigint",
                row.id,
                row.last + 1 if before is None else before,
                *values,
                limit,
            )
            entries: dict[int, dict[str, Entry | None]] = {number: {} for number, *_ in numbers}
            for record in database.execute(
                f"SELECT {_ENTRY} FROM cfs.version_entries WHERE workspace = %s AND number = ANY(%s::bigint[])"  # noqa: S608
                f" AND {which} ORDER BY path",
                row.id,
                list(entries),
                *values,
            ):
                entries[record[1]][os.fsdecode(record[0])] = _entry(record)
        return [
            Change(number, at, Author(*map(unescape, author)), Kind(kind), entries[number])
            for number, at, *author, kind in numbers
        ]

    def changes_between(self, workspace: str, first: int, last: int) -> dict[str, tuple[Entry | None, Entry | None]]:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _required(database, workspace, first)
            _required(database, workspace, last)
            if row is None:
                return {}
            keys = [
                key
                for (key,) in database.execute(
                    "SELECT DISTINCT key FROM cfs.version_entries"
                    " WHERE workspace = %s AND number > %s AND number <= %s",
                    row.id,
                    *sorted((first, last)),
                )
            ]
            ones, others = (
                _by_path(database.execute(_NEWEST.format(below="key = ANY(%b::bytea[])"), row.id, number, keys))
                for number in (first, last)
            )
        pairs = {path: (ones.get(path), others.get(path)) for path in sorted(ones.keys() | others.keys())}
        return {path: (one, other) for path, (one, other) in pairs.items() if not equal(one, other)}

    def read(self, workspace: str, entry: Entry) -> bytes:
        """See `VersionStore`."""
        with self.open(workspace, entry) as content:
            return content.read()

    def open(self, workspace: str, entry: Entry) -> BinaryIO:
        """See `VersionStore`."""
        if not entry.digest:
            return BytesIO()
        with self._reading() as database:
            row = _find(database, workspace)
            stored = None if row is None else contents.find(database, row.scope, bytes.fromhex(entry.digest))
            if stored is None:
                raise NotFoundError(f"the content of {entry.path!r} at {entry.number} is no longer kept", entry.path)
            content = contents.load(database, stored)
        return verified(content, entry)

    def workspaces(self) -> Sequence[str]:
        """See `VersionStore`."""
        with self._connections.connection() as database:
            rows = database.execute("SELECT name FROM cfs.version_workspaces ORDER BY name")
        return [os.fsdecode(name) for (name,) in rows]

    def usage(self, workspace: str) -> int:
        """See `VersionStore`."""
        with self._reading() as database:
            row = _find(database, workspace)
            return 0 if row is None else contents.size_of(database, row.scope)

    def fork(self, workspace: str, copy: str) -> None:
        """See `VersionStore`."""
        with self._writing() as database:
            self._forget(database, copy)
            row = _locked(database, workspace)
            if row is None:
                return
            ((new_id,),) = database.execute(
                "INSERT INTO cfs.version_workspaces (name, scope, last, oldest) VALUES (%b, %b, %s, %s) RETURNING id",
                os.fsencode(copy),
                row.scope,
                row.last,
                row.oldest,
            )
            for table, columns in (
                ("changes", 'number, at, principal, agent, call, kind, "order"'),
                ("entries", "key, number, path, at, type, mode, size, digest, ''"),
            ):
                database.execute(
                    f"INSERT INTO cfs.version_{table} SELECT %s, {columns} FROM cfs.version_{table}"  # noqa: S608
                    " WHERE workspace = %s",
                    new_id,
                    row.id,
                )

    def rename(self, workspace: str, name: str) -> None:
        """See `VersionStore`."""
        with self._writing() as database:
            self._forget(database, name)
            database.execute(
                "UPDATE cfs.version_workspaces SET name = %b WHERE name = %b", os.fsencode(name), os.fsencode(workspace)
            )

    def purge(self, workspace: str) -> None:
        """See `VersionStore`. The bytes are in the files of the database until it uses their space again."""
        with self._writing() as database:
            self._forget(database, workspace)

    def _forget(self, database: VersionsConnection, workspace: str) -> None:
        row = _locked(database, workspace)
        if row is None:
            return
        for table, column in (("entries", "workspace"), ("changes", "workspace"), ("workspaces", "id")):
            database.execute(f"DELETE FROM cfs.version_{table} WHERE {column} = %s", row.id)  # noqa: S608
        with self._recent_lock:
            self._recent.forget(row.scope)
        contents.collect(database, row.scope)

    def claim_pruning(self, seconds: float) -> bool:
        """See `VersionStore`."""
        with self._connections.connection() as database:
            return bool(
                database.execute(
                    "INSERT INTO cfs.meta VALUES ('versions.pruned', extract(epoch FROM now())::text)"
                    " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
                    " WHERE meta.value::double precision < excluded.value::double precision - %s RETURNING 1",
                    seconds,
                )
            )

    def prune(self, workspace: str, retention: VersionRetention) -> int:
        """See `VersionStore`. Nothing is removed while any program is in a block `holding`."""
        with self._writing() as database:
            row = _locked(database, workspace)
            if row is None:
                return 0
            ((free,),) = database.execute("SELECT pg_try_advisory_xact_lock(%s)", _HOLDING)
            with self._holds_lock:
                held = self._holds  # a block of this connection does not prevent its own lock
            if held or not free:
                return row.oldest
            oldest = row.oldest
            if retention.changes is not None:
                oldest = max(oldest, row.last - retention.changes)
            if retention.seconds is not None:
                ((number,),) = database.execute(
                    "SELECT max(number) FROM cfs.version_changes WHERE workspace = %s"
                    " AND at <= extract(epoch FROM clock_timestamp())::double precision - %s",
                    row.id,
                    retention.seconds,
                )
                oldest = max(oldest, number or 0)
            _cut(database, row, oldest)
            limit = retention.size
            while limit is not None and oldest < row.last and contents.size_of(database, row.scope) > limit:
                oldest += max(1, (row.last - oldest) // 8)
                _cut(database, row, oldest)
        return oldest

    def backup(self, target: Path) -> None:
        """Raise `OSError`: the database has its own means."""
        raise OSError(errno.ENOTSUP, f"{self._connections.place} are saved by `pg_dump --schema=cfs`", str(target))

    def check_integrity(self) -> None:
        """See `VersionStore`."""
        with self.holding():
            for workspace in self.workspaces():
                for entry in self._entries(workspace):
                    self.open(workspace, entry).close()

    def _entries(self, workspace: str) -> list[Entry]:
        with self._reading() as database:
            row = _find(database, workspace)
            if row is None:
                return []
            rows = database.execute(f"SELECT {_ENTRY} FROM cfs.version_entries WHERE workspace = %s", row.id)  # noqa: S608
        return [entry for record in rows if (entry := _entry(record)) is not None]


def _key_of(kind: str, name: str) -> int:
    """Return the key of an advisory lock. The journal's locks have two numbers, which never meet these."""
    digest = hashlib.sha256(b"cfs versions " + kind.encode() + b"\0" + os.fsencode(name)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


_HOLDING = _key_of("holding", "")


def _find(database: VersionsConnection, workspace: str, lock: str = "") -> _Workspace | None:
    rows = database.execute(
        f"SELECT id, scope, last, oldest FROM cfs.version_workspaces WHERE name = %b {lock}",  # noqa: S608
        os.fsencode(workspace),
    )
    return _Workspace(*rows[0]) if rows else None


def _newest(rows: Sequence[Sequence[Any]]) -> _Newest:
    if not rows:
        return _Newest(None)
    ((*row, path, number, at, entry_type, mode, size, digest, stamp, content, base, step, parts),) = rows
    entry = _entry((path, number, at, entry_type, mode, size, digest, stamp))
    stored = None if content is None else StoredContent(content, base, step, parts)
    return _Newest(_Workspace(*row), entry, stored)


def _recording(
    workspace: int, author: Author, kind: Kind, states: Mapping[str, State | None], above: Mapping[str, State]
) -> Statement:
    """Return the statement that records a change. `above` are folders that are recorded unless they are versions."""
    rows = [
        (_path_key(name := os.fsencode(path)), name, *_values(state), path in above and path not in states)
        for path, state in {**above, **states}.items()
    ]
    columns = map(list, zip(*rows, strict=True)) if rows else [[]] * 8
    by = map(escape, (author.principal, author.agent, author.call, kind))
    return (_RECORD, workspace, *by, *columns)


def _record_at_once(
    database: VersionsConnection,
    row: _Workspace,
    change: tuple[Author, Kind, Mapping[str, State | None], Mapping[str, State]],
) -> int:
    """Record a change, and give all locks back, in one round trip.

    Raises `DivisionByZero` if the workspace, a content or the base of one is not there.
    """
    new = {
        content.digest: (content.digest, content.size, content.base, content.step, content.encoded)
        for state in change[2].values()
        if state is not None and (content := state.content) is not None and content.encoded is not None
    }
    storing = [(_CONTENTS, row.scope, *map(list, zip(*new.values(), strict=True)))] if new else []
    lock = (_LOCK_SCOPE, _key_of("scope", row.scope.hex()), row.id)
    recording = _recording(row.id, *change)
    *_, ((number, _),) = database.transact_and_release(lock, *storing, recording)
    return int(number)


def _locked(database: VersionsConnection, workspace: str) -> _Workspace | None:
    """Find a workspace, and lock it and its scope until the end of the transaction."""
    row = _find(database, workspace, "FOR UPDATE")
    if row is not None:
        database.execute("SELECT pg_advisory_xact_lock(%s)", _key_of("scope", row.scope.hex()))
    return row


def _made(database: VersionsConnection, workspace: str) -> _Workspace:
    """Return a workspace, which is created if it does not exist, locked as by `_locked`."""
    row = _locked(database, workspace)
    while row is None:
        database.execute(
            "INSERT INTO cfs.version_workspaces (name, scope) VALUES (%b, %b) ON CONFLICT (name) DO NOTHING",
            os.fsencode(workspace),
            secrets.token_bytes(16),
        )
        row = _locked(database, workspace)
    return row


def _required(database: VersionsConnection, workspace: str, number: int | None) -> _Workspace | None:
    """Return a workspace, None if it has no changes. Raises `NotFoundError` for a wrong number."""
    row = _find(database, workspace)
    last, oldest = (0, 0) if row is None else (row.last, row.oldest)
    require_kept(workspace, number, oldest, last)
    return row


def _cut(database: VersionsConnection, row: _Workspace, oldest: int) -> None:
    """Forget what can be read only before the change `oldest`."""
    database.execute("DELETE FROM cfs.version_changes WHERE workspace = %s AND number < %s", row.id, oldest)
    database.execute(
        "DELETE FROM cfs.version_entries AS entries WHERE workspace = %s AND number <= %s AND (EXISTS (SELECT 1"
        " FROM cfs.version_entries AS later WHERE later.workspace = entries.workspace AND later.key = entries.key"
        " AND later.number > entries.number AND later.number <= %s) OR (type IS NULL AND number < %s))",
        *(row.id, oldest, oldest, oldest),
    )
    database.execute("UPDATE cfs.version_workspaces SET oldest = %s WHERE id = %s", oldest, row.id)
    contents.collect(database, row.scope)


def _path_key(path: bytes) -> bytes:
    return path if len(path) <= _KEY_BYTES else path[:_KEY_BYTES] + hashlib.sha256(path).digest()


def _below(path: str) -> tuple[str, tuple[bytes, ...]]:
    """Return the condition for entries at and below a path, and its values."""
    name = os.fsencode(path)
    if not name:
        return "true", ()
    column = "key" if len(name) < _KEY_BYTES else "path"  # a key has the beginning of its path
    return f"({column} = %b OR ({column} > %b AND {column} < %b))", (name, name + b"/", name + b"0")  # "0" follows "/"


def _values(state: State | None) -> tuple[object, ...]:
    if state is None:
        return None, 0, 0, None, ""
    content = state.content
    digest = None if content is None else content.digest
    return str(state.type), state.mode, 0 if content is None else content.size, digest, state.stamp


def _entry(row: Sequence[Any]) -> Entry | None:
    path, number, at, entry_type, mode, size, digest, stamp = row
    if entry_type is None:
        return None
    digest = "" if digest is None else digest.hex()
    return Entry(os.fsdecode(path), number, at, EntryType(entry_type), mode, size, digest, stamp)


def _by_path(rows: Iterable[Sequence[Any]]) -> dict[str, Entry]:
    return {entry.path: entry for row in rows if (entry := _entry(row)) is not None}
