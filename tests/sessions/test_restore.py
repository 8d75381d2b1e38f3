"""A store that starts again goes on where it was: turns, leases, queues, numbers, ETags and accounts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cfs.errors import Gone, Unavailable
from cfs.wire import Message, SettingsPatch
from cfs_server.domain.authors import Author, author
from cfs_server.domain.events import LoggedEvent, Stale
from cfs_server.domain.quotas import Quota, StorageUsage
from cfs_server.engine.host.scripted import Script, ScriptedEngine, echo
from cfs_server.sessions.store import SessionStore
from tests.sessions.disk import Disk, ManualJournal
from tests.sessions.support import StoreHarness


class Run(StoreHarness):
    """One run of the server on a disk."""

    def __init__(self, store: SessionStore, engine: ScriptedEngine, journal: ManualJournal) -> None:
        super().__init__(store, engine)
        self.journal = journal


@asynccontextmanager
async def run(disk: Disk, script: Script = echo, *, clean: bool = False, hold: bool = False) -> AsyncIterator[Run]:
    """Start on a disk. In the end the process is killed, with all durable, or stops by itself if `clean`."""
    engine, journal = ScriptedEngine(script), ManualJournal(disk)
    await engine.start()
    if hold:
        engine.hold()
    await journal.open()
    accounts: dict[str, StorageUsage] = {}
    async with SessionStore(engine, journal=journal) as store:
        accounts = {"the server": store.account, "alice": store.account.part("alice", Quota())}
        await store.restore(accounts.__getitem__)
        yield Run(store, engine, journal)
        journal.write()
        if clean:
            await store.drain(0)
            store.checkpoint(100)
            journal.write()
        journal.crash()
        store.journal = None


async def seen(session_id: str, r: Run) -> list[str]:
    """Return the types of all events of a session, of all runs."""
    r.journal.write()
    events = await r.journal.events(r.store.get(session_id).key, 0, 1 << 20)
    assert events is not None
    return [event.type for event in events]


async def test_a_turn_that_the_model_was_answering_begins_again() -> None:
    disk = Disk()
    async with run(disk, hold=True) as r:
        turn = r.say("a", "one two three")
        r.say("a", "and four")
        r.engine.step(2)
        while r.store.get("a").partial != "one two":
            await r.store.get("a").log.broadcast.wait()
        last = r.store.get("a").log.last
    async with run(disk) as r:
        session = r.store.get("a")
        assert session.running is not None
        assert (session.running.id, session.running.text, len(session.queue)) == (turn.id, "", 1)
        task = asyncio.ensure_future(r.settled("a"))
        while not task.done():
            r.journal.write()
            await asyncio.sleep(0)
        assert [message.content for message in session.history.messages] == [
            "one two three", "one two three", "and four", "and four",
        ]  # fmt: skip
        kinds = await seen("a", r)
        assert kinds.count("turn.interrupted") == 1
        assert kinds[last : last + 2] == ["turn.interrupted", "turn.started"]
        r.store.check_integrity()


async def test_a_turn_that_was_being_cancelled_stays_cancelled() -> None:
    disk = Disk()
    async with run(disk, hold=True) as r:
        r.say("a", "one two three")
        r.engine.step(1)
        while r.store.get("a").partial != "one":
            await r.store.get("a").log.broadcast.wait()
        r.store.cancel("a")
    async with run(disk) as r:
        session = r.store.get("a")
        assert session.idle
        assert session.history.messages[-1].content == "one [Cancelled]"
        assert r.engine.requests == []


async def test_an_agent_goes_on_under_its_lease() -> None:
    disk = Disk()
    async with run(disk) as r:
        session = r.store.create("a", SettingsPatch(driver="agent"))
        r.say("a", "build it")
        turn = session.claim(60)
        assert turn is not None
        assert turn.lease is not None
        secret = turn.lease.secret
        tool = Message(role="tool", content="42")
        session.update(turn.id, secret, text="half", messages=[tool], lease_seconds=0)  # over when it starts
    async with run(disk) as r:
        session = r.store.get("a")
        assert session.running is not None
        assert session.running.text == "half"
        more = session.update(turn.id, secret, text=" done", messages=(), lease_seconds=60)
        assert more.text == "half done"
        r.store.check_integrity()


async def test_everything_of_a_session_survives() -> None:
    """Also a clean stop, after which no record has to be replayed."""
    disk = Disk()
    async with run(disk) as r:
        alice = r.store.account.part("alice", Quota())
        session = r.store.create("a/b", SettingsPatch(temperature=0.5, paused=True), "User: x\nAssistant: y\n", alice)
        r.store.rename("a", "c")
        times = session.history.times
        r.store.fork("c/b", "copy", account=alice)
        r.store.create("gone")
        r.store.delete("gone")
        before = (session.etag, session.settings, session.history.text, session.created_at, session.log.last)
    async with run(disk, clean=True) as r:
        session = r.store.get("c/b")
        async with r.store.loaded("c/b"), r.store.loaded("copy"):
            after = (session.etag, session.settings, session.history.text, session.created_at, session.log.last)
            assert after == before
            assert r.store.get("copy").history.text == session.history.text
            assert r.store.get("copy").history.times == session.history.times == times
        assert sorted(each.id for each in r.store) == ["c", "c/b", "copy"]
        assert (session.account.owner, session.account.sessions) == ("alice", 3)
        r.store.check_integrity()
    async with run(disk) as r:
        assert r.journal.tail == []
        assert len(r.store) == 3


async def test_a_stop_fails_no_turn() -> None:
    """What has not finished in time goes on with the next start."""
    disk = Disk()
    async with run(disk, clean=True, hold=True) as r:
        r.say("a", "hello")
    async with run(disk) as r:
        task = asyncio.ensure_future(r.settled("a"))
        while not task.done():
            r.journal.write()
            await asyncio.sleep(0)
        assert r.store.get("a").history.messages[-1].content == "hello"


@pytest.mark.parametrize("common", [False, True])
async def test_a_late_reader_sees_no_deletion_where_a_store_ends(common: bool) -> None:
    """It waits for a commit, or sends slowly, and outlasts a slot that is handed over. No id has two meanings."""
    disk, engine = Disk(), ScriptedEngine(echo)
    await engine.start()
    journal = ManualJournal(disk)
    await journal.open()
    async with SessionStore(engine, journal=journal) as store:
        session = store.create("a")
        log = store.bus.log if common else session.log
        reader = asyncio.ensure_future(all_of(log.follow(0)))
        await asyncio.sleep(0)
        assert log.last == 1
        assert not reader.done()
    while not reader.done():
        journal.write()
        await asyncio.sleep(0)
    assert [(event.type, event.number, event.position) for event in reader.result()] == [("session.created", 1, 1)]
    assert log.goodbye
    async with run(disk) as r:
        r.store.get("a").change_settings(SettingsPatch(temperature=0.5))
        assert await seen("a", r) == ["session.created", "settings.changed"]


async def all_of(batches: AsyncGenerator[list[LoggedEvent] | Stale]) -> list[LoggedEvent]:
    """Read events until their log is closed."""
    return [event async for batch in batches if isinstance(batch, list) for event in batch]


async def test_what_is_asked_of_a_store_that_ends_is_stored() -> None:
    """A request that outlasts the store is acknowledged, as its records are durable."""
    disk, engine = Disk(), ScriptedEngine(echo)
    await engine.start()
    journal = ManualJournal(disk)
    await journal.open()
    async with SessionStore(engine, journal=journal) as store:
        store.create("a")
    store.create("b")
    journal.write()
    async with run(disk) as r:
        assert [session.id for session in r.store] == ["a", "b"]


async def test_who_waits_for_a_session_learns_that_its_store_ends_and_not_that_it_is_deleted() -> None:
    async with run(Disk(), hold=True) as r:
        r.say("a", "one")
        r.say("b", "one")
        waits = [asyncio.ensure_future(r.store.wait_settled(r.store.get(name))) for name in ("a", "b")]
        await asyncio.sleep(0)
        r.store.delete("a")
    with pytest.raises(Gone):
        await waits[0]
    with pytest.raises(Unavailable):
        await waits[1]


async def test_an_error_in_the_block_of_a_store_stays_what_it_is() -> None:
    """So a slot whose database goes away while it is opened is no defect."""
    with pytest.raises(Unavailable, match="away"):
        async with SessionStore(ScriptedEngine(echo)):
            raise Unavailable("the database is away")


async def test_records_name_their_author() -> None:
    disk = Disk()
    async with run(disk) as r:
        author.set(Author("alice", "main/coder", "call_1"))
        r.store.open("a")
    assert [row.author for row in disk.rows] == ['{"principal":"alice","agent":"main/coder","call":"call_1"}']
