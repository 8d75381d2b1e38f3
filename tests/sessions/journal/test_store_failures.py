"""Full, failing, read-only and damaged disks: each is a clear error, reads go on, and nothing that was stored is lost.

The disks are real: a small tmpfs, ext4 on a loop device, and a loop device whose own disk has no space.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from cfs_server.journal.journal import Batch, StoreDamaged, StoredDocument, StoreFailed, StoreFull
from cfs_server.journal.records import HISTORY
from cfs_server.journal.sqlite import SqliteBackend
from cfs_server.journal.sqlite_file import check_file
from cfs_server.journal.sqlite_wal import FRAME_HEADER, PAGE
from tests.disks import Mount, break_disk, ext4, fill, mount
from tests.sessions.journal.conformance import Writer, contents, conversation
from tests.sessions.journal.test_sqlite import bytes_of, finish, opened

__all__ = ["mount"]

# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
def test_a_full_disk_loses_nothing_and_is_over_when_there_is_room(mount: Mount, fast: bool) -> None:
    """H7: the batch that did not fit is written when it is tried again; reads go on meanwhile."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=4m", "tmpfs")
    backend = SqliteBackend(disk / "sessions.db", fast=fast)
    writer = Writer(backend.open())
    backend.commit(Batch([writer.created("a")]))
    filler = fill(disk)
    filler.write_bytes(b"")
    with filler.open("ab") as file:
        file.write(bytes(2 << 20))
    stored = -1
    with suppress(StoreFull):
        while True:
            stored += 1
            batch = Batch([writer.message("a", f"{stored} {'x' * 50_000}"), writer.message("a", f"{stored}")])
            backend.commit(batch)
            backend.tidy()
    assert stored > 3
    for _ in range(3):
        with pytest.raises(StoreFull):
            backend.commit(batch)
        backend.tidy()
        assert len(contents(backend.rows("a", 0, HISTORY))) == 2 * stored
    filler.unlink()
    backend.commit(batch)
    backend.commit(Batch([writer.message("a", "later")]))
    backend.close()
    with opened(disk / "sessions.db") as (backend, _):
        texts = contents(backend.rows("a", 0, HISTORY))
        assert [text.split()[0] for text in texts] == [f"{n}" for n in range(stored + 1) for _ in range(2)] + ["later"]


def test_a_store_can_be_read_on_a_disk_that_is_full_at_the_start(mount: Mount) -> None:
    """The epoch is stored in the reserve, and then only what frees space until there is room."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs")
    with opened(disk / "sessions.db") as (backend, found):
        writer = Writer(found)
        backend.commit(Batch(conversation(writer, "a")))
    filler = fill(disk)
    backend = SqliteBackend(disk / "sessions.db")
    found = backend.open()
    assert len(contents(backend.rows("a", 0, HISTORY))) == 6
    assert backend.shortage is not None
    assert backend.last_of(found.epoch, None) == writer.position
    with pytest.raises(StoreFull):
        backend.commit(Batch([writer.message("a")]))
    filler.unlink()
    backend.commit(Batch([writer.message("a")]))
    assert backend.shortage is None
    backend.close()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_deletions_empty_a_full_disk(mount: Mount, tmp_path: Path, kind: str) -> None:
    """After a crash the store opens, and what is deleted is gone from the file, although it is larger than the reserve.

    The log is larger than the room for it in the file.
    """
    disk = (
        mount("disk", "-t", "tmpfs", "-o", "size=24m", "tmpfs")
        if kind == "tmpfs"
        else ext4(mount, tmp_path / "image", 24)
    )
    path = disk / "sessions.db"
    source = SqliteBackend(path)
    writer = Writer(source.open())
    source.commit(Batch([writer.created("kept"), writer.message("kept", "kept")]))
    for key in ("a", "b"):
        source.commit(Batch([writer.created(key)]))
        for number in range(70):
            source.commit(Batch([writer.message(key, f"secret {number} " * 500) for _ in range(10)]))
            source.tidy()
    fill(disk)
    image = tmp_path / "crashed"
    shutil.copytree(disk, image, ignore=shutil.ignore_patterns("lost+found", "filler"))
    source.close()
    for part in disk.glob("sessions.db*"):
        part.unlink()
    os.sync()  # ext4 has the space of deleted files after its journal's next commit
    for part in image.glob("sessions.db*"):
        shutil.copy(part, disk)
    fill(disk, "more")
    backend = SqliteBackend(path)
    backend.open()
    with suppress(StoreFull):
        while True:
            backend.commit(Batch([writer.message("a", "secret" * 10_000)]))
            backend.tidy()
    assert backend.shortage is not None
    assert contents(backend.rows("kept", 0, HISTORY)) == ["kept"]
    for key in ("a", "b"):
        backend.commit(Batch([writer.deleted(key)], frees=True))
        while backend.tidy():
            pass
    assert len(bytes_of(path)) < 1 << 18
    backend.close()
    assert b"secret" not in path.read_bytes()
    assert check_file(path) == []


def test_deletions_are_stored_although_another_program_takes_all_that_is_freed(mount: Mount) -> None:
    """Maintenance once spent the whole reserve after the first deletion, and the next was refused."""
    disk = mount("disk", "-t", "tmpfs", "-o", "size=32m", "tmpfs")
    backend = SqliteBackend(disk / "sessions.db")
    writer = Writer(backend.open())
    keys = [f"{number}" for number in range(5)]
    for key in keys:
        backend.commit(Batch([writer.created(key), *(writer.message(key, "x" * 100_000) for _ in range(4))]))
        while backend.tidy():
            pass
    fill(disk)
    with suppress(StoreFull):
        while True:
            backend.commit(Batch([writer.message(keys[0], "x" * 100_000)]))
    assert backend.shortage is not None
    for key in keys:
        backend.commit(Batch([writer.deleted(key)], frees=True))
        for step in range(100):
            fill(disk, f"{key}-{step}")
            if not backend.tidy():
                break
    for filler in disk.glob("*-*[0-9]"):
        filler.unlink()
    while backend.tidy():
        pass
    backend.commit(Batch([writer.created("later")]))
    backend.close()


def test_a_new_store_is_refused_on_a_full_disk(mount: Mount) -> None:
    disk = mount("disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    fill(disk)
    with pytest.raises(StoreFailed, match="full"):
        SqliteBackend(disk / "sessions.db").open()


# -- a failing disk ---------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_ends_all_writing(mount: Mount) -> None:
    """The disk below has less space than it claims, so that the kernel cannot write what it has accepted."""
    below = mount("below", "-t", "tmpfs", "-o", "size=3m", "tmpfs")
    disk = ext4(mount, below / "image", 32)
    backend = SqliteBackend(disk / "sessions.db")
    writer = Writer(backend.open())
    backend.commit(Batch([writer.created("a"), writer.message("a", "kept")]))
    with suppress(StoreFailed):
        for _ in range(1_000):
            backend.commit(Batch([writer.message("a", os.urandom(50_000).hex())]))
    for _ in range(3):
        with pytest.raises(StoreFailed, match="disk I/O error"):
            backend.commit(Batch())
    assert not backend.tidy()
    assert contents(backend.rows("a", 0, HISTORY))[0] == "kept"
    backend.close()


SYNC = """
import sys
from pathlib import Path
from cfs_server.journal.journal import Batch, StoreFailed
from cfs_server.journal.sqlite import SqliteBackend
from tests.sessions.journal.conformance import Writer
path, trigger = map(Path, sys.argv[1:3])
backend = SqliteBackend(path, fast=sys.argv[3] == "fast")
writer = Writer(backend.open())
backend.commit(Batch([writer.created("a"), writer.message("a", "kept")]))
trigger.touch()
try:
    backend.commit(Batch([writer.message("a", "lost?")]))
    backend._checkpoint("PASSIVE")
    print("no error")
except StoreFailed as error:
    print(error)
trigger.unlink()
for _ in range(3):
    try:
        backend.commit(Batch([writer.message("a", "never")]))
        print("no error")
    except StoreFailed as error:
        print(error)
print(backend.tidy(), len(backend.rows("a", 0, ["message.added"])))
backend.close()
"""


@pytest.mark.parametrize("mode", ["full", "fast"])
def test_after_a_failed_fsync_there_is_no_second_one(tmp_path: Path, mode: str) -> None:
    """The kernel marks pages that it could not write as clean: a second fsync would succeed, and the data be lost.

    That includes the checkpoint when the connection is closed, and the end of the process.
    """
    if shutil.which("cc") is None:
        pytest.skip("the failing fsync is written in C")
    shim, log = tmp_path / "shim.so", tmp_path / "log"
    source = Path(__file__).parent / "shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    store, trigger = tmp_path / "sessions.db", tmp_path / "trigger"
    environment = {**os.environ, "LD_PRELOAD": f"{shim}", "STORE": "sessions.db", "TRIGGER": f"{trigger}"}
    script: list[str | Path] = [sys.executable, "-c", SYNC, store, trigger, mode]
    ran = subprocess.run(script, env=environment | {"LOG": f"{log}"}, capture_output=True, text=True, check=True)
    first, *others, last = ran.stdout.splitlines()
    assert "disk I/O error (SQLITE_IOERR_FSYNC)" in first
    assert others == [first] * 3
    assert last == f"False {2 if mode == 'fast' else 1}"
    synced = [line.split()[0] for line in log.read_text().splitlines()]
    assert synced[-1] == "failed"
    assert synced.count("failed") == 1
    with opened(store) as (backend, _):
        assert contents(backend.rows("a", 0, HISTORY))[0] == "kept"


# -- a read-only disk -------------------------------------------------------------------------------------------------


def test_a_read_only_store_is_refused(mount: Mount, tmp_path: Path) -> None:
    with opened(tmp_path / "data" / "sessions.db") as (backend, found):
        backend.commit(Batch(conversation(Writer(found), "a")))
    place = mount("readonly", "-o", "bind,ro", tmp_path / "data")
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    with pytest.raises(StoreFailed, match=r"sessions.db cannot be opened: it is read-only"):
        SqliteBackend(place / "sessions.db").open()


def test_a_disk_that_becomes_read_only_ends_all_writing(mount: Mount, tmp_path: Path) -> None:
    """As ext4 does after an error: what is stored can be read, and is there after a repair of the disk."""
    disk = ext4(mount, tmp_path / "image", 16)
    backend = SqliteBackend(disk / "sessions.db")
    writer = Writer(backend.open())
    backend.commit(Batch(conversation(writer, "a")))
    break_disk(disk)
    with pytest.raises(StoreFailed):
        backend.commit(Batch([writer.message("a")]))
    assert len(contents(backend.rows("a", 0, HISTORY))) == 6
    copy = tmp_path / "sessions.db"
    for part in disk.glob("sessions.db*"):
        shutil.copy(part, tmp_path)
    with opened(copy) as (other, _):
        assert len(contents(other.rows("a", 0, HISTORY))) == 6
    backend.close()


# -- a damaged file ---------------------------------------------------------------------------------------------------


def crashed_store(folder: Path, *, commits: int = 12) -> Path:
    """Return a store as a crash leaves it, with records in the file and in its WAL."""
    source = folder / "source" / "sessions.db"
    backend = SqliteBackend(source)
    writer = Writer(backend.open())
    for number in range(commits):
        rows = conversation(writer, f"s{number}", 6)
        backend.commit(
            Batch(rows, [StoredDocument("locks", f"{number}", "x" * 50)], [writer.head(f"s{number}", rows[-5].seq)])
        )
        if number == 6:
            backend._checkpoint("TRUNCATE")
    image = folder / f"image{commits}"
    shutil.copytree(source.parent, image)
    backend.close()
    shutil.rmtree(source.parent)
    return image / "sessions.db"


def everything(path: Path) -> object:
    """Return all that a store contains."""
    with opened(path) as (backend, found):
        histories = [backend.rows(f"s{number}", 0, HISTORY) for number in range(12)]
        events = backend.events(None, 0, 1 << 30)
        return found.heads, found.rows, found.kept, histories, events, found.seq, found.position


@pytest.mark.parametrize("part", ["sessions.db", "sessions.db-wal"])
def test_damage_at_a_random_place_is_noticed_or_does_no_harm(tmp_path: Path, part: str) -> None:
    """A start refuses the file with a reason and removes nothing, or it reads all that was written.

    Only damage to the last commit in the WAL looks like a power failure during that commit.
    """
    image = crashed_store(tmp_path)
    complete = []
    for commits in (12, 11):
        shutil.copytree(crashed_store(tmp_path / f"{commits}", commits=commits).parent, tmp_path / f"intact{commits}")
        complete.append(everything(tmp_path / f"intact{commits}" / "sessions.db"))
    chance = random.Random(1)
    refused = 0
    attempts = 2 * settings().max_examples
    for attempt in range(attempts):
        copy = tmp_path / f"copy{attempt}"
        shutil.copytree(image.parent, copy)
        data = bytearray((copy / part).read_bytes())
        at, length = chance.randrange(len(data)), chance.choice([1, 4, 64, 4096])
        data[at : at + length] = chance.randbytes(len(data[at : at + length]))
        (copy / part).write_bytes(data)
        try:
            found = everything(copy / "sessions.db")
        except StoreDamaged:
            refused += 1
            assert (copy / "sessions.db").exists()
        else:
            assert found in (complete if part.endswith("wal") else complete[:1]), f"{length} bytes at {at} are lost"
    assert refused > attempts // 3


def test_a_commit_without_its_mark_is_noticed(tmp_path: Path) -> None:
    """It is not taken for a part of the last commit, which a power failure could have left incomplete."""
    image = crashed_store(tmp_path)
    before = crashed_store(tmp_path / "before", commits=11).with_name("sessions.db-wal").stat().st_size
    wal = image.with_name("sessions.db-wal")
    data = bytearray(wal.read_bytes())
    mark = before - PAGE - FRAME_HEADER
    data[mark : mark + FRAME_HEADER] = bytes(FRAME_HEADER)
    wal.write_bytes(data)
    with pytest.raises(StoreDamaged, match="2 commits follow"):
        everything(image)


def test_a_torn_last_commit_is_no_damage(tmp_path: Path) -> None:
    """A power failure can leave a part of the commit that was being written: it was not acknowledged."""
    image = crashed_store(tmp_path)
    wal = image.with_name("sessions.db-wal")
    data = wal.read_bytes()
    for cut in (1, 20, 4_000, 5_000):
        copy = tmp_path / f"{cut}" / "sessions.db"
        shutil.copytree(image.parent, copy.parent)
        copy.with_name(wal.name).write_bytes(data[:-cut])
        with opened(copy) as (backend, found):
            assert backend.rows("s10", 0, HISTORY)
            assert backend.rows("s11", 0, HISTORY) == []
            assert found.rows
        assert check_file(copy) == []


def test_a_killed_server_leaves_a_store_that_opens(tmp_path: Path) -> None:
    """What was acknowledged is there, in order and without gaps."""
    path = tmp_path / "sessions.db"
    script = """
import sys
from pathlib import Path
from cfs_server.journal.journal import Batch
from cfs_server.journal.sqlite import SqliteBackend
from tests.sessions.journal.conformance import Writer
backend = SqliteBackend(Path(sys.argv[1]))
opened = backend.open()
writer = Writer(opened)
key = str(opened.seq)
backend.commit(Batch([writer.created(key)]))
while True:
    backend.commit(Batch([writer.message(key), writer.message(key)]))
    backend.tidy()
    print(writer.seq, flush=True)
"""
    chance = random.Random(2)
    acknowledged = 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 200)):
                acknowledged = int(child.stdout.readline())
            os.kill(child.pid, signal.SIGKILL)
        with opened(path) as (backend, found):
            seqs = [row.seq for row in found.rows]
            assert seqs == list(range(1, len(seqs) + 1))
            assert found.seq >= acknowledged
            finish(backend)
        assert check_file(path) == []
