"""What survives when the power fails: of SQLite as it is, and of a server with a store."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from power import power
from power_disk import Disk, Operation, Survivors, compiler, read_log, recording
from tests.server.support import environment

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler: scripts/test installs it on Debian")
WRITER = """
import sqlite3, sys, os
path, log, synchronous = sys.argv[1:]
database = sqlite3.connect(path, isolation_level=None)
database.execute("pragma locking_mode=exclusive")
database.execute("pragma journal_mode=wal")
database.execute(f"pragma synchronous={synchronous}")
database.execute("pragma wal_autocheckpoint=8")
database.execute("create table t (n integer primary key, text text)")
for n in range(60):
    database.execute("insert into t values (?, ?)", (n, "x" * (n * 37 % 3000)))
    print(n, os.stat(log).st_size, flush=True)
os._exit(0)
"""


def write(tmp_path: Path, synchronous: str) -> tuple[Path, bytes, list[int]]:
    """Insert rows into a recorded database; return its folder, the log, and its size as each insert was done."""
    root, log = tmp_path / "data", tmp_path / "log"
    command = [sys.executable, "-c", WRITER, str(root / "t.db"), str(log), synchronous]
    done = subprocess.run(
        command, env=environment(**recording(root, log)), capture_output=True, text=True, check=True, timeout=60
    )
    return root, log.read_bytes(), [int(line.split()[1]) for line in done.stdout.splitlines()]


def rows(folder: Path) -> list[int]:
    """Read what a database has after a power failure. Raises an error of SQLite if it is corrupt."""
    if not (folder / "t.db").exists():
        return []
    database = sqlite3.connect(folder / "t.db")
    try:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        if not database.execute("select 1 from sqlite_master").fetchall():
            return []
        return [n for (n,) in database.execute("select n from t order by n")]
    finally:
        database.close()


def cuts(tmp_path: Path, synchronous: str, survivors: Survivors) -> list[tuple[int, list[int]]]:
    """Cut the power at many points; return how many inserts were done and which rows are there."""
    root, log, done = write(tmp_path, synchronous)
    draw, operations = random.Random(7), list(read_log(log))
    found = []
    for number in range(40):
        cut = draw.choice(operations).end
        disk, folder = Disk(root), tmp_path / f"{number}"
        disk.replay([each for each in operations if each.end <= cut])
        disk.cut(folder, survivors, draw)
        found.append((sum(end <= cut for end in done), rows(folder)))
    return found


@pytest.mark.parametrize("survivors", ["none", "some", "all"])
def test_full_loses_nothing_that_was_committed(tmp_path: Path, survivors: Survivors) -> None:
    for done, there in cuts(tmp_path, "full", survivors):
        assert done <= len(there) <= done + 1
        assert there == list(range(len(there)))


@pytest.mark.parametrize("survivors", ["none", "some"])
def test_normal_loses_a_suffix(tmp_path: Path, survivors: Survivors) -> None:
    """So the recorder drops what was not synchronised, and `full` is what keeps it."""
    found = cuts(tmp_path, "normal", survivors)
    assert any(len(there) < done for done, there in found)
    assert all(there == list(range(len(there))) for _, there in found)


def test_without_synchronising_the_database_is_lost_or_corrupt(tmp_path: Path) -> None:
    found = []
    try:
        found = cuts(tmp_path, "off", "some")
    except (sqlite3.DatabaseError, AssertionError):
        return
    assert any(len(there) < done for done, there in found)


@pytest.mark.external
@pytest.mark.parametrize("store", ["default", pytest.param("fast", marks=pytest.mark.slow)])
def test_a_server_keeps_what_it_has_acknowledged(tmp_path: Path, store: str) -> None:
    """`fast` may lose the last messages, but nothing before them."""
    seed = random.SystemRandom().randrange(1 << 30)
    report = power(2, seed, ["--store", store], tmp_path, seconds=1.5, fast=store == "fast")
    assert report.problems == [], f"seed {seed}"
    assert report.acknowledged > 0


def test_a_flush_that_is_recorded_before_its_rename_counts(tmp_path: Path) -> None:
    """A thread flushes a new folder while another one gives it its name, which the record has only afterwards."""
    root, text = tmp_path / "data", b"kept"
    steps = [
        ("O", 7, f"{root}/new/a.txt", b""),
        ("W", 7, "", text),
        ("S", 7, "", b""),
        ("D", 1, f"{root}/w", b""),
        ("R", 0, f"{root}/new", f"{root}/w".encode()),
        ("D", 1, f"{root}", b""),
    ]
    disk = Disk(root)
    disk.replay([Operation(kind, inode, 0, path, data, 0) for kind, inode, path, data in steps])
    disk.cut(tmp_path / "left", "none", random.Random(1))
    assert (tmp_path / "left/w/a.txt").read_bytes() == text
