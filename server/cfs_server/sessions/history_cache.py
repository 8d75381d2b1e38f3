"""Decides which histories are in memory (H7).

The histories of busy sessions, and those in use, always are. The others stay up to a budget in bytes; beyond it the
least recently used ones leave the memory, once the journal has made them durable. `HistoryCache.loaded` reads them
again.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from cfs.errors import CfsError, ServerError
from cfs_server.domain.history import HistoryNotLoaded
from cfs_server.journal.journal import Journal
from cfs_server.sessions.session import Session

_T = TypeVar("_T")


@contextmanager
def _counted(users: Counter[_T], user: _T) -> Iterator[None]:
    users[user] += 1
    try:
        yield
    finally:
        users[user] -= 1
        if not users[user]:
            del users[user]


class HistoryCache:
    """The histories in memory, least recently used first.

    Used on the event loop. Without a durable journal nothing leaves the memory.
    """

    def __init__(
        self,
        journal: Journal | None,
        budget: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Create a cache of `budget` bytes, which may change. `spawn` starts a task."""
        self._journal = journal if journal is not None and journal.durable_store else None
        self.budget = budget
        self._spawn = spawn
        self._sizes: dict[Session, int] = {}
        self._idle: OrderedDict[Session, None] = OrderedDict()
        self._users: Counter[Session] = Counter()
        self._names: Counter[str] = Counter()
        self._loads: dict[Session, asyncio.Future[None]] = {}
        self._evicting = False
        self.bytes = 0
        """The memory of all histories and of waiting messages."""
        self._idle_bytes = 0

    def needed(self) -> int:
        """Return the part of the memory that is in use."""
        return self.bytes - self._idle_bytes

    def touch(self, session: Session) -> None:
        """Note that a session has been used or changed, or that it has become busy or idle."""
        if self._journal is None:
            return
        self.forget(session)
        size = 0 if session.deleted else session.history.memory + session.waiting_bytes
        if not size:
            return
        self._sizes[session] = size
        self.bytes += size
        if self._may_leave(session):
            self._idle[session] = None
            self._idle_bytes += size
            if self.bytes > self.budget and not self._evicting:
                self._evicting = True
                self._spawn(self._evict())

    def forget(self, session: Session) -> None:
        """Stop counting a session."""
        self._use(session)
        self.bytes -= self._sizes.pop(session, 0)

    def _use(self, session: Session) -> None:
        """Keep a session in memory from now on."""
        if session in self._idle:
            del self._idle[session]
            self._idle_bytes -= self._sizes[session]

    @asynccontextmanager
    async def loaded(self, session: Session) -> AsyncIterator[None]:
        """Keep the messages of a session in memory during a block. Reads them first if necessary.

        Raises `Unavailable` if the journal cannot read, and `ServerError` if messages are missing there.
        """
        if self._journal is None:
            yield
            return
        self._use(session)
        try:
            with _counted(self._users, session):
                while not session.history.loaded:
                    await self._load(session, self._journal)
                yield
        finally:
            self.touch(session)

    @asynccontextmanager
    async def loaded_by_id(self, session_id: str, find: Callable[[str], Session | None]) -> AsyncIterator[None]:
        """Do the same for the session that has this id at the beginning of the block, if there is one.

        What is created with this id during the block stays in memory as well.
        """
        try:
            with _counted(self._names, session_id):
                while (session := find(session_id)) is not None:
                    async with self.loaded(session):
                        if find(session_id) is session:
                            yield
                            return
                yield
        finally:
            if (session := find(session_id)) is not None:
                self.touch(session)

    async def _load(self, session: Session, journal: Journal) -> None:
        """Read the messages of a session, once for all that wait for them."""
        reading = self._loads.get(session)
        if reading is None:
            reading = self._loads[session] = asyncio.get_running_loop().create_future()
            self._spawn(self._read(session, journal, reading))
        await asyncio.shield(reading)

    async def _read(self, session: Session, journal: Journal, done: asyncio.Future[None]) -> None:
        history = session.history
        since = history.since
        try:
            messages = await journal.history(session.key, session.begins_at)
            history.load(messages, since)
        except CfsError as error:
            done.set_exception(error)
        except HistoryNotLoaded as error:
            done.set_exception(ServerError(f"the store lacks messages of session {session.id!r}: {error}"))
        except Exception as error:  # noqa: BLE001 - a defect: each reader gets it, and the other sessions go on
            done.set_exception(error)
        else:
            done.set_result(None)
        del self._loads[session]
        if done.exception() is None:  # also marks an exception as retrieved: all readers may have left
            self.touch(session)

    def _may_leave(self, session: Session) -> bool:
        return session.idle and session not in self._users and session.id not in self._names

    async def _evict(self) -> None:
        """Unload the least recently used histories until the others fit the budget."""
        assert self._journal is not None  # noqa: S101 - else nothing is counted
        try:
            while leaving := self._oldest():
                await self._journal.durable()
                for session, version in leaving:
                    if session in self._idle and session.history.version == version:
                        session.history.unload()
                        self.forget(session)
        except CfsError:
            return  # what is not durable stays in memory
        finally:
            self._evicting = False

    def _oldest(self) -> list[tuple[Session, int]]:
        """Return the sessions to unload now, with the versions of their histories."""
        entries: list[tuple[Session, int]] = []
        excess = self.bytes - self.budget
        for session in self._idle:
            if excess <= 0:
                break
            excess -= self._sizes[session]
            entries.append((session, session.history.version))
        return entries

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless all bytes are counted, and what may leave the memory is known."""
        idle = sum(self._sizes[session] for session in self._idle)
        if (self.bytes, self._idle_bytes) != (sum(self._sizes.values()), idle):
            raise AssertionError(f"{self.bytes} bytes are counted for {len(self._sizes)} histories")
        if any(session.deleted or not (session.history.memory or session.queue) for session in self._sizes):
            raise AssertionError("a history is counted that is not in memory")
        if any(not session.history.loaded for session in self._sizes if not session.idle):
            raise AssertionError("the history of a busy session is not in memory")
