"""Connections of a replica to the database of versions, and the locks that belong to them.

A lock is as old as its connection. What is recorded travels on the connection that has the lock, so it is refused when
the lock is lost. A connection that was lost is therefore never replaced within a block.

A thread asks for a sign of life on each connection every two seconds. The database ends a connection without one after
ten seconds: then its replica is frozen or cut off, and others get the lock.
"""

import errno
import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from cfs_filesystem.versions import VersionsUnavailableError
from cfs_server.journal.journal import StoreFailed, StoreFull, StoreUnavailable
from cfs_server.journal.postgres_connection import Connection, connect, failure_of, place_of

_SETTINGS = MappingProxyType(
    {
        "default_transaction_isolation": "read committed",
        "idle_session_timeout": "10s",
        "idle_in_transaction_session_timeout": "10s",
        "lock_timeout": "20s",
    }
)
"""A lock is waited for longer than the time after which that of a frozen replica is free. What a transaction reads
after it got a lock is newer than the lock."""
_RELEASE = "SELECT pg_advisory_unlock_all()"
_BEAT_SECONDS = 2.0
_WAIT_SECONDS = 20.0
CONNECTIONS = 8
"""Connections of one replica at most."""

Statement = tuple[Any, ...]
"""A statement and its values."""


class VersionsConnection:
    """A connection that may hold locks. Threads that share it take turns: a transaction has statements of one only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.RLock()
        self._busy = threading.Lock()
        self._in_transaction = False
        self.locked = False
        """Whether it may hold locks."""

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows. Raises `psycopg.Error`."""
        with self._turn, self._busy:
            cursor = self._connection.execute(statement, values or None, binary=True)
            return cursor.fetchall() if cursor.description else []

    def transact_and_release(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Execute statements as one transaction, then give all locks back, in one round trip. Return the rows of each.

        After an error nothing has happened. Raises `psycopg.Error`. The library ends a pipeline with a message after
        which PostgreSQL does not notice a frozen client (15 to 18: it stops its timer). Without locks that is harmless.
        """
        with self._turn, self._busy:
            try:
                with self._connection.pipeline():
                    cursors = [
                        self._connection.execute(text, values or None, binary=True)
                        for text, *values in (("BEGIN",), *statements, ("COMMIT",), (_RELEASE,))
                    ]
            except BaseException:
                with suppress(psycopg.Error):
                    self._connection.rollback()
                raise
        self.locked = False
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors[1:-2]]

    def insert(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute a statement for each of several rows."""
        with self._turn, self._busy:
            self._connection.cursor().executemany(statement, rows)

    @contextmanager
    def transaction(self, how: str = "") -> Iterator[None]:
        """Let a block be one transaction. In a transaction of the same thread it is a part of that one."""
        with self._turn:
            if self._in_transaction:
                yield
                return
            self.execute(f"BEGIN {how}")
            self._in_transaction = True
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(psycopg.Error):
                    self.execute("ROLLBACK")
                raise
            finally:
                self._in_transaction = False

    def beat(self) -> None:
        """Send a sign of life, unless a statement is on its way."""
        if self._busy.acquire(blocking=False):
            try:
                with suppress(psycopg.Error):  # the next statement reports it
                    self._connection.execute("SELECT 1")
            finally:
                self._busy.release()

    def is_open(self) -> bool:
        """Return whether the database has not closed it: then there is something to read."""
        with self._busy:
            poll = select.poll()
            poll.register(self._connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return True
        try:
            self.execute("SELECT 1")  # what is to be read may be a notice
        except psycopg.Error:
            return False
        return True

    def give_back(self) -> bool:
        """Release all locks. Return whether the connection can be used again."""
        try:
            if self.locked:
                self.execute(_RELEASE)
                self.locked = False
        except psycopg.Error:
            return False
        with self._busy:
            return self._connection.info.transaction_status is TransactionStatus.IDLE

    def close(self) -> None:
        """Close the connection; its locks end with it."""
        self._connection.close()


class VersionsConnections:
    """A few connections to one database, which are opened when they are needed."""

    def __init__(self, url: str) -> None:
        self.place = f"the versions of files in {place_of(url)}"
        self._url = url
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._guard = threading.Lock()
        self._free: list[VersionsConnection] = []
        self._all: set[VersionsConnection] = set()
        self._current: ContextVar[VersionsConnection | None] = ContextVar("versions_connection", default=None)
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._beat, name="versions-connections", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._keeper.join()
        with self._guard:
            while self._all:
                self._all.pop().close()
            self._free.clear()

    @contextmanager
    def connection(self) -> Iterator[VersionsConnection]:
        """Lend a connection for a block. A block within it, also in another thread with its context, has the same one.

        Raises `OSError` for each error of the database: `VersionsUnavailableError` if it passes.
        """
        outer = self._current.get()
        if outer is not None:
            with self._translated():
                yield outer
            return
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            raise VersionsUnavailableError(f"{self.place}: all connections are busy")
        try:
            with self._translated():
                lent = self._lend()
            token = self._current.set(lent)
            try:
                with self._translated():
                    yield lent
            finally:
                self._current.reset(token)
                self._take_back(lent)
        finally:
            self._room.release()

    @contextmanager
    def alone(self, locking: str, *values: object) -> Iterator[list[tuple[Any, ...]]]:
        """Hold the locks that a statement takes during a block, whose statements are refused once they are lost.

        The value has the rows of the statement. Raises `VersionsUnavailableError` if others do not release the locks in
        time.
        """
        if self._current.get() is not None:
            raise RuntimeError("a block that changes workspaces is in another one")
        with self.connection() as lent:
            lent.locked = True
            yield lent.execute(locking, *values)

    def _lend(self) -> VersionsConnection:
        while True:
            with self._guard:
                lent = self._free.pop() if self._free else None
            if lent is None:
                break
            if lent.is_open():
                return lent
            self._drop(lent)
        connection = connect(self._url)
        connection.execute(
            "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)",
            (list(_SETTINGS), list(_SETTINGS.values())),
        )
        opened = VersionsConnection(connection)
        with self._guard:
            self._all.add(opened)
        return opened

    def _take_back(self, lent: VersionsConnection) -> None:
        if lent.give_back():
            with self._guard:
                self._free.append(lent)
        else:
            self._drop(lent)

    def _drop(self, lost: VersionsConnection) -> None:
        with self._guard:
            self._all.discard(lost)
        lost.close()

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            with self._guard:
                connections = list(self._all)
            for connection in connections:
                connection.beat()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            raise VersionsUnavailableError(str(error)) from error
        except psycopg.Error as error:
            failure = failure_of(error, self.place)
            if isinstance(failure, StoreUnavailable):
                raise VersionsUnavailableError(str(failure)) from error
            raise OSError(errno.ENOSPC if isinstance(failure, StoreFull) else errno.EIO, str(failure)) from error
        except StoreFailed as error:
            raise OSError(errno.EIO, str(error)) from error
