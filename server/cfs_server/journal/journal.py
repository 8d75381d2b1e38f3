"""Writes records to a backend in groups, and reads them back.

All methods of `Journal` run on the event loop. The backend is used by one thread only. What is appended during one
callback of the loop becomes durable together or not at all. What arrives during a commit is written by the next one, so
the number of commits does not grow with the number of writers.

A full disk can get room, and a database that cannot be reached can come back: the journal keeps what it could not
write, tries again, and refuses new writes until then. On a full disk, a reserve lets deletions through. Any other error
is final: no more is written, because after a failed `fsync` it is unknown what is on the disk.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from cfs.errors import StorageFull, Unavailable
from cfs.wire import Message
from cfs_server.domain.changes import Record
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.past import PastChange
from cfs_server.domain.state import Head
from cfs_server.domain.words import Criteria
from cfs_server.journal.records import (
    DELETED,
    HISTORY,
    Row,
    decode_events,
    decode_messages,
    encode,
    encode_head,
    past_change,
)

_T = TypeVar("_T")
_DELAY_SECONDS = 0.05
"""The longest time in seconds until a commit for which no request waits."""
_RETRY_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0
"""How long a call of the backend may take before it is interrupted."""
_ASK_AGAIN_SECONDS = 5.0
"""When a client may send again what could not be stored."""

_log = structlog.get_logger(__name__)


class StoredDocument(NamedTuple):
    """A small document that outlives the process; `value` None deletes it."""

    space: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes durable together, in this order."""

    rows: Sequence[Row] = ()
    kept: Sequence[StoredDocument] = ()
    heads: Sequence[tuple[str, int, str]] = ()
    """Key, sequence number and JSON of the heads that replace the stored ones."""
    frees: bool = False
    """Whether it frees space, and may use what is reserved for that."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a backend contains when it is opened.

    `epoch` is a new random label, `life` the name of the store's common log. `rows` are those that no head includes,
    and `position` is the last one of the common log.
    """

    epoch: str
    life: str
    seq: int = 0
    position: int = 0
    heads: Sequence[Head] = ()
    rows: Sequence[Row] = ()
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    repairs: Sequence[str] = ()


class Hit(NamedTuple):
    """A stored message: a row, and which of its messages."""

    row: Row
    part: int


class Hits(NamedTuple):
    """Some of the messages that may match. `before` continues the search; None at the end.

    `behind` says that the index is being built, and newer messages are not in it yet.
    """

    hits: Sequence[Hit] = ()
    before: int | None = None
    behind: bool = False


class StoreFull(Exception):
    """The backend has no space. Nothing of the batch has been written.

    With `reserve`, a batch that frees space can be stored.
    """

    def __init__(self, reason: str, *, reserve: bool = False) -> None:
        super().__init__(reason)
        self.reserve = reserve


class StoreFailed(Exception):
    """The backend cannot be used any more, or not at all; the text is for the operator."""


class StoreDamaged(StoreFailed):
    """The file contains something that was not written so."""


class StoreInUse(StoreFailed):
    """Another process uses the file."""


class StoreUnavailable(StoreFailed):
    """The backend cannot be reached now. It may have stored the batch; the next one must begin with the same rows."""


class Backend(Protocol):
    """Where rows are stored. All methods are called in one thread, `open` first."""

    durable: bool
    """Whether the backend stores anything."""

    @property
    def shortage(self) -> str | None:
        """Why there is no room but the reserve; None while there is room."""
        ...

    def open(self) -> Opened:
        """Open the store, begin a new epoch and return the content. Raises `StoreFailed`."""
        ...

    def commit(self, batch: Batch) -> None:
        """Store a batch completely or not at all. Raises `StoreFull`, `StoreUnavailable` or `StoreFailed`.

        A row of the kind `DELETED` also deletes the head and all other rows of its session. During a shortage, only a
        batch that frees space is stored.
        """
        ...

    def tidy(self) -> bool:
        """Do one step of maintenance, and return whether there is more to do. Raises `StoreFailed`.

        Called after commits, when those who wait for them go on.
        """
        ...

    def rows(self, session: str, begins_at: int, kinds: Iterable[str]) -> list[Row]:
        """Return the rows of a session of these kinds, from a sequence number on, in order."""
        ...

    def orders(self, session: str) -> Mapping[int, int]:
        """Return the places of a session's messages among the changes of files, by sequence number.

        Nothing if the store has no such order. A change that was acknowledged before a message was sent has a smaller
        one, and a change that begins after the message was acknowledged a greater one.
        """
        ...

    def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:
        """Return messages that may match, newest first: in the sessions with these keys, or in all, before a hit.

        All that has been committed is in the index.
        """
        ...

    def events(self, session: str | None, after: int, limit: int) -> list[Row] | None:
        """Return rows with events after a number of a session's log, or after a position of the common log.

        Stops after about `limit` bytes. None if some of these events have been pruned.
        """
        ...

    def last_of(self, epoch: str, session: str | None) -> int | None:
        """Return the last durable number of a log in an epoch; None if the epoch is unknown."""
        ...

    def backup(self, target: Path, between: Callable[[], None]) -> None:
        """Copy the store to a new file. `between` is called now and then, and may commit. Raises `StoreFailed`."""
        ...

    def interrupt(self) -> None:
        """Let a call fail that waits for another machine. Called on the loop, while the thread is in the call."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


class _Waiter(NamedTuple):
    """Someone who waits until a number is durable; with `frees`, for something that frees space."""

    seq: int
    done: "asyncio.Future[None]"
    frees: bool


class Journal:
    """The journal of one store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.durable_store = backend.durable
        self.opened = Opened("", "")
        self.problem: str | None = None
        """Why nothing can be written now."""
        self.on_failed: Callable[[StoreFailed], None] = lambda _error: None
        """Called once, on the loop, when the journal has failed for good."""
        self.commits = self.written = 0
        """Successful commits, and what they have written."""
        self.commit_seconds = 0.0
        self._failed = self._closed = False
        self._refusal: type[StorageFull | Unavailable] = Unavailable
        """What is raised while there is a problem."""
        self._reserve = False
        """Whether there is room for deletions, although there is a problem."""
        self._kept: dict[str, dict[str, str]] = {}
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._untidy = False
        """Whether maintenance was interrupted by other work."""
        self._queued = self._done = 0
        """What the thread was given to do, and what of it is done."""
        self._watch: asyncio.Handle | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._pending: list[tuple[int, Record | StoredDocument | Head]] = []
        self._seq = self._durable = 0
        self._position = 0
        """The last position of the common log that is durable."""
        self._waiters: list[_Waiter] = []
        self._committing = False
        self._timer: asyncio.Handle | None = None
        self._copying = asyncio.Lock()
        self._urgent = False

    async def open(self) -> Opened:
        """Start the thread and open the backend. Raises `StoreFailed`."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        try:
            self.opened = await self.call(lambda backend: backend.open())
        except BaseException:
            await self._end()
            raise
        self._seq = self._durable = self.opened.seq
        self._position = self.opened.position
        self._kept = {space: dict(names) for space, names in self.opened.kept.items()}
        if self._backend.shortage is not None:
            self._report(StoreFull(self._backend.shortage, reserve=True))
        self._put(self._tidy)  # the index of words may have to be built
        return self.opened

    async def close(self) -> None:
        """Write what is pending, and close the backend. Raises nothing: what could not be written is logged.

        While there is a problem, one more attempt is made. What comes later is refused.
        """
        with suppress(StorageFull, Unavailable):
            await self.durable()
        if self._timer is not None:
            self._timer.cancel()
        if self.problem is not None:
            await self._write_last()
        async with self._copying:
            self._refuse_all()
            await self._run_next(lambda backend: backend.close())
        await self._end()

    def _refuse_all(self) -> None:
        """Refuse what comes from now on, and all who wait: readers and requests can outlast a slot."""
        self._closed = self._failed = True
        self.problem = self.problem or "the store of the server is closed"
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _fail(waiter.done, self._error())

    async def _write_last(self) -> None:
        await self.call(lambda _: None)  # then no commit runs, and all that it could not write is pending
        if self._pending and not self._failed:
            batch = batch_of(self._pending, frees=True)  # it is lost otherwise
            try:
                await self.call(lambda backend: backend.commit(batch))
            except (StoreFull, StoreFailed) as error:
                self.problem = str(error)
            else:
                self._pending, self.problem = [], None
        if self._pending:
            _log.error("journal.incomplete", records=len(self._pending), reason=self.problem)

    async def _end(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._done += 1
            del work  # with what it has read
            if self._untidy and self._work.empty():
                self._tidy()

    def _put(self, work: Callable[[], None]) -> None:
        """Give the thread something to do."""
        self._work.put(work)
        self._queued += 1
        if self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._look, self._done)

    def _look(self, count: int) -> None:
        """Interrupt the thread if it has done nothing since the last look."""
        self._watch = None
        if self._done < self._queued:
            if self._done == count:
                self._backend.interrupt()
            self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._look, self._done)

    async def call(self, work: Callable[[Backend], _T]) -> _T:
        """Run other work in the journal's thread, between two commits. Long work must be divided.

        Raises `StoreFailed` if the journal is closed.
        """
        if self._closed:
            raise StoreFailed("it is closed")
        return await self._run_next(work)

    async def _run_next(self, work: Callable[[Backend], _T]) -> _T:
        done: asyncio.Future[_T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work(self._backend)
            except BaseException as error:  # noqa: BLE001 - passed on to the caller
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, done, result)

        self._put(run)
        return await done

    async def backup(self, target: Path) -> None:
        """Copy the store to a new file, with all that is durable now. Commits go on. Raises `StoreFailed`."""
        async with self._copying:
            await asyncio.shield(self.call(lambda backend: backend.backup(target, self._run_waiting)))

    def _run_waiting(self) -> None:
        """Run what waits for the thread, in the middle of other work."""
        with suppress(Empty):
            while (work := self._work.get_nowait()) is not None:
                work()
                self._done += 1

    def append(self, record: Record) -> int:
        """Add a record. Returns its sequence number. It is durable within 50 ms, or when a caller waits for it."""
        self._add(record)
        return self._seq

    def keep(self, space: str, name: str, value: str | None) -> None:
        """Store a small document, or delete it with None. Raises `UnicodeEncodeError` for a lone surrogate."""
        f"{space}{name}{value}".encode()
        names = self._kept.setdefault(space, {})
        if value is None:
            names.pop(name, None)
        else:
            names[name] = value
        self._add(StoredDocument(space, name, value))

    def kept(self, space: str) -> dict[str, str]:
        """Return the documents of a space."""
        return dict(self._kept.get(space, {}))

    def checkpoint(self, heads: Iterable[Head]) -> None:
        """Replace the stored heads of some sessions."""
        for head in heads:
            self._add(head)

    @property
    def pending(self) -> int:
        """The number of records that are not durable yet."""
        return self._seq - self._durable

    def require_writable(self, *, frees: bool = False) -> None:
        """Raise `StorageFull` or `Unavailable` while nothing can be written, or nothing that frees space."""
        if self.problem is not None and not (frees and self._reserve):
            raise self._error()

    async def durable(self, *, frees: bool = False) -> None:
        """Wait until all that has been appended is durable. Raises `StorageFull` or `Unavailable`.

        What `frees` space may use the reserve, with all that was appended before it.
        """
        self.require_writable(frees=frees)
        if self._durable == self._seq:
            return
        waiter = _Waiter(self._seq, self._loop.create_future(), frees)
        self._waiters.append(waiter)
        self._schedule(urgent=True)
        await waiter.done

    async def settled(self, position: int | None = None) -> None:
        """Wait until all that has been appended is durable, also until a problem is over.

        With a position of the common log, return at once if the events up to it are durable. Raises `Unavailable` if
        the journal has failed for good.
        """
        while position is None or position > self._position:
            try:
                await self.durable()
            except (StorageFull, Unavailable):
                if self._failed:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _error(self) -> StorageFull | Unavailable:
        return self._refusal(self.problem or "", retry_after=_ASK_AGAIN_SECONDS)

    def _add(self, item: Record | StoredDocument | Head) -> None:
        self._seq += 1
        if not self.durable_store:
            self._durable = self._seq
            return
        self._pending.append((self._seq, item))
        self._schedule(urgent=False)

    def _schedule(self, *, urgent: bool) -> None:
        """Begin a commit after the current callback, or soon."""
        refused = self.problem is not None and not self._frees
        if self._committing or refused or (self._timer is not None and (self._urgent or not urgent)):
            self._urgent = self._urgent or urgent
            return
        if self._timer is not None:
            self._timer.cancel()
        self._urgent = urgent
        self._timer = (
            self._loop.call_soon(self._commit) if urgent else self._loop.call_later(_DELAY_SECONDS, self._commit)
        )

    def _commit(self) -> None:
        self._timer, self._urgent = None, False
        if self._failed or not (self._pending or self.problem):
            return
        pending, self._pending = self._pending, []
        frees = self._frees
        self._committing = True
        self._put(lambda: self._write(pending, frees=frees))

    @property
    def _frees(self) -> bool:
        """Whether someone waits for something that frees space."""
        return any(waiter.frees for waiter in self._waiters)

    def _write(self, pending: list[tuple[int, Record | StoredDocument | Head]], *, frees: bool) -> None:
        """Commit in the thread, and report the result to the loop."""
        problem: Exception | None = None
        began = time.perf_counter()
        try:
            self._backend.commit(batch_of(pending, frees=frees))
        except Exception as error:  # noqa: BLE001 - the loop decides
            problem = error
        else:
            self.commits, self.written = self.commits + 1, self.written + len(pending)
            self.commit_seconds += time.perf_counter() - began
        self._loop.call_soon_threadsafe(self._committed, pending, problem, self._backend.shortage)
        if problem is None or isinstance(problem, StoreFull):
            self._tidy()

    def _tidy(self) -> None:
        """Maintain the store while nothing else is to be done, but at least one step after each commit."""
        self._untidy = False
        try:
            while self._backend.tidy():
                if not self._work.empty():
                    self._untidy = True
                    return
        except Exception as error:  # noqa: BLE001 - the loop decides; the thread must go on
            self._loop.call_soon_threadsafe(self._committed, [], error)

    def _committed(
        self,
        pending: list[tuple[int, Record | StoredDocument | Head]],
        problem: Exception | None,
        shortage: str | None = None,
    ) -> None:
        self._committing = False
        if problem is None:
            self._succeeded(pending)
            self._go_on(len(pending), shortage)
        elif not self._failed:
            self._pending[:0] = pending
            self._report(problem)

    def _succeeded(self, pending: list[tuple[int, Record | StoredDocument | Head]]) -> None:
        """Let everyone go on who waited for what is durable now."""
        if pending:
            self._durable = pending[-1][0]
        positions = (item.position for _, item in reversed(pending) if isinstance(item, Record))
        self._position = next(positions, self._position)
        ready = [waiter.done for waiter in self._waiters if waiter.seq <= self._durable]
        self._waiters = [waiter for waiter in self._waiters if waiter.seq > self._durable]
        for done in ready:
            _resolve(done, None)

    def _go_on(self, records: int, shortage: str | None) -> None:
        """Write what has arrived during a commit, unless it needs the reserve."""
        if self._closed:
            return
        if shortage is not None:
            self._report(StoreFull(shortage, reserve=True))
            return
        if self.problem is not None:
            _log.info("journal.recovered", records=records)
        self.problem = None
        if self._pending:
            urgent = self._urgent or bool(self._waiters)
            self._urgent = False
            self._schedule(urgent=urgent)

    def _report(self, problem: Exception) -> None:
        """Refuse new writes and all that wait, and try again later unless the problem is final."""
        before, self._refusal, self._reserve = self.problem, Unavailable, False
        if isinstance(problem, StoreFull):
            self._refusal, self._reserve = StorageFull, problem.reserve
            effect = "so it only reads and deletes" if problem.reserve else "and nothing can be stored"
            self.problem = f"the disk of the server is full, {effect}: {problem}"
        elif isinstance(problem, StoreUnavailable):
            self.problem = f"the store of the server cannot be reached, so it only answers reads for now: {problem}"
        else:
            self._failed = True
            self.problem = f"the store of the server has failed, so it only answers reads; restart it: {problem}"
        if self.problem != before:
            unknown = None if isinstance(problem, StoreFull | StoreFailed) else problem
            _log.error("journal.failed", reason=self.problem, final=self._failed, exc_info=unknown)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if self._reserve and waiter.frees:
                self._waiters.append(waiter)
            else:
                _fail(waiter.done, self._error())
        if self._timer is not None:
            self._timer.cancel()
        if self._failed:
            self.on_failed(problem if isinstance(problem, StoreFailed) else StoreFailed(str(problem)))
        elif self._waiters:
            self._timer = self._loop.call_soon(self._commit)
        else:
            self._timer = self._loop.call_later(_RETRY_SECONDS, self._commit)

    async def history(self, key: str, begins_at: int) -> list[tuple[Message, float]]:
        """Return the messages of a session's history, which begins at a row, and when each was added.

        The rest must be durable.

        Raises `Unavailable` if the store is damaged there.
        """

        def read(backend: Backend) -> list[tuple[Message, float]]:
            rows = backend.rows(key, begins_at, HISTORY)
            return [added for row in rows for added in decode_messages(row)]

        return await self._reading(read)

    async def past(self, key: str) -> list[PastChange]:
        """Return all durable changes of a session's history, oldest first; none if the store keeps nothing.

        Raises `Unavailable` if the store is damaged there.
        """

        def read(backend: Backend) -> list[PastChange]:
            rows = backend.rows(key, 0, HISTORY)
            orders = backend.orders(key)  # read second, so that it has that of each row
            return [past_change(row, orders.get(row.seq)) for row in rows]

        return await self._reading(read)

    async def search(self, criteria: Criteria, keys: Sequence[str] | None, before: int | None, max_hits: int) -> Hits:
        """Return stored messages that may match, newest first; see `Backend.search`."""
        return await self._reading(lambda backend: backend.search(criteria, keys, before, max_hits))

    async def events(self, key: str | None, after: int, limit: int) -> list[LoggedEvent] | None:
        """Return stored events after a number of a session's log, or after a position of the common log.

        Stops after about `limit` bytes. None if some of these events have been pruned.
        """

        def read(backend: Backend) -> list[LoggedEvent] | None:
            rows = backend.events(key, after, limit)
            if rows is None:
                return None
            events = [event for row in rows for event in decode_events(row)]
            return [event for event in events if (event.position if key is None else event.number) > after]

        return await self._reading(read)

    async def last_of(self, epoch: str, key: str | None) -> int | None:
        """Return the last durable number of a log in an epoch; None if the epoch is unknown."""
        return await self._reading(lambda backend: backend.last_of(epoch, key))

    async def _reading(self, read: Callable[[Backend], _T]) -> _T:
        try:
            return await self.call(read)
        except StoreFailed as error:
            later = _ASK_AGAIN_SECONDS if isinstance(error, StoreUnavailable) else None
            raise Unavailable(f"the store of the server cannot be read: {error}", retry_after=later) from error


def batch_of(pending: Iterable[tuple[int, Record | StoredDocument | Head]], *, frees: bool = False) -> Batch:
    """Return numbered items as stored. A batch with a deletion frees space."""
    rows: list[Row] = []
    documents: dict[tuple[str, str], StoredDocument] = {}
    heads: dict[str, tuple[str, int, str]] = {}
    for seq, item in pending:
        if isinstance(item, Record):
            rows.append(encode(seq, item))
        elif isinstance(item, StoredDocument):
            documents[item.space, item.name] = item
        else:
            heads[item.key] = (item.key, item.seq, encode_head(item))
    frees = frees or any(row.kind == DELETED for row in rows)
    return Batch(rows, list(documents.values()), list(heads.values()), frees)


def _resolve(done: "asyncio.Future[Any]", result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: "asyncio.Future[Any]", error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
