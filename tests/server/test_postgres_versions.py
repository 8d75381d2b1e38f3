"""The store of versions in PostgreSQL: what every store does, and what several programs do with one."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import copy_context
from io import BytesIO
from pathlib import Path
from threading import Event

import psycopg
import pytest

from cfs_filesystem import OPERATIONS, Grant
from cfs_filesystem.versions import EntryType, Kind, State, VersionRetention, VersionsUnavailableError
from cfs_filesystem.versions.testing import ALICE, FOLDER, VersionStoreConformance, content_at, write
from cfs_server.journal.postgres_database import prepare
from cfs_server.versions.postgres import PostgresVersions
from cfs_server.workspaces.workspaces import DiskWorkspaces
from tests.postgres import PostgresServer, database, postgres, running_postgres  # noqa: F401 - fixtures


class TestPostgres(VersionStoreConformance):
    """In a database."""

    @pytest.fixture
    def store(self, database: str) -> Iterator[PostgresVersions]:  # noqa: F811
        with closing(PostgresVersions(database)) as store:
            yield store


@pytest.fixture
def stores(database: str) -> Iterator[tuple[PostgresVersions, PostgresVersions]]:  # noqa: F811
    """The stores of two programs that share a database."""
    with closing(PostgresVersions(database)) as one, closing(PostgresVersions(database)) as other:
        yield one, other


Two = tuple[PostgresVersions, PostgresVersions]


def test_each_program_reads_what_the_other_records(stores: Two) -> None:
    one, other = stores
    for number, store in enumerate((one, other, one, other), 1):
        with store.changing(["w"], "a"):
            assert write(store, "w", "a", b"%d" % number) == number
    for store in stores:
        assert [content_at(store, "w", "a", number) for number in range(1, 5)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(("first", "second"), [(None, None), (None, "a"), ("a", None), ("a", "a")])
def test_a_block_waits_for_that_of_another_program(stores: Two, first: str | None, second: str | None) -> None:
    """Whether it changes a whole workspace or a path."""
    one, other = stores
    begun, order = Event(), list[str]()

    def wait() -> None:
        begun.set()
        with other.changing(["v", "w"] if second is None else ["w"], second):
            order.append("second")

    with ThreadPoolExecutor(1) as threads:
        with one.changing(["w"], first):
            waiting = threads.submit(wait)
            begun.wait()
            until_one_waits(other)
            order.append("first")
        waiting.result()
    assert order == ["first", "second"]


def test_blocks_of_different_paths_and_workspaces_do_not_wait(stores: Two) -> None:
    one, other = stores
    with ThreadPoolExecutor(1) as threads, one.changing(["w"], "a"), one_more(threads, other, "w", "b"):
        pass
    with ThreadPoolExecutor(1) as threads, one.changing(["w"]), one_more(threads, other, "v", "a"):
        pass


def test_threads_of_one_block_have_transactions_of_their_own(stores: Two) -> None:
    """One reads the content that is replaced, while the other records what a program has changed meanwhile."""
    store, reading, recorded = stores[0], Event(), Event()
    write(store, "w", "a", b"1")

    def read() -> None:
        with store._reading():
            reading.set()
            recorded.wait(1)

    with ThreadPoolExecutor(1) as threads, store.changing(["w"]):
        other = threads.submit(copy_context().run, read)
        reading.wait()
        assert write(store, "w", "a", b"2") == 2
        recorded.set()
        other.result()
    assert content_at(stores[1], "w", "a") == b"2"


def test_parallel_records_of_two_programs_are_all_there(stores: Two) -> None:
    """Each has a number of its own, in the order of its time."""

    def record(number: int) -> int:
        store = stores[number % 2]
        with store.changing(["w"], f"f{number}"):
            return write(store, "w", f"f{number}", b"%d" % number)

    with ThreadPoolExecutor(12) as threads:
        numbers = list(threads.map(record, range(100)))
    assert sorted(numbers) == list(range(1, 101))
    assert {path: content_at(stores[0], "w", path) for path in stores[1].tree_at("w")} == {
        f"f{number}": b"%d" % number for number in range(100)
    }
    times = [change.at for change in stores[0].changes("w")]
    assert times == sorted(times, reverse=True)


def test_an_order_counts_more_than_the_time(database: str, stores: Two) -> None:  # noqa: F811
    """Changes from before there was one come before all that has one."""
    one, other = stores
    for store in (one, other, one):
        write(store, "w", "a", b"1")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('UPDATE cfs.version_changes SET "order" = NULL WHERE number = 1')
        rows = connection.execute('SELECT at, "order" FROM cfs.version_changes ORDER BY number').fetchall()
    first, third = rows[0][0], rows[2][0]
    orders = [order for _, order in rows[1:]]
    assert orders == sorted(orders)
    for store in stores:
        assert [store.number_at("w", first - 1, order) for order in (orders[0] - 1, *orders)] == [1, 2, 3]
        assert store.number_at("w", third + 1, orders[0]) == 2
        assert store.number_at("w", third) == 3
    one.fork("w", "copy")
    assert other.number_at("copy", first - 1, orders[0]) == 2


def test_a_small_write_takes_two_round_trips(database: str, tmp_path: Path) -> None:  # noqa: F811
    """One gets the locks and reads, one records and gives the locks back. Below folders, and a removal, too."""
    store = PostgresVersions(database)
    with closing(DiskWorkspaces(tmp_path / "workspaces", versions=store)) as workspaces:
        handle = workspaces.create_handle([Grant(prefix="/", ops=OPERATIONS)])
        stop_threads(workspaces, store)
        path = "/workspaces/w/src/deep/a.txt"
        for number in range(8):  # then its connection is open, and the statements are prepared
            handle.write(path, b"%d" % number)
        log = tmp_path / "log"
        for change in (
            lambda: handle.write(path, b"two"),
            lambda: handle.write(path, b"two"),
            lambda: handle.write("/workspaces/w/new/b.txt", b"new"),
            lambda: handle.write("/workspaces/w/c.txt", b"large" * 20_000),
            lambda: handle.write("/workspaces/w/c.txt", b"large" * 20_001),
            lambda: handle.delete("/workspaces/w/c.txt"),
        ):
            with log.open("w") as file, traced(store, file.fileno()):
                change()
            assert sum("ReadyForQuery" in line for line in log.read_text().splitlines()) == 2, log.read_text()
        newest = store.changes("w", limit=4)
        assert [list(change.entries) for change in newest] == [["c.txt"], ["c.txt"], ["c.txt"], ["new", "new/b.txt"]]
        store.check_integrity()


def stop_threads(workspaces: DiskWorkspaces, store: PostgresVersions) -> None:
    """End what would use the database now and then: the hourly pruning, and signs of life."""
    assert workspaces.history is not None
    for stoppable in (workspaces.history, store._connections):
        stoppable._closed.set()
        stoppable._keeper.join()


@contextmanager
def traced(store: PostgresVersions, file: int) -> Iterator[None]:
    """Log what is exchanged with the database in a block, as libpq writes it."""
    connections = [connection._connection.pgconn for connection in store._connections._all]
    for connection in connections:
        connection.trace(file)
    try:
        yield
    finally:
        for connection in connections:
            connection.untrace()


def test_a_content_that_is_removed_before_it_is_recorded_is_stored_again(stores: Two) -> None:
    """Or one that is its dictionary: another program has pruned since."""
    one, other = stores
    texts = [b"".join(b"%d %d\n" % (line, number) for line in range(200)) for number in range(3)]
    for text in texts[:2]:
        write(one, "w", "a", text)
    with one.changing(["w"], "a"):
        entry = one.at("w", "a")
        again, new = one.prepare("w", texts[1]), one.prepare("w", texts[2], entry, lambda: texts[1])
        assert (again.encoded, new.base is None) == (None, False)
        other.record("w", ALICE, Kind.DELETE, {"a": None})
        other.prune("w", VersionRetention(changes=0))
        for number, content in enumerate((again, new), 4):
            assert one.record("w", ALICE, Kind.WRITE, {"a": State(EntryType.FILE, 0o644, content)}) == number
    assert [content_at(other, "w", "a", number) for number in (4, 5)] == [texts[1], texts[2]]


def test_what_was_prepared_before_the_right_was_lost_is_refused(
    database: str,  # noqa: F811
    postgres: PostgresServer,  # noqa: F811
    stores: Two,
) -> None:
    """The other program gets the right as soon as the connection has ended."""
    one, other = stores
    write(one, "w", "a", b"1")
    with pytest.raises(VersionsUnavailableError), one.changing(["w"], "a"):  # noqa: PT012 - the end of the block, too
        content = one.prepare("w", b"2")
        end_connections(postgres, database)
        with other.changing(["w"]):
            assert write(other, "w", "a", b"3") == 2
        one.record("w", ALICE, Kind.WRITE, {"a": State(EntryType.FILE, 0o644, content)})
    assert [content_at(one, "w", "a", number) for number in (1, 2)] == [b"1", b"3"]
    assert one.last("w") == 2


_CHANGE = """
import sys
from cfs_filesystem.versions import VersionsUnavailableError
from cfs_filesystem.versions.testing import write
from cfs_server.versions.postgres import PostgresVersions

store = PostgresVersions(sys.argv[1])
with store.changing(["w"]):
    print("begun", flush=True)
    sys.stdin.readline()
    try:
        write(store, "w", "a", b"frozen")
    except VersionsUnavailableError:
        print("refused", flush=True)
"""


def test_a_frozen_program_loses_its_right(database: str, stores: Two) -> None:  # noqa: F811
    """Another one waits for it until then, and what the frozen one records afterwards is refused."""
    command = [sys.executable, "-c", _CHANGE, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "begun\n"
            program.send_signal(signal.SIGSTOP)
            with stores[0].changing(["w"], "a"):
                assert write(stores[0], "w", "a", b"mine") == 1
            program.send_signal(signal.SIGCONT)
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "refused\n"
        finally:
            program.kill()
    assert [content_at(stores[1], "w", "a"), stores[1].last("w")] == [b"mine", 1]


def test_a_block_that_takes_long_keeps_its_right(stores: Two) -> None:
    """Signs of life come from another thread: the block itself says nothing for longer than a frozen one may."""
    one, other = stores
    with ThreadPoolExecutor(1) as threads:
        with one.changing(["w"]):
            waiting = threads.submit(lambda: other.changing(["w"]).__enter__())
            until_one_waits(other)
            ends_at = time.monotonic() + 12
            while time.monotonic() < ends_at:
                assert not waiting.done()
                time.sleep(0.1)
            assert write(one, "w", "a", b"1") == 1
        waiting.result()


def test_a_store_goes_on_when_its_connections_have_ended(
    database: str,  # noqa: F811
    postgres: PostgresServer,  # noqa: F811
    stores: Two,
) -> None:
    """Nothing fails that had not begun."""
    store = stores[0]
    write(store, "w", "a", b"1")
    end_connections(postgres, database)
    assert store.last("w") == 1
    assert write(store, "w", "a", b"2") == 2


def test_a_database_that_is_gone_is_an_error_of_the_operating_system() -> None:
    """Callers expect no other errors of a store."""
    with running_postgres() as server:
        url = server.url(server.new_database())
        prepare(url)
        with closing(PostgresVersions(url)) as store:
            write(store, "w", "a", b"1")
            server.stop()
            for _ in range(2):
                with pytest.raises(VersionsUnavailableError, match="cannot be reached"):
                    write(store, "w", "a", b"2")
            server.start()
            assert write(store, "w", "a", b"2") == 2


def test_nothing_that_another_program_holds_is_pruned(stores: Two) -> None:
    """Not even in a fork that shares its contents."""
    one, other = stores
    write(one, "w", "a", b"1")
    one.fork("w", "copy")
    with one.changing(["copy"]), one.holding():
        kept = one.keep("copy", BytesIO(b"later" * 100))
        other.prune("w", VersionRetention(changes=0))
        one.record("copy", ALICE, Kind.WRITE, {"b": State(EntryType.FILE, 0o644, kept)})
    assert content_at(other, "copy", "b") == b"later" * 100
    assert other.oldest("w") == 0
    other.prune("w", VersionRetention(changes=0))
    assert other.oldest("w") == 1


def test_one_program_prunes(stores: Two) -> None:
    one, other = stores
    assert [store.claim_pruning(1000) for store in (one, other, one)] == [True, False, False]
    assert other.claim_pruning(-1)


def test_paths_may_be_longer_than_an_index_takes(stores: Two) -> None:
    """And differ behind what an index has of them."""
    store = stores[0]
    long = "/".join(["d" * 250] * 15)
    for path in (f"{long}/a", f"{long}/b", "d" * 255 + "/c"):
        write(store, "w", path, path[-1].encode())
    assert [content_at(store, "w", f"{long}/{name}") for name in "ab"] == [b"a", b"b"]
    assert sorted(store.tree_at("w", None, long)) == [f"{long}/a", f"{long}/b"]
    assert sorted(store.tree_at("w", None, "d" * 250)) == [f"{long}/a", f"{long}/b"]
    assert [change.number for change in store.changes("w", f"{long}/b")] == [2]
    store.record("w", ALICE, Kind.FOLDER, {long: FOLDER})
    assert list(store.changes_between("w", 3, 4)) == [long]


def test_a_purge_leaves_no_row(database: str, stores: Two) -> None:  # noqa: F811
    store = stores[0]
    write(store, "w", "a", b"1")
    with store.holding():
        big = store.keep("w", BytesIO(bytes(9 << 20)))
        store.record("w", ALICE, Kind.WRITE, {"big": State(EntryType.FILE, 0o644, big)})
    store.purge("w")
    with psycopg.connect(database) as connection:
        for table in ("workspaces", "changes", "entries", "contents", "parts"):
            rows = connection.execute(f"SELECT * FROM cfs.version_{table}").fetchall()  # noqa: S608
            assert rows == [], table


def test_a_database_without_locks_is_refused(postgres: PostgresServer, database: str) -> None:  # noqa: F811
    """Some databases accept the call and do nothing."""
    name = database.rpartition("/")[2]
    postgres.execute(
        "CREATE SCHEMA fake; GRANT USAGE ON SCHEMA fake TO cfs;"
        "CREATE FUNCTION fake.pg_advisory_lock(bigint) RETURNS void LANGUAGE sql AS 'SELECT';"
        f"ALTER DATABASE {name} SET search_path = fake, pg_catalog, public",
        name,
    )
    with pytest.raises(OSError, match="no advisory locks"):
        PostgresVersions(database)


def end_connections(server: PostgresServer, url: str) -> None:
    """End all connections to a database, and wait for it."""
    name = url.rpartition("/")[2]
    server.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608


def until_one_waits(store: PostgresVersions) -> None:
    """Wait until a block of some store waits for another one."""
    with store._connections.connection() as connection:
        while not connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            pass


def one_more(threads: ThreadPoolExecutor, store: PostgresVersions, workspace: str, path: str) -> ThreadPoolExecutor:
    """Let another thread have a block from its beginning to its end; return the threads, for a `with`."""

    def change() -> None:
        with store.changing([workspace], path):
            pass

    threads.submit(change).result()
    return ThreadPoolExecutor(1)
