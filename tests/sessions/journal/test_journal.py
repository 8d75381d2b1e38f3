"""The journal over a real file: what is written together, what waits, and what happens when the disk fails."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cfs.errors import StorageFull, Unavailable
from cfs.wire import Message, Settings
from cfs_server.domain.changes import Created, Deleted, MessageAdded, Record, SessionChange
from cfs_server.domain.events import LoggedEvent
from cfs_server.journal.journal import Backend, Batch, Journal, Opened, StoreFailed
from cfs_server.journal.sqlite import SqliteBackend
from tests.disks import Mount, fill, mount
from tests.sessions.journal.conformance import head_of

__all__ = ["mount"]


class Watched(SqliteBackend):
    """Notes the batches, and holds a commit until the test releases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.batches: list[Batch] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def commit(self, batch: Batch) -> None:
        self.begun.set()
        self.go_on.wait()
        super().commit(batch)
        if batch.rows or batch.kept or batch.heads:
            self.batches.append(batch)


class Records:
    """Makes the records of one session."""

    def __init__(self, opened: Opened) -> None:
        self.number, self.position = 0, opened.position

    def next(self, change: SessionChange, *events: str) -> Record:
        published = []
        for kind in events:
            self.number, self.position = self.number + 1, self.position + 1
            published.append(LoggedEvent(kind, "a", self.number, self.position, 1.5, {}))  # type: ignore[arg-type]
        return Record("a", 1.5, change, tuple(published), None, self.number, self.position)

    def created(self) -> Record:
        return self.next(Created("a", "a", "1f", "the server", Settings()), "session.created")

    def deleted(self) -> Record:
        return self.next(Deleted(), "session.deleted")

    def message(self, text: str) -> Record:
        return self.next(MessageAdded(Message(role="user", content=text), "t"), "message.added")


@asynccontextmanager
async def journal_on(path: Path) -> AsyncIterator[tuple[Journal, Watched, Records]]:
    backend = Watched(path)
    journal = Journal(backend)
    records = Records(await journal.open())
    journal.append(records.created())
    await journal.durable()
    try:
        yield journal, backend, records
    finally:
        backend.go_on.set()
        await journal.close()


def filled_without_reserve(backend: SqliteBackend, disk: Path) -> Path:
    """Give the reserve back, and fill the disk before maintenance makes it again."""
    tidied(backend)
    while backend._reserve.spend(last=True):
        pass
    return fill(disk)


def tidied(backend: Backend) -> None:
    """Do all maintenance that there is to do."""
    while backend.tidy():
        pass


async def until(true: Callable[[], bool]) -> None:
    """Wait for another thread."""
    while not true():  # noqa: ASYNC110 - the thread knows nothing of this loop
        await asyncio.sleep(0.001)


async def texts(journal: Journal) -> list[str]:
    return [message.content for message, _ in await journal.history("a", 0)]


async def test_what_arrives_during_a_commit_is_written_by_the_next_one(tmp_path: Path) -> None:
    """64 writers need two commits, not 64."""
    async with journal_on(tmp_path / "sessions.db") as (journal, backend, records):
        backend.go_on.clear()
        backend.begun.clear()

        async def write(number: int) -> None:
            journal.append(records.message(f"{number}"))
            await journal.durable()

        first = asyncio.create_task(write(0))
        await until(backend.begun.is_set)
        others = [asyncio.create_task(write(number)) for number in range(1, 64)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others))
        backend.go_on.set()
        await asyncio.gather(first, *others)
        assert [len(batch.rows) for batch in backend.batches] == [1, 1, 63]
        assert await texts(journal) == [f"{number}" for number in range(64)]


async def test_events_that_are_durable_do_not_wait_for_later_ones(tmp_path: Path) -> None:
    """A reader gets a message at once, although pieces of the reply are being written."""
    async with journal_on(tmp_path / "sessions.db") as (journal, backend, records):
        message = records.message("hello")
        journal.append(message)
        await journal.durable()
        backend.go_on.clear()
        journal.append(records.message("later"))
        await journal.settled(message.position)
        later = asyncio.create_task(journal.settled(records.position))
        everything = asyncio.create_task(journal.settled())
        await asyncio.sleep(0)
        assert not later.done()
        assert not everything.done()
        backend.go_on.set()
        await asyncio.gather(later, everything)


async def test_what_one_callback_appends_is_written_together(tmp_path: Path) -> None:
    """An operation of several changes is not cut by a crash, whenever a commit begins."""
    async with journal_on(tmp_path / "sessions.db") as (journal, backend, records):

        def operation(number: int) -> None:
            journal.append(records.message(f"{number}"))
            journal.keep("space", f"{number}", "value")
            journal.append(records.message(f"{number}"))
            journal.checkpoint([head_of("a", 1)])

        async def work(first: int) -> None:
            for number in range(first, first + 50):
                operation(number)
                await (journal.durable() if number % 3 else asyncio.sleep(0))

        await asyncio.gather(*(work(100 * n) for n in range(8)))
        await journal.durable()
        assert len(backend.batches) > 10
        for batch in backend.batches[1:]:
            found = [row.body for row in batch.rows]
            assert found[::2] == found[1::2]
            assert len(batch.rows) == 2 * len(batch.kept)
            assert batch.heads


async def test_nothing_needs_a_request_to_become_durable(tmp_path: Path) -> None:
    async with journal_on(tmp_path / "sessions.db") as (journal, backend, records):
        journal.append(records.message("a token"))
        await until(lambda: len(backend.batches) == 2)


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with journal_on(path) as (journal, _, records):
        journal.append(records.message("one"))
        journal.keep("locks", "a", "1")
        journal.keep("locks", "b", "2")
        journal.keep("locks", "a", None)
        assert journal.kept("locks") == {"b": "2"}
        first = journal.opened.epoch
    journal = Journal(SqliteBackend(path))
    opened = await journal.open()
    assert [row.kind for row in opened.rows] == ["session.created", "message.added"]
    assert journal.kept("locks") == {"b": "2"}
    assert await texts(journal) == ["one"]
    assert await journal.last_of(first, "a") == records.number
    assert [event.type for event in await journal.events("a", 1, 1 << 20) or ()] == ["message.added"]
    await journal.close()


async def test_a_document_that_is_no_text_is_refused_at_once(tmp_path: Path) -> None:
    """SQLite would refuse it later, with all that is written together with it."""
    async with journal_on(tmp_path / "sessions.db") as (journal, _, records):
        for document in (("\ud800", "a", "1"), ("locks", "\udcff", "1"), ("locks", "a", "\ud83d")):
            with pytest.raises(UnicodeEncodeError):
                journal.keep(*document)
        journal.append(records.message("one"))
        await journal.durable()
        assert journal.kept("locks") == {}


async def test_a_store_that_is_in_use_is_refused(tmp_path: Path) -> None:
    async with journal_on(tmp_path / "sessions.db"):
        other = Journal(SqliteBackend(tmp_path / "sessions.db"))
        with pytest.raises(StoreFailed, match="open in this process already"):
            await other.open()


async def test_writes_are_refused_while_the_disk_is_full_and_go_on_by_themselves(mount: Mount) -> None:
    """H7: the answer is 507. Reads go on, and what was not written waits in memory, in its order.

    The commit that fills the disk takes from the reserve, so that nobody waits for it in vain.
    """
    disk = mount("disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    async with journal_on(disk / "sessions.db") as (journal, _, records):
        await journal.call(tidied)  # it needs room, too
        filler = fill(disk)
        written = [f"{number}" * 5_000 for number in range(1, 9)]
        for text in written:
            journal.append(records.message(text))
        await journal.durable()
        journal.append(records.message("meanwhile"))
        for attempt in (journal.durable, journal.durable):
            with pytest.raises(StorageFull, match="disk of the server is full, so it only reads and deletes") as full:
                await attempt()
            assert full.value.status == 507
        with pytest.raises(StorageFull):
            journal.require_writable()
        assert await texts(journal) == written
        filler.unlink()
        await until(lambda: journal.problem is None)
        await journal.durable()
        journal.require_writable()
        assert await texts(journal) == [*written, "meanwhile"]


async def test_a_deletion_is_stored_on_a_full_disk_with_all_that_was_before_it(mount: Mount) -> None:
    """Its waiter is not refused with those that waited for what needs space."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    async with journal_on(disk / "sessions.db") as (journal, _, records):
        await journal.call(tidied)
        fill(disk)
        journal.append(records.message("fills the disk" * 5_000))
        await journal.durable()
        journal.append(records.message("before"))
        with pytest.raises(StorageFull):
            await journal.durable()
        journal.require_writable(frees=True)
        journal.append(records.deleted())
        await journal.durable(frees=True)
        assert journal.problem is not None
        assert await texts(journal) == []


async def test_without_its_reserve_a_full_disk_refuses_deletions_too(mount: Mount) -> None:
    disk = mount("disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    async with journal_on(disk / "sessions.db") as (journal, backend, records):
        filler = await journal.call(lambda _: filled_without_reserve(backend, disk))
        journal.append(records.message("x" * 100_000))
        with pytest.raises(StorageFull, match="nothing can be stored"):
            await journal.durable()
        with pytest.raises(StorageFull):
            journal.require_writable(frees=True)
        filler.unlink()
        await until(lambda: journal.problem is None)
        assert await texts(journal) == ["x" * 100_000]


async def test_a_store_that_failed_only_answers_reads(tmp_path: Path) -> None:
    """The answer is 503. SQLite refuses to write, as on a disk that became read-only."""
    path = tmp_path / "sessions.db"
    async with journal_on(path) as (journal, backend, records):
        journal.append(records.message("one"))
        await journal.durable()
        await journal.call(lambda _: backend.connection.execute("PRAGMA query_only = ON"))
        for _ in range(3):
            journal.append(records.message("lost"))
            with pytest.raises(Unavailable, match="only answers reads; restart it") as failed:
                await journal.durable()
            assert failed.value.status == 503
        with pytest.raises(Unavailable):
            journal.require_writable()
        assert await texts(journal) == ["one"]


async def test_what_comes_after_the_end_is_refused(tmp_path: Path) -> None:
    """It does not wait for ever: a reader or a request can outlast a slot that is handed over."""
    async with journal_on(tmp_path / "sessions.db") as (journal, _, records):
        journal.append(records.message("one"))
    await journal.settled(records.position)
    with pytest.raises(Unavailable, match="closed"):
        await journal.events("a", 0, 1)
    with pytest.raises(Unavailable, match="closed"):
        await journal.settled()
    journal.append(records.message("lost"))
    with pytest.raises(Unavailable, match="closed"):
        await journal.durable()


async def test_a_damaged_page_fails_the_reads_that_need_it(tmp_path: Path) -> None:
    """Everything else goes on: writes, and reads of other places."""
    path = tmp_path / "sessions.db"
    async with journal_on(path) as (journal, backend, records):
        for number in range(200):
            journal.append(records.message(f"{number} {'x' * 3_000}"))
        journal.append(records.message("needle"))
        await journal.durable()
        await journal.call(lambda _: backend.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        data = bytearray(path.read_bytes())
        data[(at := data.index(b"150 xxx")) : at + 3] = b"999"
        path.write_bytes(data)
        await journal.call(lambda _: backend.connection.execute("PRAGMA shrink_memory"))
        with pytest.raises(Unavailable, match="record 152 does not match its checksum"):
            await journal.history("a", 0)
        assert [message.content for message, _ in await journal.history("a", 202)] == ["needle"]
        journal.append(records.message("goes on"))
        await journal.durable()
