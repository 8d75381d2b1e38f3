"""The files of a workspace on a disk and in object stores, beside their versions: one history for all of them."""

import os
import random
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cfs_filesystem import DiskFileSystem, ObjectStore, open_store
from cfs_filesystem.versions import (
    Author,
    EntryType,
    FolderHistory,
    FolderTree,
    ObjectTree,
    SqliteVersions,
    VersionedTree,
    VersionsUnavailableError,
)
from tests.buckets import NAME, Bucket, bucket_server
from tests.odd_trees import nest

ALICE = Author("alice")


class Program:
    """Another program, which changes files without the history."""

    def __init__(self, place: Path | ObjectStore) -> None:
        self._place = place

    def put(self, path: str, data: bytes) -> None:
        """Store a file."""
        if isinstance(self._place, Path):
            (self._place / path).parent.mkdir(parents=True, exist_ok=True)
            (self._place / path).write_bytes(data)
        else:
            self._place.write(f"w/{path}", [data], None)

    def remove(self, path: str) -> None:
        """Remove a file, and on a disk the folders that are empty then, as they are in an object store."""
        if isinstance(self._place, Path):
            (self._place / path).unlink()
            for folder in (self._place / path).parents:
                if folder == self._place or any(folder.iterdir()):
                    break
                folder.rmdir()
        else:
            self._place.delete(f"w/{path}", None)

    def files(self) -> dict[str, bytes]:
        """Return all files."""
        if isinstance(self._place, Path):
            paths = [path for path in self._place.rglob("*") if path.is_file()]
            return {path.relative_to(self._place).as_posix(): path.read_bytes() for path in paths}
        keys = [stored.key for stored in self._place.walk("w/") if not stored.key.endswith("/")]
        return {key.removeprefix("w/"): self._place.read(key, 0, None)[0] for key in keys}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with bucket_server() as bucket:
        yield bucket


@pytest.fixture(params=["folder", "memory", pytest.param("bucket", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[VersionedTree, Program]]:
    if request.param == "folder":
        root = tmp_path / "w"
        with closing(DiskFileSystem(root)) as disk:
            yield FolderTree(disk.tree), Program(root)
        return
    if request.param == "bucket":
        request.getfixturevalue("bucket")
    url = f"memory://{secrets.token_hex(4)}" if request.param == "memory" else f"s3://{NAME}/{secrets.token_hex(4)}"
    with closing(open_store(url)) as store:
        store.check()
        yield ObjectTree(store, "w/"), Program(store)


@pytest.fixture
def versions() -> Iterator[SqliteVersions]:
    with closing(SqliteVersions()) as store:
        yield store


def test_every_state_is_recorded_and_comes_back(place: tuple[VersionedTree, Program], versions: SqliteVersions) -> None:
    """A random walk of another program's changes, and of ways back to any of the states before."""
    tree, program = place
    history, chance = FolderHistory(versions, "w", tree), random.Random(3)
    states: dict[int, dict[str, bytes]] = {0: {}}
    for _ in range(40):
        files = program.files()
        if chance.random() < 0.3:
            number = chance.choice(sorted(states))
            wanted = versions.tree_at("w", number)
            refused = history.restore({path: wanted.get(path) for path in {*wanted, *versions.tree_at("w")}}, ALICE)
            assert (refused, program.files()) == ([], states[number])
        else:
            for path in chance.sample(["a", "b", "d/a", "d/b", "d/e/a", "f/a"], 2):
                if path in files and chance.random() < 0.4:
                    program.remove(path)
                else:
                    program.put(path, chance.randbytes(chance.randint(0, 300)))
        history.sync()
        states[versions.last("w")] = program.files()
        newest = versions.tree_at("w").values()
        assert {entry.path for entry in newest if entry.type is EntryType.FILE} == states[versions.last("w")].keys()
        assert history.sync() is None, "nothing has changed"
    for number, files in states.items():
        entries = versions.tree_at("w", number)
        then = {path: versions.read("w", entry) for path, entry in entries.items() if entry.type is EntryType.FILE}
        assert then == files


def test_files_come_back_with_folders_that_a_program_has_removed(
    place: tuple[VersionedTree, Program], versions: SqliteVersions
) -> None:
    """Although only the files are named. What a program puts there next is another version."""
    tree, program = place
    history = FolderHistory(versions, "w", tree)
    files = {f"{folder}/{number}": f"{folder} {number}".encode() for folder in ("d", "d/e", "f") for number in range(9)}
    for path, content in files.items():
        program.put(path, content)
    history.sync()
    then = {path: versions.at("w", path) for path in files}
    for path in files:
        program.remove(path)
    history.sync()
    assert history.restore(then, ALICE) == []
    assert program.files() == files
    assert history.sync() is None
    assert {path: versions.read("w", versions.tree_at("w")[path]) for path in files} == files
    program.put("d/0", b"D 0")
    assert history.sync() is not None
    assert versions.read("w", versions.tree_at("w")["d/0"]) == b"D 0"


@pytest.mark.parametrize("place", ["memory", "bucket"], indirect=True)
def test_a_file_that_a_program_never_stops_changing_stays(
    place: tuple[VersionedTree, Program], versions: SqliteVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, program = place
    history = FolderHistory(versions, "w", tree)
    for content in (b"1", b"2"):
        program.put("a", content)
        history.sync()
    written, restore = [b"2"], tree.restore

    def changing(*arguments: Any) -> object:
        written.append(b"%d" % (len(written) + 2))
        program.put("a", written[-1])
        return restore(*arguments)

    monkeypatch.setattr(tree, "restore", changing)
    with pytest.raises(VersionsUnavailableError, match="all the time"):
        history.restore({"a": versions.at("w", "a", 1)}, ALICE)
    assert program.files() == {"a": written[-1]}
    assert len(written) > 10


def test_a_folder_in_which_something_stays_is_not_removed(
    place: tuple[VersionedTree, Program], versions: SqliteVersions
) -> None:
    tree, program = place
    history = FolderHistory(versions, "w", tree)
    program.put("d/a", b"1")
    history.sync()
    program.put("d/b", b"2")
    history.sync()
    assert history.restore({"d": None, "d/a": None}, ALICE) == ["d"]
    assert program.files() == {"d/b": b"2"}
    assert versions.tree_at("w").keys() == {"d", "d/b"}


def test_what_is_there_is_seen_in_one_way(place: tuple[VersionedTree, Program]) -> None:
    """By a view of many paths as by one look at each; folders come before their contents."""
    tree, program = place
    for path in ("a", "d/a", "d/e/a", "node_modules/x"):
        program.put(path, b"1")
    names = [name for name, _ in tree.present("", frozenset({"node_modules"}))]
    assert sorted(names) == ["a", "d", "d/a", "d/e", "d/e/a"]
    assert all(name.rpartition("/")[0] in ("", *names[:position]) for position, name in enumerate(names))
    many = [*names, "none", "d/none", "none/deep/x"]
    view = tree.view(many)
    for path in many:
        status = tree.status(path)
        assert view.status(path) == status
        assert (view.above(path), dict(view.present(path))) == (tree.above(path), dict(tree.present(path)))
        assert (status is not None) is (path in names)
    assert tree.above("d/e/a").keys() == {"d", "d/e"}
    assert tree.above("none/deep/x") == {}


def test_a_folder_is_opened_from_the_one_that_contains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the root again: that took ten seconds for folders that a command can make in one."""
    nest(tmp_path, levels=200)
    opened = 0

    def counted(*arguments: Any, **options: Any) -> int:
        nonlocal opened
        opened += 1
        return opens(*arguments, **options)

    opens = os.open
    with closing(DiskFileSystem(tmp_path)) as disk:
        monkeypatch.setattr(os, "open", counted)
        assert [path for path, _ in FolderTree(disk.tree).present()][-1] == "d/" * 200 + "end.txt"
    assert opened < 2 * 200
