"""A store with a scripted engine, checked when the test is done with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cfs.wire import Message
from cfs_server.domain.changes import Record
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.turns import Turn, TurnRequest
from cfs_server.engine.host.scripted import Script, ScriptedEngine, echo
from cfs_server.journal.journal import Journal
from cfs_server.journal.memory import MemoryBackend
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore


class StoreHarness:
    """A store, its engine and short words for what tests do all the time."""

    def __init__(self, store: SessionStore, engine: ScriptedEngine) -> None:
        self.store = store
        self.engine = engine

    def say(self, session_id: str, content: str, *, generate: bool = True) -> Turn:
        """Submit a user's message."""
        _, turn, _ = self.store.submit(
            session_id, TurnRequest(Message(role="user", content=content), generate=generate)
        )
        return turn

    async def settled(self, session_id: str) -> Session:
        """Wait until a session is settled."""
        session = self.store.get(session_id)
        assert await self.store.wait_settled(session)
        return session

    async def text(self, session_id: str) -> str:
        """Read the transcript as a blocking reader would (S7)."""
        return (await self.settled(session_id)).history.text

    def types(self, session_id: str, after: int = 0) -> list[str]:
        """Name the session's events in their order."""
        events = self.store.get(session_id).log.since(after)
        assert isinstance(events, list)
        return [event.type for event in events]


class RecordingJournal(Journal):
    """A journal that adds all records to a list."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__(MemoryBackend())
        self.records = records

    def append(self, record: Record) -> int:
        """Add the record to the list."""
        self.records.append(record)
        return len(self.records)


@asynccontextmanager
async def recording(records: list[Record] | None) -> AsyncIterator[Journal | None]:
    """Open a journal for a list of records, if there is one."""
    if records is None:
        yield None
        return
    journal = RecordingJournal(records)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@asynccontextmanager
async def running_store(
    script: Script = echo, limits: StoreLimits | None = None, records: list[Record] | None = None
) -> AsyncIterator[StoreHarness]:
    """Open a store; when the block ends it must be sound, and leave nothing behind. Its changes go to `records`."""
    engine = ScriptedEngine(script)
    await engine.start()
    async with recording(records) as journal, SessionStore(engine, limits, journal=journal) as store:
        yield StoreHarness(store, engine)
        store.check_integrity()
    store.check_integrity()
    assert (len(store), store.account.bytes, (await engine.stats()).running) == (0, 0, 0)


def transcript(*contents: str) -> str:
    """Write down what a session holds after these messages of a user, none of which needs escaping (S3, S6)."""
    return "".join(f"User: {content.removesuffix(chr(10))}\n" for content in contents)
