"""The histories of idle sessions leave the memory beyond a budget, and come back when they are used (H7)."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.stateful import rule

from cfs.errors import CfsError, ServerError, StorageFull, Unavailable
from cfs.wire import Message, SettingsPatch, Usage
from cfs_server.domain.changes import Created, HistoryReplaced, MessageAdded, Record
from cfs_server.domain.history import HistoryNotLoaded, rendered
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.state import Head
from cfs_server.domain.turns import TurnRequest
from cfs_server.engine.host.scripted import ScriptedEngine, echo
from cfs_server.journal.journal import Journal
from cfs_server.journal.memory import MemoryBackend
from cfs_server.journal.records import HISTORY, decode_messages, encode
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore
from tests.sessions.support import RecordingJournal, StoreHarness
from tests.sessions.test_replay import STEPS, ReplayMachine, dump, replayed, script


class Messages(Journal):
    """Keeps the messages of all records, and gives them back when the test allows it."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.durable_store = True
        self.messages: dict[str, list[tuple[Message, float]]] = defaultdict(list)
        self.reads: list[str] = []
        self.readable = asyncio.Event()
        self.readable.set()
        self.safe = asyncio.Event()
        self.safe.set()
        self.error: Exception | None = None

    def append(self, record: Record) -> int:
        """Keep the messages of a change."""
        match record.change:
            case Created() | HistoryReplaced() as change:
                self.messages[record.key] = [(each, record.at) for each in change.history.messages]
            case MessageAdded(message):
                self.messages[record.key].append((message, record.at))
        return 0

    def keep(self, space: str, name: str, value: str | None) -> None:
        """Keep nothing but messages."""

    def checkpoint(self, heads: Iterable[Head]) -> None:
        """Keep no heads."""

    async def durable(self, *, frees: bool = False) -> None:  # noqa: ARG002
        """Wait until the test lets it be so."""
        await self.safe.wait()
        if self.error is not None:
            raise self.error

    async def history(self, key: str, begins_at: int) -> list[tuple[Message, float]]:  # noqa: ARG002
        """Return what was recorded until now, later."""
        self.reads.append(key)
        found = list(self.messages[key])
        await asyncio.sleep(0)
        await self.readable.wait()
        if self.error is not None:
            raise self.error
        return found


class Harness(StoreHarness):
    """A store whose histories leave the memory."""

    def __init__(self, store: SessionStore, engine: ScriptedEngine, source: Messages) -> None:
        super().__init__(store, engine)
        self.source = source

    async def make(self, name: str, count: int = 3) -> Session:
        """Make a session with some messages, and let its history leave."""
        text = "".join(f"User: {name} {number}\nAssistant: yes\n" for number in range(count))
        session = self.store.create(name, None, text)
        await self.calm()
        return session

    async def calm(self) -> None:
        """Let the loop run until nothing moves any more."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def read(self, session: Session) -> str:
        """Read the transcript as a route does."""
        async with self.store.histories.loaded(session):
            await rendered(session.history, "me")
            return session.history.text


@asynccontextmanager
async def small(memory: int = 0, limits: StoreLimits | None = None) -> AsyncIterator[Harness]:
    """A store with a budget; in the end it is sound, and has nothing left."""
    engine, source = ScriptedEngine(echo), Messages()
    await engine.start()
    async with SessionStore(engine, limits or StoreLimits(memory=memory), journal=source) as store:
        yield Harness(store, engine, source)
        store.check_integrity()
    assert (len(store), store.account.bytes, store.histories.bytes) == (0, 0, 0)


async def test_an_idle_history_leaves_and_comes_back() -> None:
    async with small() as h:
        session = await h.make("a", 2)
        assert not session.history.loaded
        assert (len(session.history), session.history.version, session.info(0).messages) == (4, 0, 4)
        with pytest.raises(HistoryNotLoaded):
            session.history.messages  # noqa: B018
        assert await h.read(session) == "User: a 0\nAssistant: yes\nUser: a 1\nAssistant: yes\n"
        await h.calm()
        assert not session.history.loaded


async def test_what_fits_the_budget_stays_and_the_least_recently_used_leaves() -> None:
    async with small(1 << 40) as h:
        sessions = [await h.make(name) for name in "abc"]
        assert all(session.history.loaded for session in sessions)
        each = sessions[0].history.memory
    async with small(2 * each + each // 2) as h:
        a, b = [await h.make(name) for name in "ab"]
        async with h.store.loaded("a"):
            pass
        c = await h.make("c")
        assert [session.history.loaded for session in (a, b, c)] == [True, False, True]
        assert h.store.histories.bytes <= 2 * each + each // 2


async def test_a_busy_session_stays_until_its_turn_has_ended() -> None:
    async with small() as h:
        session = await h.make("a")
        h.engine.hold()
        async with h.store.loaded("a"):
            turn = h.say("a", "hello")
        await h.calm()
        assert session.history.loaded
        h.engine.release()
        assert (await turn.result).reply == "hello"
        await h.calm()
        assert not session.history.loaded
        assert (await h.read(session)).endswith("User: hello\nAssistant: hello\n")


async def test_a_message_for_a_history_that_is_not_loaded_is_refused_as_a_defect() -> None:
    """Nothing is accepted then: a turn would find no messages."""
    async with small() as h:
        session = await h.make("a")
        with pytest.raises(HistoryNotLoaded):
            h.say("a", "hello")
        assert (session.idle, len(session.history)) == (True, 6)


async def test_a_session_that_an_agent_answers_stays_while_messages_wait() -> None:
    async with small() as h:
        session = h.store.create("a", SettingsPatch(driver="agent"))
        async with h.store.loaded("a"):
            h.say("a", "do it")
        await h.calm()
        assert session.history.loaded
        turn = session.claim(30)
        assert turn is not None
        assert turn.lease is not None
        session.update(
            turn.id, turn.lease.secret, text="", messages=[Message(role="assistant", content="")], lease_seconds=30
        )
        await h.calm()
        session.finish(turn.id, turn.lease.secret, reply="done", error=None, usage=Usage())
        await h.calm()
        assert not session.history.loaded


async def test_what_is_not_durable_stays() -> None:
    async with small() as h:
        h.source.safe.clear()
        session = await h.make("a")
        assert session.history.loaded
        h.source.safe.set()
        await h.calm()
        assert not session.history.loaded
        h.source.error = StorageFull("the disk is full")
        kept = await h.make("b")
        assert kept.history.loaded
        h.source.error = None
        await h.make("c")
        assert not kept.history.loaded


async def test_a_change_while_the_journal_commits_keeps_the_history() -> None:
    """What has been added since is not durable yet."""
    async with small() as h:
        h.source.safe.clear()
        session = await h.make("a")
        h.store.replace("a", "User: new\nAssistant: yes\n", "*")
        h.source.safe.set()
        await asyncio.sleep(0)
        await h.calm()
        assert not session.history.loaded, "it leaves with the next commit"
        assert await h.read(session) == "User: new\nAssistant: yes\n"


async def test_many_readers_share_one_read() -> None:
    async with small() as h:
        session = await h.make("a")
        texts = await asyncio.gather(*[h.read(session) for _ in range(20)])
        assert (len(set(texts)), h.source.reads) == (1, [session.key])


async def test_a_reader_that_leaves_does_not_disturb_the_others() -> None:
    async with small() as h:
        session = await h.make("a")
        h.source.readable.clear()
        first, second = [asyncio.create_task(h.read(session)) for _ in range(2)]
        await h.calm()
        first.cancel()
        await h.calm()
        h.source.readable.set()
        assert (await second).startswith("User: a 0\n")
        assert first.cancelled()


async def test_a_slow_reader_keeps_what_it_reads() -> None:
    """Others come and go in the meantime, and the session is renamed."""
    async with small() as h:
        session = await h.make("a")
        async with h.store.loaded("a"):
            await h.make("b")
            h.store.rename("a", "c")
            await h.calm()
            assert session.history.text.startswith("User: a 0\n")
        await h.calm()
        assert not session.history.loaded


async def test_a_session_that_is_deleted_while_it_loads_is_empty() -> None:
    async with small() as h:
        session = await h.make("a")
        h.source.readable.clear()
        reading = asyncio.create_task(h.read(session))
        await h.calm()
        h.store.delete("a")
        h.source.readable.set()
        assert await reading == ""
        assert h.store.account.bytes == 0


async def test_a_history_that_is_replaced_while_it_loads_is_the_new_one() -> None:
    async with small() as h:
        session = await h.make("a")
        h.source.readable.clear()
        reading = asyncio.create_task(h.read(session))
        await h.calm()
        h.store.replace("a", h.store.read("User: new\nAssistant: yes\n"), "*")
        session.history.unload()
        h.source.readable.set()
        assert await reading == "User: new\nAssistant: yes\n"
        assert len(h.source.reads) == 2


async def test_an_id_is_held_for_whatever_session_has_it() -> None:
    async with small() as h:
        await h.make("a")
        async with h.store.loaded("a"):
            h.store.delete("a")
            other = await h.make("a", 1)
            assert other.history.loaded
        await h.calm()
        assert not other.history.loaded
        h.source.readable.clear()
        async with AsyncExitStack() as stack:
            entering = asyncio.create_task(stack.enter_async_context(h.store.loaded("a")))
            await h.calm()
            h.store.rename("a", "b")
            third = await h.make("a", 2)
            third.history.unload()
            h.source.readable.set()
            await entering
            assert third.history.loaded, "it has the id now"


async def test_an_id_without_a_session_can_be_held() -> None:
    async with small() as h, h.store.loaded("new"):
        turn = h.say("new", "hi")
        assert (await turn.result).reply == "hi"


async def test_a_journal_that_cannot_read_is_an_error_for_the_reader_only() -> None:
    async with small() as h:
        session, other = await h.make("a"), await h.make("b")
        h.source.error = Unavailable("the store has failed")
        with pytest.raises(Unavailable):
            await h.read(session)
        h.source.error = None
        assert (await h.read(other)).startswith("User: b 0\n")
        h.source.messages[session.key].pop()
        with pytest.raises(ServerError, match="5 of 6"):
            await h.read(session)
        h.source.messages[session.key].append((Message(role="assistant", content="yes"), 1.0))
        assert (await h.read(session)).startswith("User: a 0\n")


async def test_a_fork_copies_what_was_not_in_memory() -> None:
    async with small() as h:
        source = await h.make("a")
        async with h.store.loaded("a"):
            copy, part = h.store.fork("a", "b"), h.store.fork("a", "c", messages=2)
        await h.calm()
        assert (copy.history.loaded, part.history.loaded) == (False, False)
        assert await h.read(copy) == await h.read(source)
        assert await h.read(part) == "User: a 0\nAssistant: yes\n"


async def test_a_program_that_brings_its_conversation_finds_the_same_history() -> None:
    async with small() as h:
        session = await h.make("a", 1)
        async with h.store.loaded("a"):
            view = session.history.until(None)
            request = TurnRequest(Message(role="user", content="and"), view=view, may_replace=False)
            _, turn, _ = h.store.submit("a", request)
        assert (await turn.result).reply == "and"
        assert await h.read(session) == "User: a 0\nAssistant: yes\nUser: and\nAssistant: and\n"


async def test_sessions_with_turns_are_loaded_before_the_turns_go_on() -> None:
    async with small() as h:
        session = await h.make("a")
        session.settings = session.settings.patched(SettingsPatch(driver="agent"))
        async with h.store.loaded("a"):
            h.say("a", "wait")
        session.history.unload()
        await h.store.load_busy()
        assert session.history.loaded


async def test_turns_wait_for_a_database_that_is_away_at_the_start() -> None:
    """They are still in it, so that the next start can resume them. One whose history is damaged fails."""
    async with small() as h:
        session = await h.make("a")
        session.settings = session.settings.patched(SettingsPatch(driver="agent"))
        async with h.store.loaded("a"):
            h.say("a", "wait")
        session.history.unload()
        h.source.error = Unavailable("away", retry_after=5)
        with pytest.raises(Unavailable):
            await h.store.load_busy()
        assert not session.idle
        h.source.error = ServerError("damaged")
        await h.store.load_busy()
        assert session.idle
        h.source.error = None


async def test_the_limit_of_memory_is_for_what_cannot_leave_it() -> None:
    """Idle sessions may have any number of messages; those that wait or are answered may not (507)."""
    async with small(limits=StoreLimits(memory=0, busy_bytes=20_000)) as h:
        sessions = [await h.make(name, 10) for name in "abcd"]
        assert h.store.account.bytes > 40_000
        assert h.store.histories.needed() == 0
        h.store.create("agent", SettingsPatch(driver="agent"))
        async with h.store.loaded("agent"):
            h.say("agent", "x" * 9_000)
            with pytest.raises(StorageFull, match="20000 bytes"):
                h.say("agent", "x" * 12_000)
            h.say("agent", "x" * 9_000)
        h.store.cancel("agent", queued=True)
        await h.calm()
        assert h.store.histories.needed() == 0
        async with h.store.loaded("a"):
            assert h.store.histories.needed() == sessions[0].history.memory
            h.say("a", "hello")
        assert (await h.settled("a")) is sessions[0]


async def test_messages_that_an_agent_adds_are_counted() -> None:
    async with small(limits=StoreLimits(memory=0, busy_bytes=40_000)) as h:
        session = h.store.create("a", SettingsPatch(driver="agent"))
        async with h.store.loaded("a"):
            h.say("a", "work")
        turn = session.claim(30)
        assert turn is not None
        assert turn.lease is not None
        big = [Message(role="assistant", content="x" * 30_000)]
        session.update(turn.id, turn.lease.secret, text="", messages=big, lease_seconds=30)
        assert h.store.histories.needed() > 30_000
        with pytest.raises(StorageFull):
            session.update(turn.id, turn.lease.secret, text="", messages=big, lease_seconds=30)


class EvictingJournal(RecordingJournal):
    """Reads the messages of a history from the list of records, in their stored form."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)
        self.durable_store = True

    def keep(self, space: str, name: str, value: str | None) -> None:
        """Keep nothing but messages."""

    def checkpoint(self, heads: Iterable[Head]) -> None:
        """Keep no heads."""

    async def durable(self, *, frees: bool = False) -> None:  # noqa: ARG002
        """Let others run."""
        await asyncio.sleep(0)

    async def history(self, key: str, begins_at: int) -> list[tuple[Message, float]]:
        """Return what has been recorded from a record on."""
        own = [encode(seq, record) for seq, record in enumerate(self.records, 1) if record.key == key]
        await asyncio.sleep(0)
        rows = [row for row in own if row.seq >= begins_at and row.kind in HISTORY]
        return [added for row in rows for added in decode_messages(row)]


class BudgetMachine(ReplayMachine):
    """Does the same in a store that keeps no idle history, and compares it with one that keeps all."""

    async def _open(self) -> None:
        engine, journal = ScriptedEngine(script), EvictingJournal(self.records)
        await engine.start()
        self.stack.push_async_callback(journal.close)
        await journal.open()
        limits = replace(self.limits, memory=0)
        self.store = await self.stack.enter_async_context(SessionStore(engine, limits, journal=journal))
        self.harness = StoreHarness(self.store, engine)
        engine.hold()

    def do(self, action: Callable[[], object]) -> None:
        """Load all histories before the call, and let them leave after it."""

        async def run() -> None:
            async with all_loaded(self.store):
                with suppress(CfsError):
                    action()
            for _ in range(STEPS):
                await asyncio.sleep(0)
            assert [session.id for session in self.store if session.idle and session.history.memory] == []

        self.runner.run(run())

    @rule()
    def replay(self) -> None:
        async def compare() -> None:
            self.store.check_integrity()
            expected = await replayed(self.records, self.limits)
            async with all_loaded(self.store):
                assert dump(self.store) == expected

        self.runner.run(compare())


@asynccontextmanager
async def all_loaded(store: SessionStore) -> AsyncIterator[None]:
    """Keep all histories in memory during a block."""
    async with AsyncExitStack() as stack:
        for session in list(store):
            await stack.enter_async_context(store.loaded(session.id))
        yield


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(stateful_step_count=40)
