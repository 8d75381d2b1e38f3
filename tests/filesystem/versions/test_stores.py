"""The store of versions in a file and in memory."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cfs_filesystem.versions import DamagedVersionError, Kind, SqliteVersions, VersionRetention
from cfs_filesystem.versions.testing import ALICE, BOB, VersionStoreConformance, content_at, write


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


class Tenant:
    """Works in a store at random, and counts what SQLite does for it: steps that read or write one row at most."""

    def __init__(self, store: SqliteVersions, seed: int) -> None:
        self.results: list[object] = []
        self.steps: list[int] = []
        self._store = store
        self._rng = random.Random(seed)
        self._count = 0
        store._file._database.set_progress_handler(self._step, 1)

    def act(self) -> None:
        """Do something in a workspace or its copy."""
        before = self._count
        self.results.append(self._acted())
        self.steps.append(self._count - before)

    def _acted(self) -> object:
        store, rng = self._store, self._rng
        name, path, data = rng.choice(["own", "copy"]), rng.choice("abc"), content(rng)
        match rng.randrange(12):
            case 0:
                return store.record(name, ALICE, Kind.DELETE, {path: None})
            case 1:
                return content_at(store, name, path)
            case 2:
                return sorted(store.tree_at(name))
            case 3:
                return [change.number for change in store.changes(name, path, limit=5)]
            case 4:
                return len(store.changes_between(name, store.oldest(name), store.last(name)))
            case 5:
                store.fork("own", "copy")
            case 6:
                return store.prune(name, VersionRetention(changes=4))
            case 7:
                return store.usage(name) if store.last(name) else 0
            case 8:
                store.purge("copy")
            case _:
                return write(store, name, path, data)
        return None

    def _step(self) -> int:
        self._count += 1
        return 0


def content(rng: random.Random) -> bytes:
    """Return one of few contents, so that several workspaces have the same."""
    return b"".join(b"%d\n" % number for number in range(rng.randrange(1, 9) * 100))


def bound(store: SqliteVersions) -> None:
    """Let each index begin and end with rows of others: at the end of one, SQLite needs a step less."""
    for name, byte in (("first", b"\0"), ("last", b"\xff")):
        write(store, name, "a", byte)
        write(store, name, "a", byte * 2)
        rows = store._file._database.execute("SELECT id FROM contents ORDER BY id DESC LIMIT 2").fetchall()
        for (number,), other in zip(rows, (0, 1), strict=True):
            store._file._database.execute(
                "UPDATE contents SET scope = ?, digest = ? WHERE id = ?",
                (byte * 16, byte * 31 + bytes([other]), number),
            )
        store._file._database.execute("UPDATE workspaces SET scope = ? WHERE name = ?", (byte * 16, name.encode()))
        store._file._database.execute(
            "UPDATE entries SET digest = ? WHERE workspace = (SELECT id FROM workspaces WHERE name = ?)",
            (byte * 32, name.encode()),
        )


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_what_others_keep_changes_neither_results_nor_work(tmp_path: Path, seed: int) -> None:
    """G9: the rows that are visited and the bytes that are stored are the same, also if others have the same files."""
    tenants = []
    for others in ("nobody", "different files", "the same files"):
        with closing(SqliteVersions(tmp_path / f"{others}.db")) as store:
            bound(store)
            rng = random.Random(seed)
            for number in range(0 if others == "nobody" else 30):
                for path in "abc":
                    extra = b"" if others == "the same files" else b"%d" % number
                    write(store, f"other{number}", path, content(rng) + extra, BOB)
            tenants.append(tenant := Tenant(store, seed))
            for _ in range(80):
                tenant.act()
            assert sum(tenant.steps) > 1_000
    for tenant in tenants[1:]:
        assert tenant.results == tenants[0].results
        assert tenant.steps == tenants[0].steps
