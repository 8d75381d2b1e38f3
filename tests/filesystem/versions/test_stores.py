"""The store of versions in a file and in memory."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cfs_filesystem.versions import DamagedVersionError, SqliteVersions, VersionRetention
from cfs_filesystem.versions.testing import VersionStoreConformance, content_at, write


class TestFile(VersionStoreConformance):
    """In a file."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqliteVersions]:
        with closing(SqliteVersions(tmp_path / "versions.db")) as store:
            yield store


class TestMemory(VersionStoreConformance):
    """In memory."""

    @pytest.fixture
    def store(self) -> Iterator[SqliteVersions]:
        with closing(SqliteVersions()) as store:
            yield store


def test_a_file_is_private_and_is_there_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "versions.db"
    with closing(SqliteVersions(file)) as store:
        write(store, "w", "a", b"1")
        store.checkpoint()
        for part in tmp_path.iterdir():
            assert part.stat().st_mode & 0o777 == 0o600
    with closing(SqliteVersions(file)) as store:
        assert content_at(store, "w", "a", 1) == b"1"
        assert write(store, "w", "a", b"2") == 2


def test_a_backup_has_what_was_recorded(tmp_path: Path) -> None:
    with closing(SqliteVersions(tmp_path / "versions.db")) as store:
        write(store, "w", "a", b"1")
        store.backup(tmp_path / "copy.db")
        write(store, "w", "a", b"2")
    with closing(SqliteVersions(tmp_path / "copy.db")) as copy:
        copy.check_integrity()
        assert copy.last("w") == 1
        assert content_at(copy, "w", "a") == b"1"


@pytest.mark.parametrize("how", ["purge", "prune"])
def test_what_is_forgotten_is_in_no_file(tmp_path: Path, how: str) -> None:
    secret = random.Random(1).randbytes(5000)  # zstd stores it as it is
    with closing(SqliteVersions(tmp_path / "versions.db")) as store:
        write(store, "w", "secret name", secret)
        write(store, "w", "secret name", secret[:2500] + b"!" + secret[2500:])
        store.checkpoint()
        assert _holds(tmp_path, secret[1000:1100])
        if how == "purge":
            store.purge("w")
            assert not _holds(tmp_path, b"secret name")
        else:
            write(store, "w", "secret name", b"new")
            store.prune("w", VersionRetention(changes=0))
        assert not _holds(tmp_path, secret[1000:1100])


def test_a_damaged_content_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "versions.db"
    with closing(SqliteVersions(file)) as store:
        write(store, "w", "a", b"something")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE contents SET data = zeroblob(length(data))")
    with closing(SqliteVersions(file)) as store, pytest.raises(DamagedVersionError):
        store.check_integrity()


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "versions.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE theirs (x)")
    with pytest.raises(DamagedVersionError, match="no store of versions"):
        SqliteVersions(file)
    file.write_bytes(b"text, no database" * 100)
    with pytest.raises(DamagedVersionError, match="cannot be read"):
        SqliteVersions(file)


def _holds(folder: Path, data: bytes) -> bool:
    return any(data in part.read_bytes() for part in folder.iterdir())
