"""Stores the journal in one slot of a PostgreSQL database: one owner, one connection, one thread.

A claim takes the lock of the slot, which ends with the connection of its holder, and increments the epoch of the slot.
The lock only makes a take-over quick. What makes it safe is the epoch: each transaction first changes the row of the
slot, on the condition that the epoch is still its own. So it waits for a claim that is under way, and fails after it.

When the connection is lost during a commit, it is unknown whether that succeeded. A new connection increments the epoch
as well, so that nothing more of the old one can succeed. Then the row of the slot says which records are stored.
"""

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from json import loads
from pathlib import Path
from threading import Lock
from typing import TypeVar

import psycopg
from psycopg import errors

from cfs_server.domain.words import Criteria
from cfs_server.journal.journal import Batch, Hits, Opened, StoreFailed, StoreFull, StoreUnavailable
from cfs_server.journal.postgres_connection import (
    Connection,
    connect,
    escape,
    failure_of,
    place_of,
    translated,
    unescape,
)
from cfs_server.journal.postgres_database import require_schema
from cfs_server.journal.postgres_index import PostgresIndex
from cfs_server.journal.postgres_locks import end_holder, try_lock
from cfs_server.journal.records import DELETED, HISTORY, TOKENS, Row, UnknownRecord, decode_head, require_known

_T = TypeVar("_T")
EVENT_WINDOW = 65_536
"""Tokens are pruned when there are this many newer events. The messages that contain their text are not."""
_CREATED = HISTORY[0]
_CHUNK = 1_000
"""Records that one step of maintenance, or one step of reading events, touches."""
_INDEX_AT_ONCE = 64
"""Records that wait for the index of words at most, unless it is being built."""
_CATCH_UP_STEPS = 8
"""Steps of the index that a search waits for."""
_WAIT_SECONDS = 0.5
"""After a failed attempt to connect, reads fail at once for this time: each attempt could take seconds."""
_COLUMNS = "records.seq, session, at, kind, version, author, body, events, number, position"
_FENCE = (
    "WITH mine AS (UPDATE cfs.slots SET seq = %s, position = %s WHERE slot = %s AND epoch = %s RETURNING slot)"
    " SELECT 1 / count(*) FROM mine"
)
"""Fails with a division by zero if the slot has another epoch. The statements behind it are sent before it answers, so
an error must end their transaction."""
_INSERT = (
    "INSERT INTO cfs.records (slot, seq, session, at, kind, version, author, body, events, number, position)"
    " SELECT %s, * FROM unnest(%b::bigint[], %b::text[], %b::double precision[], %b::text[], %b::integer[],"
    " %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[])"
)
_CLAIM = (
    "WITH claimed AS (UPDATE cfs.slots SET epoch = epoch + 1, owner = %s, claim = %s,"
    " pid = CASE WHEN %s::boolean THEN pg_backend_pid() END"
    " WHERE slot = %s AND epoch = %s RETURNING slot, epoch, pg_backend_pid() AS process, life, seq, position, pruned),"
    " begun AS (INSERT INTO cfs.epochs (slot, epoch, label, seq, position)"
    " SELECT slot, epoch, %s, seq, position FROM claimed RETURNING slot)"
    " SELECT epoch, process, life, seq, position, pruned FROM claimed"
)
_FIRST = """
WITH RECURSIVE narrow (low, high) AS (
    SELECT 0::bigint, %(end)s::bigint
    UNION ALL
    SELECT CASE WHEN last <= %(after)s THEN found.seq + 1 ELSE low END,
        CASE WHEN last <= %(after)s THEN high ELSE (low + high) >> 1 END
    FROM narrow LEFT JOIN LATERAL (
        SELECT seq, {last} AS last FROM cfs.records
        WHERE slot = %(slot)s AND {which} AND seq >= (low + high) >> 1 ORDER BY seq LIMIT 1
    ) AS found ON true
    WHERE low < high
)
SELECT max(low) FROM narrow
"""
"""The first sequence number in a log after a number, by bisection: the numbers grow with it."""
_PAGE = f"""
SELECT * FROM (
    SELECT *, sum(octet_length(body) + octet_length(events)) OVER (ORDER BY seq) AS total FROM (
        SELECT {_COLUMNS} FROM cfs.records JOIN cfs.sessions ON sessions.slot = records.slot AND key = session
        WHERE records.slot = %(slot)s AND {{which}} AND records.seq >= %(first)s
            AND (deleted IS NULL OR records.seq = deleted AND {{common}})
        ORDER BY records.seq LIMIT {_CHUNK}
    ) AS page
) AS sized
WHERE total - octet_length(body) - octet_length(events) < %(most)s ORDER BY seq
"""  # noqa: S608
"""Rows from a sequence number on, until they have some bytes; at least one."""


class SlotTaken(StoreFailed):
    """Another server uses the slot."""


class SlotLost(StoreFailed):
    """Another server has taken the slot over. What this one has not stored yet is not stored any more."""


class PostgresBackend:
    """One slot of a database, which `prepare` has checked.

    `replica` is the id of this server in `cfs.replicas`, where somebody updates its heartbeat. An owner whose
    heartbeat is older than `lease` seconds loses the slot, although its connection may be open. `has_versions` says
    that the versions of files are in this database.
    """

    durable = True
    shortage: str | None = None

    def __init__(
        self,
        url: str,
        slot: int = 0,
        *,
        replica: str = "",
        lease: float = 3.0,
        event_window: int = EVENT_WINDOW,
        has_versions: bool = True,
    ) -> None:
        self.slot = slot
        self.replica = replica
        self.place = f"slot {slot} of {place_of(url)}"
        self._url = url
        self._lease = lease
        self._window = event_window
        self._has_versions = has_versions
        self._claim = ""
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        """The socket of the connection once more, for another thread."""
        self._socket_lock = Lock()
        self._pid = 0
        self._locked: bool | None = None
        self._lock_at = 0.0
        self._failure: StoreFailed | None = None
        self._unreachable: tuple[float, str] = (0.0, "")
        """Until when no connection is tried, and why."""
        self._epoch = self._seq = self._position = 0
        self._removing: dict[str, int] = {}
        """Deleted sessions that still have records, and the record of the deletion, which stays."""
        self._pruned = self._prune_at = 0
        self._index = PostgresIndex(slot)
        self._indexing = True
        """Whether the index is being built, or was not looked at since the start."""
        self._unindexed = 0
        """Records with messages that have been stored since the last step of the index."""

    @property
    def epoch(self) -> int:
        """The number of the present claim or connection: it grows with each of them."""
        return self._epoch

    def open(self) -> Opened:
        """Claim the slot, begin a new epoch and return the content. Raises `SlotTaken` or `StoreFailed`."""
        connection = connect(self._url)
        try:
            with translated(self.place):
                label = secrets.token_hex(4)
                life = self._take(connection, label)
                opened = self._load(connection, label, life)
        except BaseException:
            connection.close()
            raise
        self._failure = None
        self._connect_to(connection)
        return opened

    def _take(self, connection: Connection, label: str) -> str:
        """Claim the slot, and return the name of its common log."""
        self._locked = try_lock(connection, self.slot)
        epoch = self._free_epoch(connection)
        claim = secrets.token_hex(16)
        row = connection.execute(_CLAIM, (self.replica, claim, self._locked, self.slot, epoch, label)).fetchone()
        if row is None:
            raise SlotTaken(f"{self.place} has just been claimed by another server")
        self._epoch, self._pid, life, self._seq, self._position, self._pruned = row
        self._claim = claim
        return str(life)

    def _free_epoch(self, connection: Connection) -> int:
        """Return the present epoch of the slot, if its owner has ended. Raises `SlotTaken` if it is alive."""
        try:
            row = connection.execute(
                "SELECT epoch, owner, pid, extract(epoch FROM now() - beat)::double precision,"
                " (SELECT value FROM cfs.meta WHERE name = 'schema')"
                " FROM cfs.slots LEFT JOIN cfs.replicas ON id = owner WHERE slot = %s",
                (self.slot,),
            ).fetchone()
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            raise StoreFailed(f"{self.place} does not exist: the database has no tables of CFS") from None
        if row is None:
            raise StoreFailed(f"{self.place} does not exist: the database has fewer slots")
        epoch, owner, pid, age, schema = row
        require_schema(schema, self.place)
        beats = age is not None and age < self._lease
        if self._locked is False:
            alive = beats or owner == ""  # an owner without a name has no heartbeat, so only its lock counts
        else:
            alive = beats and owner != self.replica and (self._locked is None or pid is None)
        if alive:
            raise SlotTaken(f"{self.place} is in use by {owner or 'another server'}")
        if self._locked is False and owner is not None:  # it is frozen or cut off
            end_holder(connection, self.slot)
            self._locked = try_lock(connection, self.slot)
        return int(epoch)

    def _load(self, connection: Connection, label: str, life: str) -> Opened:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            heads = [
                decode_head(head)
                for (head,) in connection.execute(
                    "SELECT head FROM cfs.sessions WHERE slot = %s AND head IS NOT NULL AND deleted IS NULL",
                    (self.slot,),
                )
            ]
            rows = [
                Row(*values)
                for values in connection.execute(
                    f"SELECT {_COLUMNS} FROM cfs.sessions JOIN cfs.records ON records.slot = sessions.slot"  # noqa: S608
                    " AND session = key AND records.seq > sessions.seq"
                    " WHERE sessions.slot = %s AND deleted IS NULL ORDER BY records.seq",
                    (self.slot,),
                )
            ]
            for row in rows:
                require_known(row)
        except (UnknownRecord, ValueError) as error:
            raise StoreFailed(f"{self.place} has been written by another version of CFS: {error}") from error
        documents: dict[str, dict[str, str]] = {}
        query = "SELECT space, name, value FROM cfs.kept WHERE slot = %s"
        for values in connection.execute(query, (self.slot,)):
            space, name, value = map(unescape, values)
            documents.setdefault(space, {})[name] = value
        self._removing = dict(
            connection.execute(
                "SELECT key, deleted FROM cfs.sessions WHERE slot = %s AND deleted IS NOT NULL AND EXISTS"
                " (SELECT 1 FROM cfs.records WHERE records.slot = sessions.slot AND session = key"
                " AND records.seq <> deleted)",
                (self.slot,),
            ).fetchall()
        )
        connection.execute("COMMIT")
        return Opened(label, life, self._seq, self._position, heads, rows, documents)

    def close(self) -> None:
        """Give the slot back and close the connection. What maintenance has left is done after the next start."""
        connection = self._connection
        self._failure = self._failure or StoreFailed(f"{self.place} is not open")
        if connection is None:
            return
        with suppress(psycopg.Error):
            release = "UPDATE cfs.slots SET owner = NULL, claim = NULL, pid = NULL WHERE slot = %s AND epoch = %s"
            connection.execute(release, (self.slot, self._epoch))
            if self._locked:  # the server closes a connection some time after its client
                connection.execute("SELECT pg_advisory_unlock_all()")
        self._disconnect()

    def _connected(self) -> Connection:
        """Return the connection, or a new one. Raises `StoreUnavailable`, or `SlotLost` if the slot is not ours."""
        if self._failure is not None:
            raise self._failure
        if self._connection is not None:
            return self._connection
        until, reason = self._unreachable
        if time.monotonic() < until:
            raise StoreUnavailable(reason)
        try:
            connection = connect(self._url)
        except StoreUnavailable as error:
            self._unreachable = time.monotonic() + _WAIT_SECONDS, str(error)
            raise
        try:
            self._claim_again(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise failure_of(error, self.place) from error
            raise
        self._connect_to(connection)
        return connection

    def _claim_again(self, connection: Connection) -> None:
        """End what the lost connection may still do, and read what it has done."""
        row = connection.execute(
            "UPDATE cfs.slots SET epoch = epoch + 1, pid = NULL WHERE slot = %s AND claim = %s"
            " RETURNING epoch, pg_backend_pid(), seq, position",
            (self.slot, self._claim),
        ).fetchone()
        if row is None:
            self._failure = SlotLost(f"{self.place} has been taken over by another server")
            raise self._failure
        epoch, pid, seq, position = row
        if seq < self._seq:
            self._failure = StoreFailed(
                f"{self.place} has lost records that were stored: {self._seq} was the last one and {seq} is; the"
                " database has failed over to a standby that was behind"
            )
            raise self._failure
        self._epoch, self._seq, self._position = epoch, seq, position
        end_holder(connection, self.slot, self._pid)
        self._pid = pid
        self._lock(connection)

    def _lock(self, connection: Connection) -> None:
        """Take the lock if it is free, and say so: until then only the heartbeat shows that the owner is alive."""
        self._locked = try_lock(connection, self.slot)
        self._lock_at = time.monotonic() + 1.0
        if self._locked:
            have = "UPDATE cfs.slots SET pid = pg_backend_pid() WHERE slot = %s AND epoch = %s"
            connection.execute(have, (self.slot, self._epoch))

    def _connect_to(self, connection: Connection) -> None:
        self._connection = connection
        with self._socket_lock:
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def _disconnect(self) -> None:
        if self._connection is not None and self._socket is not None:
            with self._socket_lock:
                self._socket.close()
            self._connection.close()
            self._connection = self._socket = None

    def interrupt(self) -> None:
        """End the connection: a server that is frozen, or whose disk is, does not end it. Called by another thread."""
        if self._socket_lock.acquire(blocking=False):
            with suppress(OSError):
                if self._socket is not None:
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._socket_lock.release()

    def _attempt(self, work: Callable[[Connection], _T]) -> _T:
        """Run work, and once more if the connection was lost. Raises `StoreFull` or `StoreFailed`."""
        for last in (False, True):
            connection = self._connected()
            try:
                return work(connection)
            except errors.DivisionByZero as error:
                self._disconnect()
                self._failure = SlotLost(f"{self.place} has been taken over by another server")
                raise self._failure from error
            except psycopg.Error as error:
                failure = failure_of(error, self.place)
                if isinstance(failure, StoreUnavailable):
                    self._disconnect()
                    if not last:
                        continue
                else:
                    with suppress(psycopg.Error):
                        connection.rollback()
                raise failure from error
        raise AssertionError

    def commit(self, batch: Batch) -> None:
        """Store a batch completely or not at all. Raises `StoreFull`, `StoreUnavailable`, `SlotLost` or `StoreFailed`.

        After `StoreUnavailable` it may be stored. Then the next batch must begin with the same rows, which are not
        stored twice. The records of a deleted session are invisible at once; `tidy` removes them.
        """
        self._unreachable = 0.0, ""
        self._removing.update(self._attempt(lambda connection: self._write(connection, batch)))
        self._unindexed += sum(row.kind in HISTORY for row in batch.rows)

    def _write(self, connection: Connection, batch: Batch) -> dict[str, int]:
        """Send a transaction in one round trip. Returns the deleted sessions and the records of their deletion."""
        rows = [row for row in batch.rows if row.seq > self._seq]  # a lost commit may have stored the others
        seq, position = (rows[-1].seq, rows[-1].position) if rows else (self._seq, self._position)
        created = [row.session for row in rows if row.kind == _CREATED]
        deleted = {row.session: row.seq for row in rows if row.kind == DELETED}
        with connection.pipeline():
            connection.execute("BEGIN")
            connection.execute(_FENCE, (seq, position, self.slot, self._epoch))
            if created:
                insert = "INSERT INTO cfs.sessions (slot, key) SELECT %s, unnest(%b::text[])"
                connection.execute(insert, (self.slot, created))
            if rows:
                connection.execute(_INSERT, (self.slot, *map(list, zip(*rows, strict=True))))
            if batch.heads:
                connection.execute(
                    "UPDATE cfs.sessions SET seq = new.seq, head = new.head"
                    " FROM unnest(%b::text[], %b::bigint[], %b::text[]) AS new (key, seq, head)"
                    " WHERE slot = %s AND sessions.key = new.key AND deleted IS NULL",
                    (*map(list, zip(*batch.heads, strict=True)), self.slot),
                )
            if deleted:
                connection.execute(
                    "UPDATE cfs.sessions SET deleted = gone.seq, head = NULL"
                    " FROM unnest(%b::text[], %b::bigint[]) AS gone (key, seq)"
                    " WHERE slot = %s AND sessions.key = gone.key",
                    (list(deleted), list(deleted.values()), self.slot),
                )
            self._write_kept(connection, batch)
            connection.execute("COMMIT")
        self._seq, self._position = seq, position
        return deleted

    def _write_kept(self, connection: Connection, batch: Batch) -> None:
        if not batch.kept:
            return
        names = [(escape(document.space), sha256(document.name.encode()).hexdigest()) for document in batch.kept]
        connection.execute(
            "DELETE FROM cfs.kept USING unnest(%b::text[], %b::text[]) AS old (space, digest)"
            " WHERE slot = %s AND kept.space = old.space AND kept.digest = old.digest",
            (*map(list, zip(*names, strict=True)), self.slot),
        )
        new = [
            (*name, escape(document.name), escape(document.value))
            for name, document in zip(names, batch.kept, strict=True)
            if document.value is not None
        ]
        if new:
            connection.execute(
                "INSERT INTO cfs.kept (slot, space, digest, name, value)"
                " SELECT %s, * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[])",
                (self.slot, *map(list, zip(*new, strict=True))),
            )

    def tidy(self) -> bool:
        """Do one step of maintenance, and return whether there is more to do. Raises `StoreFailed`.

        Removes the records of deleted sessions, prunes old tokens, and takes the lock when another connection has left
        it.
        """
        if self._failure is not None or self._connection is None:
            return False
        try:
            if self._locked is False and time.monotonic() >= self._lock_at:
                self._attempt(self._lock)
            if self._removing:
                self._remove(*next(iter(self._removing.items())))
            elif self._position > max(self._window, self._prune_at):
                self._attempt(self._prune)
            elif self._indexing or self._unindexed >= _INDEX_AT_ONCE:
                self._attempt(self._index_some)
            else:
                return False
        except (StoreFull, StoreUnavailable):  # the next commit says so
            return False
        return True

    def _index_some(self, connection: Connection) -> None:
        try:
            with self._transaction(connection):
                self._index.step(connection)
        except psycopg.Error:
            self._index.forget()
            raise
        self._indexing, self._unindexed = self._index.behind, 0

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """Run a block as one transaction of the owner."""
        with connection.transaction():
            connection.execute(_FENCE, (self._seq, self._position, self.slot, self._epoch))
            yield

    def _remove(self, session: str, tombstone: int) -> None:
        def remove(connection: Connection) -> int:
            with self._transaction(connection):
                connection.execute(
                    "DELETE FROM cfs.words WHERE slot = %s AND seq IN (SELECT seq FROM cfs.records"
                    " WHERE slot = %s AND session = %s AND seq <> %s ORDER BY seq LIMIT %s)",
                    (self.slot, self.slot, session, tombstone, _CHUNK),
                )
                return connection.execute(
                    "DELETE FROM cfs.records WHERE slot = %s AND seq IN (SELECT seq FROM cfs.records"
                    " WHERE slot = %s AND session = %s AND seq <> %s ORDER BY seq LIMIT %s)",
                    (self.slot, self.slot, session, tombstone, _CHUNK),
                ).rowcount

        if self._attempt(remove) < _CHUNK:
            del self._removing[session]

    def _prune(self, connection: Connection) -> None:
        """Remove old records of deletions, and old tokens that the head of their session includes."""
        with self._transaction(connection):
            ((end,),) = connection.execute(
                "SELECT max(seq) FROM (SELECT seq, position FROM cfs.records WHERE slot = %s AND seq > %s"
                " ORDER BY seq LIMIT %s) AS page WHERE position <= %s",
                (self.slot, self._pruned, _CHUNK, self._position - self._window),
            ).fetchall()
            if end is None:
                self._prune_at = self._position + _CHUNK
                return
            part = (self.slot, self._pruned, end)
            of = "records.slot = %s AND records.seq > %s AND records.seq <= %s"
            ((needed,),) = connection.execute(
                "SELECT min(records.seq) FROM cfs.records"  # noqa: S608
                " JOIN cfs.sessions ON sessions.slot = records.slot AND key = session"
                f" WHERE {of} AND kind = %s AND records.seq > sessions.seq",
                (*part, TOKENS),
            ).fetchall()
            connection.execute(
                "DELETE FROM cfs.records USING cfs.sessions WHERE sessions.slot = records.slot"  # noqa: S608
                f" AND key = session AND {of} AND kind = %s AND records.seq <= sessions.seq",
                (*part, TOKENS),
            )
            connection.execute(
                "DELETE FROM cfs.sessions USING cfs.records WHERE sessions.slot = records.slot"  # noqa: S608
                f" AND key = session AND {of} AND kind = %s",
                (*part, DELETED),
            )
            connection.execute(f"DELETE FROM cfs.records WHERE {of} AND kind = %s", (*part, DELETED))  # noqa: S608
            pruned = end if needed is None else needed - 1
            connection.execute("UPDATE cfs.slots SET pruned = %s WHERE slot = %s", (pruned, self.slot))
        if needed is not None:
            self._prune_at = self._position + _CHUNK
        self._pruned = pruned

    def rows(self, session: str, begins_at: int, kinds: Iterable[str]) -> list[Row]:
        """Return the rows of a session of these kinds, from a sequence number on, in order."""
        return self._read(
            f"SELECT {_COLUMNS} FROM cfs.records JOIN cfs.sessions ON sessions.slot = records.slot AND key = session"  # noqa: S608
            " WHERE records.slot = %s AND session = %s AND deleted IS NULL AND records.seq >= %s AND kind = ANY(%s)"
            " ORDER BY records.seq",
            (self.slot, session, begins_at, list(kinds)),
        )

    def orders(self, session: str) -> Mapping[int, int]:
        """Return the places of a session's messages among the changes of files, if these are in the same database."""
        if not self._has_versions:
            return {}
        query = 'SELECT seq, "order" FROM cfs.records WHERE slot = %s AND session = %s AND kind = ANY(%s)'
        values = (self.slot, session, list(HISTORY))
        rows = self._attempt(lambda connection: connection.execute(query, values).fetchall())
        return {seq: order for seq, order in rows if order is not None}

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:
        """Return messages that may match, newest first; see `Backend.search`. First the index catches up."""
        for _ in range(_CATCH_UP_STEPS):
            if not (self._indexing or self._unindexed):
                break
            with suppress(StoreFull):
                self._attempt(self._index_some)
        return self._attempt(lambda connection: self._index.search(connection, criteria, keys, before, max_hits))

    def _read(self, query: str, values: tuple[object, ...]) -> list[Row]:
        rows = self._attempt(lambda connection: connection.execute(query, values).fetchall())
        return [Row(*row) for row in rows]

    def events(self, session: str | None, after: int, limit: int) -> list[Row] | None:
        """Return rows with events after a number of a session's log, or after a position of the common log.

        Stops after about `limit` bytes. None if some of these events have been pruned or belong to deleted sessions.
        """
        return self._attempt(lambda connection: self._events(connection, session, after, limit))

    def _events(self, connection: Connection, session: str | None, after: int, max_bytes: int) -> list[Row] | None:
        common, which = ("true", "true") if session is None else ("false", "session = %(session)s")
        values = {"slot": self.slot, "session": session, "after": after, "end": self._seq + 1, "most": max_bytes}
        first = _FIRST.format(last="position" if session is None else "number", which=which)
        ((values["first"],),) = connection.execute(first, values).fetchall()
        page = _PAGE.format(which=which, common=common)
        selected: list[Row] = []
        size = 0
        while size < max_bytes and (rows := connection.execute(page, values).fetchall()):
            for *columns, _ in rows:
                row = Row(*columns)
                count = len(loads(row.events)) if row.events else 0
                last = row.position if session is None else row.number
                if last - count > after:
                    return None
                if count:
                    selected.append(row)
                    after, size = last, size + len(row.body) + len(row.events)
                    if size >= max_bytes:
                        break
            values["first"] = row.seq + 1
        return selected

    def last_of(self, epoch: str, session: str | None) -> int | None:
        """Return the last durable number of a log in an epoch; None if the epoch is unknown."""
        return self._attempt(lambda connection: self._last_of(connection, epoch, session))

    def _last_of(self, connection: Connection, epoch: str, session: str | None) -> int | None:
        row = connection.execute(
            "SELECT following.seq, following.position FROM cfs.epochs LEFT JOIN LATERAL (SELECT seq, position"
            " FROM cfs.epochs AS later WHERE later.slot = epochs.slot AND later.epoch > epochs.epoch"
            " ORDER BY later.epoch LIMIT 1) AS following ON true WHERE slot = %s AND label = %s",
            (self.slot, epoch),
        ).fetchone()
        if row is None:
            return None
        seq, position = row if row[0] is not None else (sys.maxsize, self._position)
        if session is None:
            return int(position)
        last = connection.execute(
            "SELECT number FROM cfs.records WHERE slot = %s AND session = %s AND seq <= %s ORDER BY seq DESC LIMIT 1",
            (self.slot, session, seq),
        ).fetchone()
        return 0 if last is None else int(last[0])

    def backup(self, target: Path, between: Callable[[], None]) -> None:  # noqa: ARG002
        """Raise `StoreFailed`: the database has its own means."""
        raise StoreFailed(
            "the sessions are in PostgreSQL: `pg_dump --schema=cfs` makes a backup of all of them, and `cfs export`"
            " writes those that you may read to a file"
        )
