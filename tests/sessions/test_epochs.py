"""Cursors stay exact over restarts: a number means one event in one epoch, and a lost event makes a cursor stale (S11).

A model of crashes. The server dies at random points between the moment when readers have seen an event and the moment
when it is durable. Readers go on with the id of the last event they saw, as browsers do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cfs.errors import CfsError
from cfs.wire import Message
from cfs_server.domain.events import EventLog, LoggedEvent, Stale
from cfs_server.domain.quotas import StorageUsage, StoreLimits
from cfs_server.domain.turns import TurnRequest
from cfs_server.engine.host.scripted import ScriptedEngine, echo
from cfs_server.journal.records import decode_events
from cfs_server.sessions.store import SessionStore
from tests.sessions.disk import Disk, ManualJournal

NAMES = st.sampled_from(["a", "b", "a/x"])
STEPS = 12
FEW_EVENTS = StoreLimits(session_events=3, all_events=4, memory=0)
"""Most events that readers ask for have left the memory."""


class Reader:
    """A client that follows one log. `seen` has the events since its last `stale`."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.token: str | None = None
        self.seen: list[tuple[int, str]] = []

    def take(self, events: list[LoggedEvent] | Stale, log: EventLog) -> None:
        """Note what the stream brought."""
        if isinstance(events, Stale):
            self.seen, self.token = [], log.token(events.last)
            return
        for event in events:
            self.seen.append((log.number_of(event), event.json))
            self.token = log.token(log.number_of(event))


class CrashMachine(RuleBasedStateMachine):
    """Writes, generates, reads, and crashes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.disk = Disk()
        self.readers = [Reader(None), Reader(None), Reader("a"), Reader("b"), Reader("a/x")]
        self.meanings: dict[str, str] = {}
        self.acknowledged: list[str] = []
        self.words = 0
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.stack = AsyncExitStack()
        self.engine = ScriptedEngine(echo)
        await self.engine.start()
        self.engine.hold()
        self.journal = ManualJournal(self.disk)
        await self.journal.open()
        self.store = await self.stack.enter_async_context(SessionStore(self.engine, FEW_EVENTS, journal=self.journal))
        accounts: dict[str, StorageUsage] = {"the server": self.store.account}
        await self.store.restore(lambda owner: accounts[owner])
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(STEPS):
            await asyncio.sleep(0)

    async def _crash(self) -> None:
        await self._stop()
        await self._start()

    async def _stop(self) -> None:
        self.journal.crash()
        self.store.journal = None
        await self.stack.aclose()

    def do(self, action: Callable[[], object]) -> None:
        """Run a plain call inside of the loop, refused or not, and let the loop settle."""

        async def run() -> None:
            with suppress(CfsError):
                action()
            await self._settle()

        self.runner.run(run())

    @rule(name=NAMES, generate=st.booleans())
    def submit(self, name: str, generate: bool) -> None:
        self.words += 1
        request = TurnRequest(Message(role="user", content=f"word{self.words} and more"), generate)
        self.runner.run(self._submit(name, request))

    async def _submit(self, name: str, request: TurnRequest) -> None:
        async with self.store.loaded(name):
            self.store.submit(name, request)
        await self._settle()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.do(lambda: self.store.delete(name))

    @rule(tokens=st.integers(1, 3))
    def generate(self, tokens: int) -> None:
        self.do(lambda: self.engine.step(tokens))

    @rule()
    def write(self) -> None:
        self.do(self.journal.write)

    @rule(most=st.integers(1, 4))
    def write_some(self, most: int) -> None:
        """A batch can be cut between any two records: the model does not rely on callbacks of the loop."""
        self.do(lambda: self.journal.write(most))

    @rule()
    def checkpoint(self) -> None:
        self.do(lambda: self.store.checkpoint(1))

    @rule()
    def crash(self) -> None:
        self.runner.run(self._crash())

    @rule(at=st.integers(0, 4), most=st.integers(1, 5))
    def read(self, at: int, most: int) -> None:
        self.runner.run(self._read(self.readers[at], most))

    async def _read(self, reader: Reader, most: int) -> None:
        if (log := self._log_of(reader)) is None:
            return
        before = reader.token
        after = 0 if before is None else await log.cursor(before)
        stream = log.follow(after)
        for _ in range(most):
            events = await self._next(stream)
            if events is None:
                break
            if isinstance(events, Stale):
                assert before is not None
                assert self._is_lost(reader, log), f"stale without a reason: {before}"
            reader.take(events, log)
            self._note(events, log)

    def _log_of(self, reader: Reader) -> EventLog | None:
        if reader.name is None:
            return self.store.bus.log
        session = self.store.find(reader.name)
        return None if session is None else session.log

    async def _next(self, stream: AsyncIterator[Any]) -> Any:
        """Return what the stream has now, or None."""
        task = asyncio.ensure_future(anext(stream, None))
        await self._settle()
        if task.done():
            return task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return None

    def _note(self, events: list[LoggedEvent] | Stale, log: EventLog) -> None:
        """Check that an id has one meaning."""
        for event in [] if isinstance(events, Stale) else events:
            token = log.token(log.number_of(event))
            assert self.meanings.setdefault(token, event.json) == event.json

    def _is_lost(self, reader: Reader, log: EventLog) -> bool:
        """Return whether a crash took the last event that the reader saw, or it read another session of this name."""
        assert reader.token is not None
        if reader.token.partition(".")[0] != log.life or not reader.seen:
            return True
        number, seen = reader.seen[-1]
        stored = (event for row in self.disk.rows for event in decode_events(row))
        return all(event.json != seen for event in stored if log.number_of(event) == number)

    def teardown(self) -> None:
        self.runner.run(self._finish())
        self.runner.close()

    async def _finish(self) -> None:
        self.journal.write()
        for reader in self.readers:
            await self._read(reader, 100)
            log = self._log_of(reader)
            if log is None or not reader.seen:
                continue
            whole = Reader(reader.name)
            stream = log.follow(0)
            while (events := await self._next(stream)) is not None:
                whole.take(events, log)
            first = reader.seen[0][0]
            expected = [each for each in whole.seen if each[0] >= first]
            own = reader.seen if reader.name else [each for each in reader.seen if each in whole.seen]
            assert own == expected, "a reader has missed or repeated an event"
            if reader.name is not None:
                assert [number for number, _ in own] == list(range(first, first + len(own)))
        await self._stop()


TestCrashes = CrashMachine.TestCase
TestCrashes.settings = settings(stateful_step_count=40)


def test_ids_have_the_epoch() -> None:
    """The form that clients keep: `<life>.<epoch>-<number>`."""
    disk = Disk()

    async def ids() -> list[str]:
        journal, engine = ManualJournal(disk), ScriptedEngine(echo)
        await journal.open()
        await engine.start()
        async with SessionStore(engine, journal=journal) as store:
            await store.restore(lambda _: store.account)
            session = store.open("a")
            journal.write()
            return [session.log.token(1), journal.opened.epoch]

    (one, epoch), (two, other) = asyncio.run(ids()), asyncio.run(ids())
    assert one.partition(".")[0] == two.partition(".")[0]
    assert (one.partition(".")[2], two.partition(".")[2]) == (f"{epoch}-1", f"{other}-1")
    assert epoch != other
