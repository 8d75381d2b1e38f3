"""A database that restarts, freezes, is full, or loses connections: nothing that was stored is lost or stored twice."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from cfs.errors import Unavailable
from cfs_server.journal import journal as journal_module
from cfs_server.journal.journal import Batch, Journal, StoredDocument, StoreFailed, StoreFull, StoreUnavailable
from cfs_server.journal.postgres import PostgresBackend, SlotLost
from cfs_server.journal.postgres_database import prepare
from cfs_server.journal.records import HISTORY
from tests.client.terminal import cfs
from tests.disks import Mount, fill, mount
from tests.postgres import PostgresServer, Proxy, database, postgres, running_postgres
from tests.server.support import running_server
from tests.sessions.journal.conformance import Writer, contents
from tests.sessions.journal.test_journal import Records, texts, until
from tests.sessions.journal.test_postgres import beat, claimed, execute, opened

__all__ = ["database", "mount", "postgres"]


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that these tests may stop, if they start it again."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def restartable(own: PostgresServer) -> str:
    """The URL of a new database on it."""
    url = own.url(own.new_database())
    prepare(url)
    return url


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """A proxy in front of the server of all tests."""
    proxy = Proxy(postgres.port)
    yield proxy
    proxy.close()


@asynccontextmanager
async def journal_on(url: str, replica: str = "") -> AsyncIterator[tuple[Journal, PostgresBackend, Records]]:
    """A journal with one session."""
    backend = PostgresBackend(url, replica=replica)
    journal = Journal(backend)
    records = Records(await journal.open())
    journal.append(records.created())
    await journal.durable()
    try:
        yield journal, backend, records
    finally:
        await journal.close()


def stored(url: str) -> list[str]:
    """Return the messages of the session."""
    with opened(url) as (backend, _):
        return contents(backend.rows("a", 0, HISTORY))


# -- lost connections -------------------------------------------------------------------------------------------------


def through(proxy: Proxy, url: str) -> str:
    """Return the URL of the same database behind the proxy."""
    before, _, name = url.rpartition("/")
    return f"{before.rpartition(':')[0]}:{proxy.port}/{name}"


def test_a_commit_whose_answer_is_lost_is_not_stored_twice(database: str, proxy: Proxy) -> None:
    with opened(through(proxy, database)) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a")]))
        for number in range(5):
            proxy.lose_answer()
            backend.commit(Batch([writer.message("a", f"{number}")], [StoredDocument("locks", f"{number}", "1")]))
            assert b"COMMIT" in proxy.lost
        assert backend.last_of(found.epoch, None) == writer.position
    assert stored(database) == [f"{number}" for number in range(5)]


def test_a_batch_that_has_grown_meanwhile_is_stored_from_where_the_lost_commit_ended(
    database: str, proxy: Proxy
) -> None:
    """The journal adds what has arrived to what it could not write."""
    with opened(through(proxy, database)) as (backend, found):
        writer = Writer(found)
        rows = [writer.created("a"), writer.message("a", "one")]
        backend.commit(Batch(rows))
        more = [writer.message("a", "two"), writer.created("b")]
        backend.commit(Batch([*rows, *more], heads=[writer.head("a")]))
        backend.commit(Batch([*more, writer.deleted("b")]))
        assert contents(backend.rows("a", 0, HISTORY)) == ["one", "two"]
    assert execute(database, "SELECT seq FROM cfs.records ORDER BY seq") == [(seq,) for seq in range(1, 6)]


def test_a_commit_that_arrives_after_its_connection_was_replaced_is_refused(
    database: str, postgres: PostgresServer, proxy: Proxy
) -> None:
    """It was held up in the network. The new connection has begun another epoch."""
    end = "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC"
    postgres.execute(end, database.rpartition("/")[2])
    with opened(through(proxy, database)) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a")]))
        proxy.hold()
        backend.commit(Batch([writer.message("a", "one")], [StoredDocument("locks", "a", "1")]))
        backend.commit(Batch([writer.message("a", "two")], [StoredDocument("locks", "a", "2")]))
        assert b"division by zero" in proxy.deliver()
        backend.commit(Batch([writer.message("a", "three")]))
    proxy.close()  # the old connection has the lock until then
    backend, found = claimed(database)
    assert contents(backend.rows("a", 0, HISTORY)) == ["one", "two", "three"]
    assert found.kept == {"locks": {"a": "2"}}
    backend.close()


async def test_connections_that_end_all_the_time_are_replaced_without_an_error(
    database: str, postgres: PostgresServer
) -> None:
    """An operator, a balancer or a time-out ends them, also in the middle of a commit."""
    async with journal_on(database) as (journal, backend, records):
        stop = asyncio.Event()
        written: list[str] = []

        async def client(number: int) -> None:
            for turn in count():
                if stop.is_set():
                    return
                written.append(f"{number}/{turn} {'x' * 2_000}")
                journal.append(records.message(written[-1]))
                await journal.durable()

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        for _ in range(30):
            ended = backend._pid
            await asyncio.to_thread(postgres.execute, f"SELECT pg_terminate_backend({ended})")
            await until(lambda ended=ended: backend._pid != ended)  # type: ignore[misc]
            before = journal.commits
            await until(lambda before=before: journal.commits > before)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*clients)
        assert await texts(journal) == written
    assert stored(database) == written


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_nothing_is_lost_or_doubled_when_the_database_restarts(
    own: PostgresServer, restartable: str, how: signal.Signals
) -> None:
    """H7: a fast shutdown, and an immediate one, which is a crash. Writes get 503 until it is back; reads go on."""
    async with journal_on(restartable) as (journal, _, records):
        written: list[str] = []
        acknowledged = 0
        refused: list[Unavailable] = []
        stop = asyncio.Event()

        async def client(number: int) -> None:
            nonlocal acknowledged
            for turn in count():
                if stop.is_set():
                    return
                written.append(f"{number}/{turn}")
                journal.append(records.message(written[-1]))
                journal.keep("turns", f"{number}", f"{turn}")
                try:
                    await journal.durable()
                except Unavailable as error:
                    refused.append(error)
                    await until(lambda: journal.problem is None)
                else:
                    acknowledged += 1

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        for _ in range(2):
            enough = acknowledged + 100
            await until(lambda enough=enough: acknowledged >= enough)  # type: ignore[misc]
            await asyncio.to_thread(own.stop, how)
            await until(lambda: journal.problem is not None)
            with pytest.raises(Unavailable):
                journal.require_writable()
            with pytest.raises(Unavailable, match="cannot be read") as failed:
                await journal.history("a", 0)
            assert failed.value.retry_after == 5.0
            await asyncio.to_thread(own.start)
            await until(lambda: journal.problem is None)
        stop.set()
        await asyncio.gather(*clients)
        await journal.durable()
        assert len(refused) >= 2
        assert {(error.status, error.retry_after) for error in refused} == {(503, 5.0)}
        assert all("cannot be reached, so it only answers reads for now" in error.detail for error in refused)
        assert await texts(journal) == written
        kept = journal.kept("turns")
    assert stored(restartable) == written
    with opened(restartable) as (_, found):
        assert found.kept == {"turns": kept}


async def test_a_read_after_a_restart_takes_a_new_connection(own: PostgresServer, restartable: str) -> None:
    async with journal_on(restartable) as (journal, _, records):
        journal.append(records.message("one"))
        await journal.durable()
        await asyncio.to_thread(own.stop)
        await asyncio.to_thread(own.start)
        assert await texts(journal) == ["one"]


async def test_a_server_that_stops_while_the_database_is_away_does_not_wait_for_it(
    own: PostgresServer, restartable: str
) -> None:
    async with journal_on(restartable) as (journal, _, records):
        await asyncio.to_thread(own.stop)
        journal.append(records.message("lost"))
        with pytest.raises(Unavailable):
            await journal.durable()
    assert journal.pending == 1
    await asyncio.to_thread(own.start)
    assert stored(restartable) == []


async def test_what_waits_is_written_when_the_server_stops_and_the_database_is_back(
    own: PostgresServer, restartable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_RETRY_SECONDS", 3600.0)
    async with journal_on(restartable) as (journal, _, records):
        await asyncio.to_thread(own.stop)
        journal.append(records.message("late"))
        with pytest.raises(Unavailable):
            await journal.durable()
        await asyncio.to_thread(own.start)
    assert stored(restartable) == ["late"]


async def test_a_server_that_stops_while_the_database_is_frozen_does_not_wait_for_it(
    own: PostgresServer, restartable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes of the database stand still, and the kernel accepts connections for them."""
    monkeypatch.setattr(journal_module, "_PATIENCE_SECONDS", 1.0)
    async with journal_on(f"{restartable}?connect_timeout=2") as (journal, backend, records):
        frozen = [backend._pid, own.pid]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        journal.append(records.message("lost"))
    assert journal.pending == 1
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    backend, _ = claimed(restartable, "")
    assert contents(backend.rows("a", 0, HISTORY)) in ([], ["lost"])
    backend.close()


async def test_a_connection_that_freezes_is_given_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the database does not answer, and nothing ends its connection."""
    monkeypatch.setattr(journal_module, "_PATIENCE_SECONDS", 1.0)
    async with journal_on(database) as (journal, backend, records):
        frozen = backend._pid
        os.kill(frozen, signal.SIGSTOP)
        try:
            journal.append(records.message("one"))
            await journal.durable()
            assert backend._pid != frozen
            assert await texts(journal) == ["one"]
        finally:
            os.kill(frozen, signal.SIGCONT)
        journal.append(records.message("two"))
        await journal.durable()
        assert await texts(journal) == ["one", "two"]


def test_a_database_that_becomes_read_only_is_tried_again(database: str, postgres: PostgresServer) -> None:
    """After a fail-over, an address can lead to a standby for a while."""
    name = database.rpartition("/")[2]
    with opened(database) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a")]))
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        os.kill(backend._pid, signal.SIGTERM)
        batch = Batch([writer.message("a", "one")])
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="read-only transaction"):
                backend.commit(batch)
        postgres.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        backend.commit(batch)
    assert stored(database) == ["one"]


def test_a_database_that_has_lost_what_was_stored_is_not_written_any_more(database: str) -> None:
    """As after a fail-over to a standby that was behind: the sessions in memory are newer than the database."""
    with opened(database) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), writer.message("a")]))
        execute(database, "DELETE FROM cfs.records WHERE seq = 2")
        execute(database, "UPDATE cfs.slots SET seq = 1, position = 1")
        os.kill(backend._pid, signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="has lost records that were stored: 2 was the last one and 1 is"):
                backend.commit(Batch([writer.message("a")]))


# -- a slot that is taken over ----------------------------------------------------------------------------------------


async def test_a_journal_whose_slot_was_taken_over_says_so_once(database: str) -> None:
    """What it has not stored is not stored any more, and its owner can drop the sessions at once."""
    beat(database, "old", seconds_ago=9)
    failures: list[StoreFailed] = []
    async with journal_on(database, "old") as (journal, _, records):
        journal.on_failed = failures.append
        journal.append(records.message("one"))
        await journal.durable()
        with opened(database) as (new, found):
            for _ in range(3):
                journal.append(records.message("lost"))
                with pytest.raises(Unavailable, match="has been taken over by another server"):
                    await journal.durable()
            with pytest.raises(Unavailable):
                await journal.settled()
            assert [type(error) for error in failures] == [SlotLost]
            new.commit(Batch([Writer(found).message("a", "two")]))
    assert stored(database) == ["one", "two"]


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_a_full_database_loses_nothing_and_is_over_when_there_is_room(postgres: PostgresServer, mount: Mount) -> None:
    """H7: the answer is 507, as with a file."""
    disk = mount(f"{postgres.folder / 'disk'}", "-t", "tmpfs", "-o", "size=24m", "tmpfs")
    shutil.chown(disk, postgres.folder.owner())
    name = f"full{postgres.port}"
    postgres.execute(f"CREATE TABLESPACE {name} LOCATION '{disk}'")
    url = postgres.url(postgres.new_database(f"TABLESPACE {name}"))
    prepare(url)
    try:
        with opened(url) as (backend, found):
            writer = Writer(found)
            backend.commit(Batch([writer.created("a")]))
            filler = fill(disk)
            number = -1
            with suppress(StoreFull):
                while True:
                    number += 1
                    batch = Batch([writer.message("a", f"{number} {os.urandom(4_000).hex()}")])
                    backend.commit(batch)
            for _ in range(2):
                with pytest.raises(StoreFull, match="could not extend file"):
                    backend.commit(batch)
            assert len(contents(backend.rows("a", 0, HISTORY))) == number
            filler.unlink()
            backend.commit(batch)
            written = contents(backend.rows("a", 0, HISTORY))
            assert [text.split()[0] for text in written] == [f"{each}" for each in range(number + 1)]
    finally:
        postgres.execute(f"DROP DATABASE {url.rpartition('/')[2]} (FORCE)")
        postgres.execute(f"DROP TABLESPACE {name}")


# -- over HTTP --------------------------------------------------------------------------------------------------------


async def test_writes_get_503_and_reads_go_on_while_the_database_is_away(
    own: PostgresServer, restartable: str, tmp_path: Path
) -> None:
    journal = Journal(PostgresBackend(restartable))
    await journal.open()
    async with running_server(journal=journal) as server:
        assert (await server.say("chat", "one two", wait="true")).status_code == 200
        await asyncio.to_thread(own.stop)
        refused = await server.say("chat", "three")
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "5"
        assert "cannot be reached" in refused.json()["detail"]
        read = await server.client.get("/v1/sessions/chat", headers={"Accept": "text/plain"})
        assert read.text.startswith("User: one two\nAssistant: one two\n")
        assert (await server.client.post("/v1/sessions/other/messages", content="no")).status_code == 503
        assert (await server.client.get("/readyz")).status_code == 503
        await asyncio.to_thread(own.start)
        await until(lambda: journal.problem is None)
        assert (await server.say("chat", "four")).status_code == 202
        assert (await server.client.get("/readyz")).status_code == 200
    await journal.close()
    journal = Journal(PostgresBackend(restartable))
    await journal.open()
    async with running_server(journal=journal, store="memory") as server:
        refused = await server.client.get("/v1/backup")
        assert (refused.status_code, "use pg_dump" in refused.json()["detail"]) == (409, True)
        lines = [f"{role}: {text}\n" for text in ("one two", "three", "four") for role in ("User", "Assistant")]
        assert await server.text("chat") == "".join(lines)
        file = tmp_path / "export.tar"
        assert (await asyncio.to_thread(cfs, server.url, "export", "--all", f"{file}")).returncode == 0
    await journal.close()
    assert file.stat().st_size > 1_000
