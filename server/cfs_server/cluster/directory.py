"""The directory: which replicas live and which slots they own, as one database shows it.

Each replica writes a heartbeat and reads the directory several times a second. A crashed replica is noticed at once,
because its connection holds a lock that ends with it. One that is frozen or cut off is noticed by its heartbeat. Both
only decide who claims a slot and when. That no two replicas write to one slot is ensured by the epoch, which each
commit checks (`sessions.journal.postgres`).
"""

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version

import psycopg
from psycopg.rows import tuple_row

from cfs_server.access.shares import SPACE as SHARES
from cfs_server.cluster.clock import DatabaseClock
from cfs_server.domain.placement import ReplicaView, SlotView
from cfs_server.journal.postgres_connection import connect, place_of, translated, unescape
from cfs_server.journal.postgres_locks import NAMESPACE
from cfs_server.sessions.spending import TOTALS

LEASE_SECONDS = 3.0
"""A replica without a heartbeat for this long has lost its slots, and answers nothing for them."""
_BEAT_SECONDS = 0.6
SETTLING_SECONDS = 1.0
"""After a connection is made, neither locks nor old heartbeats are trusted for this long: after a restart of the
database no replica holds any lock yet, and none has written its heartbeat."""
_TIMEOUT_SECONDS = 2.0

_SLOTS = "SELECT slot, epoch, owner FROM cfs.slots ORDER BY slot"
_REPLICAS = (
    "SELECT id, url, leaving, beat > now() - make_interval(secs => %s)"
    " FROM cfs.replicas WHERE beat > now() - interval '1 day'"
)
_USAGE = "SELECT usage FROM cfs.replicas WHERE id <> %s AND beat > now() - make_interval(secs => %s)"
_SPENT = (
    "SELECT slot, name, value FROM cfs.kept WHERE slot IN (SELECT slot FROM cfs.slots) AND space = %s"
    " AND starts_with(name, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'))"
)
_TIME = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_SHARES = (
    "SELECT substring(value from 'sha256:[0-9a-f]{64}'), slot FROM cfs.kept"
    " WHERE slot IN (SELECT slot FROM cfs.slots) AND space = %s"
)
_LOCKS = (
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::bigint = %s"
)
_REPLICA_LOCKS = NAMESPACE + 1
"""The first key of the locks of replicas. The second one is a number made of the replica's name."""
_BEAT = (
    "INSERT INTO cfs.replicas (id, url, version, beat, started, leaving, usage)"
    " VALUES (%s, %s, %s, now(), now(), %s, %s)"
    " ON CONFLICT (id) DO UPDATE SET url = excluded.url, version = excluded.version, beat = now(),"
    " leaving = excluded.leaving, usage = excluded.usage"
)


_Connection = psycopg.AsyncConnection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What a database showed at one moment.

    `asked_at` and `beat_at` are this process's monotonic times before it was asked, and before the last heartbeat.
    """

    slots: tuple[SlotView, ...] = ()
    replicas: dict[str, ReplicaView] = field(default_factory=dict)
    asked_at: float = 0.0
    beat_at: float = 0.0
    usage: tuple[str, ...] | None = None
    """What the other replicas have published of the usage of callers; None if it was not read."""
    spent: tuple[tuple[int, str, str], ...] | None = None
    """What principals have spent today: the slot, `DAY/PRINCIPAL` and the count, as stored; None if not read."""
    shares: Mapping[str, int] | None = None
    """The slot of each share, by its hash; None if they were not read."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all replicas of a database know: the secret that signs their requests, and the name of its content.

    `clock` tells the time of the database.
    """

    secret: bytes
    life: str
    clock: DatabaseClock


def shared(url: str) -> Shared:
    """Return what the replicas of a database share; the first one creates it. Raises `StoreFailed`."""
    with closing(connect(url)) as connection, translated(place_of(url)):
        for name, value in (("secret", secrets.token_hex(32)), ("life", secrets.token_hex(4))):
            connection.execute("INSERT INTO cfs.meta VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, value))
        meta: dict[str, str] = dict(connection.execute("SELECT name, value FROM cfs.meta").fetchall())
        clock, asked_at = DatabaseClock(), time.monotonic()
        row = connection.execute(_TIME).fetchone()
        assert row is not None  # noqa: S101 - this query has one row
        clock.learn(row[0], asked_at, time.monotonic())
    return Shared(meta["secret"].encode(), meta["life"], clock)


def living(url: str) -> int:
    """Return the number of replicas that a database has heard of lately. Raises `StoreFailed`."""
    with closing(connect(url)) as connection, translated(place_of(url)):
        if connection.execute("SELECT to_regclass('cfs.replicas')::text").fetchone() == (None,):
            return 0
        beats = "SELECT count(*) FROM cfs.replicas WHERE beat > now() - make_interval(secs => %s)"
        row = connection.execute(beats, (LEASE_SECONDS,)).fetchone()
        return int(row[0]) if row else 0


class Directory:
    """The directory in one database. One task uses it. All methods but `close` raise `psycopg.Error` or `TimeoutError`.

    After an error the next call makes a new connection.
    """

    def __init__(self, url: str, replica: str, address: str, clock: DatabaseClock | None = None) -> None:
        """Prepare a directory. The clock learns the time of this database."""
        self._url = url
        self._clock = clock
        self._replica = replica
        self._address = address
        self._connection: _Connection | None = None
        self._connected_at = self._beat_at = 0.0
        self._locks = False
        self._living: frozenset[str] = frozenset()
        """The replicas that lived when the directory was last seen."""

    @property
    def _number(self) -> int:
        """The number of this replica's lock."""
        return lock_number(self._replica)

    async def look(
        self, usage: Callable[[], str] = str, *, leaving: bool = False, shares: bool = False
    ) -> DirectoryView:
        """Write the heartbeat when it is due, with the usage of callers, and read the directory.

        With `shares` their hashes are read, too.
        """
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                connection = self._connection or await self._connect()
                return await self._look(connection, asked_at, usage, leaving, shares)
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> _Connection:
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, row_factory=tuple_row, application_name="cfs directory", connect_timeout=2
        )
        self._connection = connection
        try:
            await connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (_REPLICA_LOCKS, self._number))
            await connection.execute(_LOCKS, (_REPLICA_LOCKS,))
        except psycopg.errors.DatabaseError:  # a database that has no such locks
            self._locks = False
        else:
            self._locks = True
        self._connected_at, self._beat_at = time.monotonic(), 0.0
        return connection

    async def _look(
        self,
        connection: _Connection,
        asked_at: float,
        usage: Callable[[], str],
        leaving: bool,
        shares: bool,
    ) -> DirectoryView:
        is_due = asked_at - self._beat_at >= _BEAT_SECONDS or leaving
        sent_at = time.monotonic()
        async with connection.pipeline():  # one round trip
            cursor = await connection.execute(_TIME)
            if is_due:
                values = (self._replica, self._address, version("cfs-local"), leaving, usage())
                await connection.execute(_BEAT, values)
            slots = await connection.execute(_SLOTS)
            replicas = await connection.execute(_REPLICAS, (LEASE_SECONDS,))
            others = await connection.execute(_USAGE, (self._replica, LEASE_SECONDS)) if is_due else None
            spent = await connection.execute(_SPENT, (TOTALS,)) if is_due else None
            locks = await connection.execute(_LOCKS, (_REPLICA_LOCKS,)) if self._locks else None
            hashes = await connection.execute(_SHARES, (SHARES,)) if shares else None
        if self._clock is not None and (row := await cursor.fetchone()) is not None:
            self._clock.learn(float(str(row[0])), sent_at, time.monotonic())
        if is_due:
            self._beat_at = asked_at
        held = None if locks is None else {int(str(number)) async for (number,) in locks}
        settling = asked_at - self._connected_at < SETTLING_SECONDS
        if settling:
            held = None
        living: dict[str, ReplicaView] = {}
        async for replica_id, url, leaves, beats in replicas:
            name = str(replica_id)
            lives = bool(beats) or (settling and name in self._living)
            living[name] = ReplicaView(name, str(url), lives and _is_there(name, held), bool(leaves))
        self._living = frozenset(name for name, view in living.items() if view.alive)
        views: list[SlotView] = []
        async for slot, epoch, owner in slots:
            has_owner = str(owner) in living and living[str(owner)].alive
            views.append(SlotView(int(str(slot)), int(str(epoch)), str(owner) if owner else None, has_owner))
        published = None if others is None else tuple([str(text) async for (text,) in others])
        slot_of_share = None if hashes is None else {str(hashed): int(str(slot)) async for hashed, slot in hashes}
        totals = None
        if spent is not None:
            rows = [(int(str(slot)), str(name), str(value)) async for slot, name, value in spent]
            totals = tuple((slot, unescape(name), unescape(value)) for slot, name, value in rows)
        return DirectoryView(tuple(views), living, asked_at, self._beat_at, published, totals, slot_of_share)

    async def forget(self) -> None:
        """Remove this replica, which owns nothing any more."""
        if self._connection is not None:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._connection.execute("DELETE FROM cfs.replicas WHERE id = %s", (self._replica,))

    async def close(self) -> None:
        """Close the connection, and with it the lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def lock_number(replica: str) -> int:
    """Return the number of a replica's lock."""
    return zlib.crc32(replica.encode()) & 0x7FFFFFFF


def _is_there(replica: str, held: set[int] | None) -> bool:
    """Return whether a replica has its lock, if the locks are known."""
    return held is None or lock_number(replica) in held
