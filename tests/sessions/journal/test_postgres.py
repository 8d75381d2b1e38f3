"""The slots of a PostgreSQL database: who owns one, what is deleted from it, and which databases are refused."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count, pairwise
from pathlib import Path

import pytest

from cfs_server.domain.words import Criteria, SearchQuery
from cfs_server.journal import postgres_database
from cfs_server.journal.journal import Batch, Opened, StoredDocument, StoreFailed
from cfs_server.journal.postgres import EVENT_WINDOW, PostgresBackend, SlotLost, SlotTaken
from cfs_server.journal.postgres_connection import connect
from cfs_server.journal.postgres_database import SCHEMA, prepare
from cfs_server.journal.postgres_index import PostgresIndex
from cfs_server.journal.postgres_locks import holder_of, try_lock
from cfs_server.journal.records import HISTORY, TOKENS
from tests.documentation import block
from tests.postgres import PostgresServer, database, postgres
from tests.sessions.journal.conformance import MOST, Writer, contents, conversation
from tests.sessions.journal.test_sqlite import finish

__all__ = ["database", "postgres"]
_numbers = count(1)
_WORDS_READ = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'words'"


@contextmanager
def opened(url: str, slot: int = 0, event_window: int = EVENT_WINDOW) -> Iterator[tuple[PostgresBackend, Opened]]:
    """Open a slot for the block."""
    backend = PostgresBackend(url, slot, event_window=event_window)
    found = backend.open()
    try:
        yield backend, found
    finally:
        backend.close()


def execute(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Execute a statement as the owner of the database."""
    with closing(connect(url)) as connection:
        cursor = connection.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def beat(url: str, replica: str, *, seconds_ago: int = 0) -> None:
    """Write the heartbeat of a replica."""
    execute(
        url,
        "INSERT INTO cfs.replicas (id, url, beat) VALUES (%s, '', now() - make_interval(secs => %s))"
        " ON CONFLICT (id) DO UPDATE SET beat = excluded.beat",
        replica,
        seconds_ago,
    )


def with_user(postgres: PostgresServer, url: str, rights: str) -> str:
    """Make another user with rights on all tables, and return its URL of the database."""
    name, user = url.rpartition("/")[2], f"user{next(_numbers)}"
    for statement in (
        f"CREATE ROLE {user} LOGIN PASSWORD 'other'",
        f"GRANT USAGE ON SCHEMA cfs TO {user}",
        f"GRANT {rights} ON ALL TABLES IN SCHEMA cfs TO {user}",
    ):
        postgres.execute(statement, name)
    return postgres.url(name, user, "other")


def claimed(url: str, replica: str = "other") -> tuple[PostgresBackend, Opened]:
    """Claim the slot as soon as it can be had."""
    while True:
        backend = PostgresBackend(url, replica=replica)
        try:
            return backend, backend.open()
        except SlotTaken:
            continue


# -- who owns a slot --------------------------------------------------------------------------------------------------


def test_a_slot_that_is_in_use_is_refused(database: str) -> None:
    beat(database, "first", seconds_ago=0)
    first = PostgresBackend(database, replica="first", lease=3600)
    writer = Writer(first.open())
    for _ in range(3):
        with pytest.raises(SlotTaken, match=r"slot 0 of PostgreSQL at 127.0.0.1:.* is in use by first"):
            PostgresBackend(database, replica="second", lease=3600).open()
        first.commit(Batch([writer.created(f"{writer.seq}")]))
    first.close()
    with opened(database) as (_, found):
        assert len(found.rows) == 3


def test_without_heartbeats_only_the_lock_counts(database: str) -> None:
    """As with one server: nobody says that its owner is frozen, so nobody may take its slot."""
    with opened(database) as (backend, found):
        with pytest.raises(SlotTaken, match="in use by another server"):
            PostgresBackend(database, lease=0).open()
        backend.commit(Batch([Writer(found).created("a")]))


def test_a_connection_waits_neither_for_a_lock_nor_in_a_transaction_for_long(database: str) -> None:
    """A server that is frozen in the middle of one would keep its successor out."""
    wanted = {"idle_session_timeout": "0", "idle_in_transaction_session_timeout": "15s", "lock_timeout": "5s"}
    with closing(connect(database)) as connection:
        assert {name: connection.execute(f"SHOW {name}").fetchall()[0][0] for name in wanted} == wanted


def test_a_slot_that_was_given_back_is_free_although_a_lost_connection_has_its_lock(database: str) -> None:
    """The database may notice only after hours that nobody is at the other end."""
    with closing(connect(database)) as lost:
        assert try_lock(lost, 0)
        with opened(database) as (backend, found):
            assert backend._locked is False
            backend.commit(Batch([Writer(found).created("a")]))


def test_slots_know_nothing_of_each_other(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    assert prepare(url, 3).slots == 3
    lives, criteria = set(), Criteria(SearchQuery.parse("in"))
    for slot in range(3):
        with opened(url, slot) as (backend, found):
            lives.add(found.life)
            writer = Writer(found)
            backend.commit(
                Batch(conversation(writer, "a"), [StoredDocument("locks", "a", f"{slot}")], [writer.head("a", 3)])
            )
            backend.commit(Batch([writer.message("a", f"in {slot}")]))
            if slot == 1:
                backend.commit(Batch([writer.deleted("a")], [StoredDocument("locks", "a", None)]))
                finish(backend)
    assert len(lives) == 3
    for slot in range(3):
        with opened(url, slot) as (backend, found):
            assert found.kept == ({} if slot == 1 else {"locks": {"a": f"{slot}"}})
            assert contents(backend.rows("a", 0, HISTORY))[-1:] == ([] if slot == 1 else [f"in {slot}"])
            assert len(backend.search(criteria, None, None, 10).hits) == (slot != 1)
    with pytest.raises(StoreFailed, match=r"slot 3 of .* does not exist: the database has fewer slots"):
        PostgresBackend(url, 3).open()


OWNER = """
import sys
from cfs_server.journal.journal import Batch, StoreFailed
from cfs_server.journal.postgres import PostgresBackend
from tests.sessions.journal.conformance import Writer
backend = PostgresBackend(sys.argv[1], replica="owner")
writer = Writer(backend.open())
key = str(writer.seq)
backend.commit(Batch([writer.created(key)]))
try:
    while sys.argv[2] == "fast" or sys.stdin.readline():
        backend.commit(Batch([writer.message(key, str(writer.seq)), writer.message(key, str(writer.seq))]))
        print(writer.seq, flush=True)
except StoreFailed as error:
    print(type(error).__name__, flush=True)
"""


@contextmanager
def owner(url: str, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the slot and writes as fast as it can, or after each line that it gets."""
    command = [sys.executable, "-c", OWNER, url, mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str]) -> None:
    """Let the owner write once more."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_slot_of_a_killed_owner_is_taken_over_at_once(database: str) -> None:
    """What was acknowledged is there, in order and without gaps, although the heartbeat is young."""
    chance = random.Random(3)
    beat(database, "owner")
    acknowledged = total = 0
    for _ in range(4):
        with owner(database, "fast") as process:
            for _ in range(chance.randrange(1, 60)):
                acknowledged = int(said(process))
            os.kill(process.pid, signal.SIGKILL)
            backend, found = claimed(database, replica="")
        seqs = [row.seq for row in found.rows]
        assert seqs == list(range(1, len(seqs) + 1))
        assert found.seq == len(seqs) >= acknowledged > total
        total = found.seq
        backend.close()


def test_a_frozen_owner_loses_the_slot_after_the_lease_and_cannot_write_any_more(database: str) -> None:
    beat(database, "owner")
    with owner(database, "slow") as process:
        ask(process)
        assert said(process) == "3"
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(SlotTaken, match="in use by owner"):
            PostgresBackend(database, replica="other", lease=3600).open()
        beat(database, "owner", seconds_ago=4)
        backend = PostgresBackend(database, replica="other")
        found = backend.open()
        assert len(found.rows) == 3
        writer = Writer(found)
        backend.commit(Batch([writer.message("0", "from the new owner")]))
        os.kill(process.pid, signal.SIGCONT)
        ask(process)
        assert said(process) == "SlotLost"
        backend.commit(Batch([writer.message("0", "later")]))
        assert contents(backend.rows("0", 0, HISTORY))[2:] == ["from the new owner", "later"]
        backend.close()


def test_an_owner_whose_connection_lives_on_is_refused_by_the_epoch_alone(
    database: str, postgres: PostgresServer
) -> None:
    """The new owner has another user of the database, so it may not end the connection that has the lock."""
    url = with_user(postgres, database, "SELECT, INSERT, UPDATE, DELETE")
    beat(database, "old", seconds_ago=9)
    old = PostgresBackend(database, replica="old")
    writer = Writer(old.open())
    old.commit(Batch([writer.created("a")]))
    new = PostgresBackend(url, replica="new")
    new.open()
    for _ in range(2):
        with pytest.raises(SlotLost, match="has been taken over by another server"):
            old.commit(Batch([writer.message("a", "never")], [StoredDocument("locks", "a", "never")]))
    assert old.tidy() is False
    old.close()
    beat(database, "new")
    for _ in range(20):  # the lock becomes free meanwhile
        with pytest.raises(SlotTaken, match="in use by new"):
            PostgresBackend(database, replica="third", lease=3600).open()
    while not new._locked:
        new._lock_at = 0.0
        new.tidy()
    with closing(connect(database)) as connection:
        assert holder_of(connection, 0) == new._pid, "maintenance takes the lock when the old owner has left it"
    assert new.rows("a", 0, HISTORY)
    new.close()


def test_where_there_are_no_locks_the_heartbeat_decides(database: str, postgres: PostgresServer) -> None:
    """As on a database without such locks."""
    name = database.rpartition("/")[2]
    for function in ("pg_try_advisory_lock(integer, integer)", "pg_advisory_xact_lock(integer, integer)"):
        postgres.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC", name)
    assert prepare(database).slots == 1
    beat(database, "old")
    old = PostgresBackend(database, replica="old", lease=3600)
    writer = Writer(old.open())
    with pytest.raises(SlotTaken, match="in use by old"):
        PostgresBackend(database, replica="new", lease=3600).open()
    beat(database, "old", seconds_ago=3601)
    new = PostgresBackend(database, replica="new", lease=3600)
    new.open()
    with pytest.raises(SlotLost):
        old.commit(Batch([writer.created("a")]))
    new.close()
    old.close()
    with opened(database) as (_, found):
        assert list(found.rows) == []


def test_a_claim_waits_for_the_commit_that_has_begun_and_includes_it(database: str) -> None:
    """The row of the slot is locked by the commit; afterwards, the old epoch is refused."""
    with closing(connect(database)) as old:
        ((life,),) = old.execute("SELECT life FROM cfs.slots")
        old.execute("BEGIN")
        old.execute("UPDATE cfs.slots SET seq = 1 WHERE slot = 0 AND epoch = 0")
        with ThreadPoolExecutor(1) as pool:
            claim = pool.submit(claimed, database)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while execute(database, waiting) == [(0,)]:
                assert not claim.done()
            old.execute("COMMIT")
            backend, found = claim.result()
    assert (found.seq, found.life) == (1, life)
    backend.close()


def test_claims_race_commits(database: str) -> None:
    """Owners take the slot from each other all the time: no row is lost, written twice, or between those of another."""
    for name in range(4):
        beat(database, f"{name}", seconds_ago=9)
    acknowledged: set[tuple[int, str]] = set()
    claims: list[str] = []
    stop = threading.Event()

    def work(name: str) -> None:
        while len(claims) < 30:
            backend = PostgresBackend(database, replica=name)
            try:
                writer = Writer(backend.open())
                claims.append(name)
                key = f"{name}/{writer.seq}"
                row = writer.created(key)
                while not stop.is_set():
                    backend.commit(Batch([row, more := writer.message(key, key)]))
                    acknowledged.update((each.seq, key) for each in (row, more))
                    row = writer.message(key, key)
            except StoreFailed:  # taken, fenced, or the connection ended by the next owner
                pass
            finally:
                backend.close()

    threads = [threading.Thread(target=work, args=(f"{name}",)) for name in range(4)]
    for thread in threads:
        thread.start()
    while alive := [thread for thread in threads if thread.is_alive()]:
        if len(alive) == 1:
            stop.set()  # nobody is left to take the slot from the last one
        alive[0].join(0.05)
    rows = execute(database, "SELECT seq, session FROM cfs.records ORDER BY seq")
    assert [seq for seq, _ in rows] == list(range(1, len(rows) + 1))
    assert acknowledged <= set(rows)
    epochs = execute(database, "SELECT seq FROM cfs.epochs ORDER BY epoch")
    keys = [key for _, key in rows]
    owners = [{*keys[int(f"{begin}") : int(f"{end}")]} for (begin,), (end,) in pairwise(epochs)]
    assert all(len(found) <= 1 for found in owners)
    assert len(epochs) >= 30
    assert len({*keys}) > 3


# -- deleting and pruning ---------------------------------------------------------------------------------------------


def test_the_records_of_a_deleted_session_are_removed_also_after_a_crash(database: str) -> None:
    with opened(database) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), *(writer.message("a") for _ in range(2_500))]))
        backend.commit(Batch([writer.created("b"), writer.deleted("a")], heads=[writer.head("b")]))
        assert backend.tidy()
    counts = "SELECT session, count(*) FROM cfs.records GROUP BY session ORDER BY session"
    assert execute(database, counts) == [("a", 1_502), ("b", 1)]
    with opened(database) as (backend, found):
        finish(backend)
        assert [head.key for head in found.heads] == ["b"]
    assert execute(database, counts) == [("a", 1), ("b", 1)]


def test_old_tokens_are_pruned_and_messages_are_not(database: str) -> None:
    """S11: the head includes the text of the tokens. What no head includes stays."""
    with opened(database, event_window=50) as (backend, found):
        writer = Writer(found)
        first = conversation(writer, "a", 4)
        backend.commit(Batch(first, heads=[writer.head("a")]))
        backend.commit(Batch([writer.created("b"), *(writer.token("b") for _ in range(10))]))
        later = [row for number in range(20) for row in conversation(writer, f"c{number}", 10)]
        backend.commit(Batch(later, heads=[writer.head(f"c{number}") for number in range(20)]))
        finish(backend)
        assert [row.kind for row in backend.rows("a", 0, [*HISTORY, TOKENS])] == [
            "session.created",
            *["message.added"] * 8,
        ]
        assert len(backend.rows("b", 0, [TOKENS])) == 10
        assert backend.events("a", 0, MOST) is None
        assert backend.events(None, 0, MOST) is None
        assert backend.events(None, writer.position - 40, MOST) == [row for row in later if row.events][-40:]
    with opened(database, event_window=50) as (backend, found):
        assert (found.seq, found.position) == (writer.seq, writer.position)
        backend.commit(Batch(heads=[writer.head("b")]))
        backend.commit(Batch([writer.created("d"), *(writer.message("d") for _ in range(1_100))]))
        finish(backend)
        assert backend.rows("b", 0, [TOKENS]) == []


def test_old_deletions_are_forgotten(database: str) -> None:
    """A server that makes and deletes sessions for years does not grow."""
    with opened(database, event_window=50) as (backend, found):
        writer = Writer(found)
        for number in range(40):
            backend.commit(Batch([writer.created(f"s{number}"), writer.message(f"s{number}")]))
            backend.commit(Batch([writer.deleted(f"s{number}")]))
            backend.tidy()
        backend.commit(Batch([writer.created("a"), *(writer.message("a") for _ in range(1_100))]))
        finish(backend)
    counts = "SELECT (SELECT count(*) FROM cfs.sessions), (SELECT count(*) FROM cfs.records)"
    assert execute(database, counts) == [(1, 1_101)]


def test_events_are_read_a_page_at_a_time(database: str) -> None:
    """More rows than a page has, most of them without an event."""
    with opened(database) as (backend, found):
        writer = Writer(found)
        rows = [writer.created("a"), *(writer.silent("a") for _ in range(2_300)), writer.message("a")]
        backend.commit(Batch(rows))
        for key in ("a", None):
            assert backend.events(key, 0, MOST) == [rows[0], rows[-1]]
            assert backend.events(key, 1, MOST) == [rows[-1]]


def test_a_backup_is_the_work_of_the_database(database: str, tmp_path: Path) -> None:
    with opened(database) as (backend, _), pytest.raises(StoreFailed, match=r"pg_dump --schema=cfs.*cfs export"):
        backend.backup(tmp_path / "backup.db", lambda: None)


def test_a_dump_restores_all_slots(database: str, postgres: PostgresServer, tmp_path: Path) -> None:
    """As the documentation says."""
    with opened(database) as (backend, found):
        rows = conversation(Writer(found), "a")
        backend.commit(Batch(rows, [StoredDocument("locks", "a", "1")]))
    copy = postgres.url(postgres.new_database())
    environment = {"PATH": f"{postgres.place}:{os.environ['PATH']}", "DATABASE": database, "COPY": copy}
    script = f"set -e\n{block('docs/replicas.md', 'dump')}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert prepare(copy).slots == 1
    with opened(copy) as (_, found):
        assert list(found.rows) == rows
        assert found.kept == {"locks": {"a": "1"}}


# -- the schema -------------------------------------------------------------------------------------------------------


def test_many_servers_prepare_a_new_database_at_once(postgres: PostgresServer) -> None:
    """The first one decides on the number of slots."""
    url = postgres.url(postgres.new_database())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda slots: prepare(url, slots), range(3, 11)))
    assert len({each.slots for each in found}) == 1
    assert execute(url, "SELECT count(*), count(DISTINCT life) FROM cfs.slots") == [(found[0].slots,) * 2]
    assert prepare(url, 99) == found[0]


def test_a_database_without_tables_is_no_store(postgres: PostgresServer) -> None:
    with pytest.raises(StoreFailed, match="the database has no tables of CFS"):
        PostgresBackend(postgres.url(postgres.new_database())).open()


def test_a_newer_schema_is_refused_and_not_changed(database: str) -> None:
    newer = SCHEMA + 1
    execute(database, f"UPDATE cfs.meta SET value = '{newer}' WHERE name = 'schema'")  # noqa: S608
    for attempt in (lambda: prepare(database), PostgresBackend(database).open):
        with pytest.raises(StoreFailed, match=f"written by a newer CFS: schema {newer}, and this one knows {SCHEMA}"):
            attempt()
    assert execute(database, "SELECT value FROM cfs.meta WHERE name = 'schema'") == [(f"{newer}",)]
    assert execute(database, "SELECT epoch FROM cfs.slots") == [(0,)]


def test_a_schema_of_another_program_is_refused(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    execute(url, "CREATE SCHEMA cfs")
    execute(url, "CREATE TABLE cfs.meta (name text, value text)")
    with pytest.raises(StoreFailed, match="has a schema cfs of another program"):
        prepare(url)


def test_an_old_schema_is_migrated_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of several new servers. Steps come in order, and a step that fails changes nothing."""
    first, second = SCHEMA + 1, SCHEMA + 2
    steps = {
        first: "ALTER TABLE cfs.sessions ADD COLUMN mood text",
        second: "ALTER TABLE cfs.sessions RENAME mood TO temper",
    }
    monkeypatch.setattr(postgres_database, "SCHEMA", second)
    monkeypatch.setattr(
        postgres_database, "MIGRATIONS", {first: steps[first], second: "ALTER TABLE cfs.no_such RENAME TO other"}
    )
    with pytest.raises(StoreFailed, match=r'relation "cfs\.no_such" does not exist'):
        prepare(database)
    assert execute(database, "SELECT value FROM cfs.meta WHERE name = 'schema'") == [(f"{SCHEMA}",)]
    monkeypatch.setattr(postgres_database, "MIGRATIONS", steps)
    with ThreadPoolExecutor(4) as pool:
        assert [found.slots for found in pool.map(prepare, [database] * 4)] == [1] * 4
    assert execute(database, "SELECT value FROM cfs.meta WHERE name = 'schema'") == [(f"{second}",)]
    assert execute(database, "SELECT count(temper) FROM cfs.sessions") == [(0,)]


def test_messages_have_places_among_the_changes_of_files(database: str) -> None:
    """Unless these are in another database: then the places would be those of another order."""
    write = Writer()
    rows = [write.created("a"), write.message("a"), write.created("b"), write.token("a"), write.message("a")]
    with opened(database) as (backend, _):
        for row in rows:
            backend.commit(Batch([row]))
        seqs, places = zip(*sorted(backend.orders("a").items()), strict=True)
    assert seqs == (1, 2, 5)
    assert list(places) == sorted({*places})
    with closing(PostgresBackend(database, has_versions=False)) as elsewhere:
        elsewhere.open()
        assert elsewhere.orders("a") == {}


# -- databases that are refused, or not what they should be ----------------------------------------------------------


def test_a_database_that_cannot_be_reached_is_named_in_one_line_without_the_password(
    postgres: PostgresServer, database: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        name = database.rpartition("/")[2]
        for url, reason in {
            postgres.url(name, "cfs", "hunter2"): 'password authentication failed for user "cfs"',
            postgres.url("no_such", "postgres", postgres.superuser_password): 'database "no_such" does not exist',
            f"postgresql://cfs:hunter2@127.0.0.1:{port}/x": "Connection refused",
            "postgresql://cfs:hunter2@no-such-host.invalid/x": "no-such-host.invalid",
        }.items():
            with pytest.raises(StoreFailed, match=reason) as refused:
                prepare(url)
            text = str(refused.value)
            assert "\n" not in text
            assert "hunter2" not in text
            assert postgres.superuser_password not in text
            assert "cannot be reached" in text
            assert len(text) < 200
    for url in ("postgresql://[hunter2/x", "postgresql://cfs@x/y?hunter2=z", "host=x hunter2"):
        with pytest.raises(StoreFailed, match="the address of the database is not valid: it has the form") as refused:
            prepare(url)
        assert "hunter2" not in str(refused.value)


def test_another_encoding_is_refused(postgres: PostgresServer) -> None:
    name = postgres.new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreFailed, match="has the encoding LATIN1: CFS needs a database with ENCODING 'UTF8'"):
        prepare(postgres.url(name))


def test_a_standby_is_refused(database: str, postgres: PostgresServer) -> None:
    postgres.execute(f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_read_only = on")
    with pytest.raises(StoreFailed, match="is read-only: name the primary, not a standby"):
        prepare(database)


def test_missing_rights_are_named(database: str, postgres: PostgresServer) -> None:
    partly = with_user(postgres, database, "SELECT, INSERT")
    with pytest.raises(
        StoreFailed, match=r"lacks the rights UPDATE, DELETE on cfs\.epochs; UPDATE, DELETE on cfs\.indexes"
    ):
        prepare(partly)
    user = partly.partition("//")[2].partition(":")[0]
    with pytest.raises(StoreFailed, match=r"permission denied for table .*: the user of the database lacks a right"):
        PostgresBackend(partly).open()
    postgres.execute(f"REVOKE USAGE ON SCHEMA cfs FROM {user}", database.rpartition("/")[2])
    with pytest.raises(StoreFailed, match=f"permission denied for schema cfs.*the user '{user}' needs"):
        prepare(partly)
    fresh = postgres.new_database()
    with pytest.raises(StoreFailed, match=f"the user '{user}' needs CREATE on the database '{fresh}' for the first"):
        prepare(postgres.url(fresh, user, "other"))


def test_rights_without_ownership_are_enough(postgres: PostgresServer) -> None:
    """The tables may be made by somebody else. The database and the users are those of the documentation."""
    name, owner, other = f"docs{next(_numbers)}", f"docs{next(_numbers)}", f"docs{next(_numbers)}"
    create = block("docs/replicas.md", "database").replace("DATABASE cfs", f"DATABASE {name}")
    for statement in create.replace("ROLE cfs", f"ROLE {owner}").replace("OWNER cfs", f"OWNER {owner}").split(";")[:2]:
        postgres.execute(statement)
    prepare(postgres.url(name, owner, "choose-another"))
    postgres.execute(f"CREATE ROLE {other} LOGIN PASSWORD 'other'")
    for statement in block("docs/replicas.md", "rights").replace("TO other", f"TO {other}").split(";")[:2]:
        postgres.execute(statement, name)
    url = postgres.url(name, other, "other")
    assert prepare(url).slots == 1
    with opened(url) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch(conversation(writer, "a"), [StoredDocument("locks", "a", "1")], [writer.head("a")]))
        backend.commit(Batch([writer.deleted("a")]))
        finish(backend)


def test_settings_that_weaken_the_promise_are_reported(database: str, postgres: PostgresServer) -> None:
    assert prepare(database).warnings == ()
    name = database.rpartition("/")[2]
    for value in ("off", "local"):
        postgres.execute(f"ALTER DATABASE {name} SET synchronous_commit = {value}")
        (warning,) = prepare(database).warnings
        assert warning.startswith(f"synchronous_commit is {value}: a failure of the database can lose messages")


def test_asynchronous_standbys_are_reported(database: str, postgres: PostgresServer) -> None:
    """The program receives the log of the database as a standby does."""
    folder = postgres.folder / "received"
    folder.mkdir()
    url = postgres.url("", "postgres", postgres.superuser_password).rstrip("/")
    with subprocess.Popen([postgres.place / "pg_receivewal", "-D", folder, "-d", url]) as standby:
        try:
            while not execute(database, "SELECT pid FROM pg_stat_replication"):
                assert standby.poll() is None
            (warning,) = prepare(database).warnings
            assert warning.startswith("the standbys of the database are asynchronous: a fail-over can lose messages")
        finally:
            standby.terminate()


# -- poolers ----------------------------------------------------------------------------------------------------------


@contextmanager
def pgbouncer(folder: Path, postgres: PostgresServer, mode: str) -> Iterator[int]:
    """Run a pooler in front of the server, and yield its port."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer: scripts/test installs it on Debian")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    users, config = folder / "users", folder / "pgbouncer.ini"
    users.write_text(f'"cfs" "{postgres.password}"\n')
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = plain\nauth_file = {users}\npool_mode = {mode}\n"
        f"default_pool_size = 4\nlogfile = {folder}/log\nserver_lifetime = 3600\n"
    )
    for path in (users, config):
        path.chmod(0o644)
    with subprocess.Popen([program, "-q", config], user="postgres" if os.geteuid() == 0 else None) as process:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                except ConnectionRefusedError:
                    assert process.poll() is None
                else:
                    break
            yield port
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["transaction", "statement", "session"])
def test_a_pooler_that_shares_connections_is_refused(database: str, postgres: PostgresServer, mode: str) -> None:
    """Locks and prepared statements belong to a connection. A pooler that keeps it for a client does no harm."""
    folder = postgres.folder / mode
    folder.mkdir()
    folder.chmod(0o777)
    with pgbouncer(folder, postgres, mode) as port:
        url = database.replace(f":{postgres.port}/", f":{port}/")
        if mode != "session":
            how = {
                "transaction": "pooler that shares connections",
                "statement": "not allowed in statement pooling mode",
            }
            with pytest.raises(StoreFailed, match=how[mode]):
                prepare(url)
            return
        assert prepare(url).slots == 1
        with opened(url) as (backend, found):
            rows = conversation(Writer(found), "a")
            for row in rows:
                backend.commit(Batch([row]))
            with pytest.raises(SlotTaken):
                PostgresBackend(url).open()
        with opened(database) as (_, found):
            assert list(found.rows) == rows


@pytest.mark.parametrize("words", ["fox", '"fox dog"', "fox do*", "nothing"])
def test_a_search_in_some_sessions_reads_nothing_of_others(database: str, words: str) -> None:
    """G9: as many messages are read, whatever other sessions of the slot hold."""
    read: list[list[int]] = []
    with closing(connect(database)) as connection:
        for others in (2_000, 20_000):
            connection.execute("DELETE FROM cfs.words")
            connection.execute(
                "INSERT INTO cfs.words (slot, seq, part, words)"
                " SELECT 0, seq, 0, array_to_tsvector(ARRAY['fox', 'dog', %s || CASE WHEN seq %% %s < 3"
                " THEN 'own' || seq %% %s ELSE 'other' || seq %% 7 END]) FROM generate_series(1, %s) AS seq",
                ("\ue001", others // 20, others // 20, others),
            )
            connection.execute("ANALYZE cfs.words")
            with connection.transaction():
                before = connection.execute(_WORDS_READ).fetchall()
                PostgresIndex(0).search(
                    connection, Criteria(SearchQuery.parse(words)), [f"own{number}" for number in range(3)], None, 256
                )
                after = connection.execute(_WORDS_READ).fetchall()
            read.append([now - then for then, now in zip(before[0], after[0], strict=True)])
    assert read == [[0, 0 if words == "nothing" else 60]] * 2
