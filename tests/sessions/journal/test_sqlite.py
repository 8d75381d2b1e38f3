"""The file of the SQLite backend: who may use it, what is deleted from it, what is copied and migrated."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cfs_server.journal import sqlite_file
from cfs_server.journal.journal import Backend, Batch, Opened, StoreDamaged, StoredDocument, StoreFailed
from cfs_server.journal.records import HISTORY, TOKENS
from cfs_server.journal.sqlite import EVENT_WINDOW, SqliteBackend
from cfs_server.journal.sqlite_file import check_file, require_local
from tests.sessions.journal.conformance import MOST, Writer, contents, conversation

GOLDEN = Path(__file__).parent / "golden"


@contextmanager
def opened(path: Path, event_window: int = EVENT_WINDOW) -> Iterator[tuple[SqliteBackend, Opened]]:
    """Open a file for the block."""
    backend = SqliteBackend(path, event_window=event_window)
    found = backend.open()
    try:
        yield backend, found
    finally:
        backend.close()


def write_some(path: Path, turns: int = 3) -> Writer:
    """Make a file with one conversation, and close it."""
    with opened(path) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch(conversation(writer, "a", turns)))
    return writer


def bytes_of(path: Path) -> bytes:
    """Return all bytes of a store, those of its WAL included."""
    return b"".join(part.read_bytes() for part in (path, path.with_name(f"{path.name}-wal")) if part.exists())


def finish(backend: Backend) -> None:
    """Do all maintenance that is to be done."""
    while backend.tidy():
        pass


# -- who may use it ---------------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_the_file_and_its_log(tmp_path: Path) -> None:
    """The conversations of all users are in it. A file that is open to others is closed to them."""
    path = tmp_path / "new" / "sessions.db"
    write_some(path)
    path.chmod(0o644)
    with opened(path) as (backend, found):
        backend.commit(Batch([Writer(found).created("b")]))
        assert {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {
            "sessions.db": 0o600,
            "sessions.db-wal": 0o600,
            "sessions.db.reserve": 0o600,
        }
    assert path.parent.stat().st_mode & 0o777 == 0o700


HOLD = """
import sys
from pathlib import Path
from cfs_server.journal.sqlite import EVENT_WINDOW, SqliteBackend
SqliteBackend(Path(sys.argv[1])).open()
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """The lock ends with its holder, even if that is killed."""
    path = tmp_path / "sessions.db"
    write_some(path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            with pytest.raises(StoreFailed, match=rf"in use by process {holder.pid}; only one server"):
                SqliteBackend(path).open()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    with opened(path) as (backend, _):
        assert contents(backend.rows("a", 0, HISTORY))


def test_a_second_backend_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The locks of the kernel would not exclude it, and closing its file would release them."""
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="open in this process already"):
                SqliteBackend(path).open()
        backend.commit(Batch([writer.created("a")]))
        script = HOLD.replace("sys.stdin.read()", "")
        other = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()}" in other.stderr
    with opened(path) as (_, found):
        assert len(found.rows) == 1


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "fuse.sshfs", "fuse.glusterfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    """The kernel's table of mounts as it looks on a machine with such a mount."""
    place = str(tmp_path).replace(" ", "\\040")
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"22 21 0:40 / {place} rw,relatime shared:2 master:1 - {kind} server:/share rw\n"
        f"23 21 0:41 / {place}/local rw - ext4 /dev/sdb1 rw\n"
    )
    with pytest.raises(StoreFailed, match=f"is on a {kind} file system"):
        require_local(tmp_path / "data" / "sessions.db", str(table))
    require_local(tmp_path / "local" / "sessions.db", str(table))
    require_local(Path("/sessions.db"), str(table))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs"])
def test_a_local_file_system_is_accepted(tmp_path: Path, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 8:1 / / rw,relatime - {kind} /dev/sda1 rw\n")
    require_local(tmp_path / "sessions.db", str(table))


def test_a_file_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(StoreFailed, match="of another program"):
        SqliteBackend(path, repair=True).open()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_nothing_of_a_deleted_session_stays_on_the_disk(tmp_path: Path) -> None:
    """S2: neither in free pages nor in the log, while the server goes on."""
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), *(writer.message("a", f"secret {n} " * 50) for n in range(3_000))]))
        backend.commit(Batch([writer.created("b"), writer.message("b", "open")], heads=[writer.head("a")]))
        finish(backend)
        before = bytes_of(path)
        assert b"secret" in before
        backend.commit(Batch([writer.deleted("a")]))
        finish(backend)
        assert b"secret" not in bytes_of(path)
        assert len(bytes_of(path)) < len(before) / 4
        assert contents(backend.rows("b", 0, HISTORY)) == ["open"]
    assert check_file(path) == []


def test_a_deletion_is_finished_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), *(writer.message("a", "secret") for _ in range(2_500))]))
        backend.commit(Batch([writer.deleted("a")]))
        backend.tidy()  # removes a part only
        image = tmp_path / "crashed" / "sessions.db"
        image.parent.mkdir()
        for end in ("", "-wal"):
            (image.parent / (image.name + end)).write_bytes((tmp_path / (path.name + end)).read_bytes())
    with opened(image) as (backend, found):
        assert (found.heads, found.rows) == ([], [])
        finish(backend)
        assert b"secret" not in bytes_of(image)


def test_old_tokens_are_pruned_and_messages_are_not(tmp_path: Path) -> None:
    """Tokens that no head includes stay, however old: a start needs them to resume the turn."""
    path = tmp_path / "sessions.db"
    with opened(path, event_window=50) as (backend, found):
        writer = Writer(found)
        rows = [*conversation(writer, "a", 4), writer.created("b"), *(writer.token("b") for _ in range(10))]
        backend.commit(Batch(rows, heads=[writer.head("a")]))
        later = conversation(writer, "c", 20)
        backend.commit(Batch(later))
        finish(backend)
        kinds = [row.kind for row in backend.rows("a", 0, [*HISTORY, TOKENS])]
        assert kinds == ["session.created", *["message.added"] * 8]
        assert len(backend.rows("b", 0, [TOKENS])) == 10
        assert backend.events("a", 0, MOST) is None
        assert backend.events("a", 1, MOST) is None, "the tokens after the first message are missing"
        assert backend.events(None, 0, MOST) is None
        newest = backend.events(None, writer.position - 40, MOST)
        assert newest == [row for row in later if row.events][-40:]
    with opened(path, event_window=50) as (backend, found):
        assert [row.kind for row in found.rows].count(TOKENS) == 10 + 20 * 4
        assert (found.seq, found.position) == (writer.seq, writer.position)
        backend.commit(Batch(heads=[writer.head("b"), writer.head("c")]))
        backend.commit(Batch([writer.created("d"), *(writer.message("d") for _ in range(1_100))]))
        finish(backend)
        assert backend.rows("b", 0, [TOKENS]) == []
        assert backend.rows("c", 0, [TOKENS]) == []


def test_old_deletions_are_forgotten(tmp_path: Path) -> None:
    """A server that makes and deletes sessions for years does not grow."""
    path = tmp_path / "sessions.db"
    with opened(path, event_window=50) as (backend, found):
        writer = Writer(found)
        for number in range(40):
            backend.commit(Batch([writer.created(f"s{number}"), writer.message(f"s{number}")]))
            backend.commit(Batch([writer.deleted(f"s{number}")]))
            backend.tidy()
        backend.commit(Batch([writer.created("a"), *(writer.message("a") for _ in range(1_100))]))
        finish(backend)
        counts = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM records)"
        assert backend.connection.execute(counts).fetchone() == (1, 1_101)
        newest = backend.events(None, writer.position - 40, MOST)
        assert newest is not None
        assert len(newest) == 40
    assert check_file(path) == []


def test_numbers_are_not_used_again_after_the_last_record_was_removed(tmp_path: Path) -> None:
    """A head may be newer than all records: rows that begin at an earlier number would count as included in it."""
    path = tmp_path / "sessions.db"
    with opened(path, event_window=0) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), *(writer.token("a") for _ in range(10))]))
        backend.commit(Batch(heads=[writer.head("a")]))
        finish(backend)
        assert backend.rows("a", 0, [TOKENS]) == []
    with opened(path) as (_, found):
        assert found.seq == writer.seq


# -- copies and versions ----------------------------------------------------------------------------------------------


def test_a_backup_is_made_while_the_store_is_written(tmp_path: Path) -> None:
    """The copy has all that was committed before, and whole batches of what came meanwhile."""
    path, copy = tmp_path / "sessions.db", tmp_path / "copies" / "backup.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        backend.commit(Batch([writer.created("a"), *(writer.message("a", "x" * 4_000) for _ in range(2_000))]))
        backend.commit(Batch(kept=[StoredDocument("locks", "a", "1")]))
        commits = 0

        def commit() -> None:
            nonlocal commits
            commits += 1
            backend.commit(Batch([writer.message("a", "during"), writer.message("a", "during")]))

        backend.backup(copy, commit)
        assert commits > 3
        with pytest.raises(StoreFailed, match="exists already"):
            backend.backup(copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in copy.parent.iterdir()] == ["backup.db"]
    assert check_file(copy) == []
    with opened(copy) as (backend, found):
        texts = contents(backend.rows("a", 0, HISTORY))
        assert len(texts) >= 2_000
        assert len(texts) % 2 == 0
        assert found.kept == {"locks": {"a": "1"}}


def test_a_backup_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "sessions.db") as (backend, _):
        (tmp_path / "file").touch()
        with pytest.raises(StoreFailed, match="cannot be written"):
            backend.backup(tmp_path / "file" / "backup.db")
        backend.commit(Batch())


def test_a_newer_schema_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_some(path)
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"PRAGMA user_version = {sqlite_file.SCHEMA + 1}")
    with pytest.raises(StoreFailed, match=r"written by a newer CFS: schema 2, and this one knows 1"):
        SqliteBackend(path, repair=True).open()
    with closing(sqlite3.connect(path)) as newer:
        assert newer.execute("PRAGMA user_version").fetchone() == (2,)


@pytest.mark.parametrize("what", ["row", "head", "setting"])
def test_what_a_newer_version_has_written_is_no_damage(tmp_path: Path, what: str) -> None:
    """A repair would throw it away. The checksum says that it was written so."""
    path = tmp_path / "sessions.db"
    with opened(path) as (backend, found):
        writer = Writer(found)
        created, head = writer.created("a"), writer.head("a")
        changed = {
            "row": Batch([created, writer.silent("a")._replace(version=9)]),
            "head": Batch([created], heads=[(*head[:2], head[2].replace('"version":1', '"version":9'))]),
            "setting": Batch([created], heads=[(*head[:2], head[2].replace('"top_k"', '"top_secret"'))]),
        }
        backend.commit(changed[what])
    for repair in (False, True):
        with pytest.raises(StoreFailed, match="has been written by another version of CFS") as refusal:
            SqliteBackend(path, repair=repair).open()
        assert not isinstance(refusal.value, StoreDamaged)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sessions.db", "sessions.db.reserve"]


def test_an_old_schema_is_migrated_after_a_copy_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.db"
    write_some(path)
    monkeypatch.setattr(sqlite_file, "SCHEMA", 3)
    steps = {2: "ALTER TABLE records ADD COLUMN colour TEXT;", 3: "UPDATE records SET colour = 'red';"}
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", steps)
    with opened(path) as (backend, found):
        assert found.rows
        assert backend.connection.execute("SELECT DISTINCT colour FROM records").fetchall() == [("red",)]
    (copy,) = tmp_path.glob("sessions.db.schema-1-*")
    with closing(sqlite3.connect(copy)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (1,)
        assert old.execute("SELECT count(*) FROM records").fetchone() == (len(found.rows),)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.db"
    write_some(path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "SCHEMA", 2)
        patch.setattr(sqlite_file, "MIGRATIONS", {2: "ALTER TABLE records ADD COLUMN colour TEXT; DROP TABLE songs;"})
        with pytest.raises(StoreFailed, match="no such table: songs"):
            SqliteBackend(path).open()
    with opened(path) as (_, found):
        assert found.rows
