"""Versions of files in a bucket: what is particular to it. The tests with the mark `everywhere` use a bucket, too."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import httpx
import pytest

from cfs.api import AGENT
from cfs_filesystem import OPERATIONS, ConflictError, FsHandle, Grant
from cfs_filesystem._objects import Expected, StoredObject
from cfs_filesystem._s3 import S3Store
from cfs_filesystem.versions import OUTSIDE, Author, Kind, SqliteVersions
from cfs_server.domain.ids import WORKSPACES
from cfs_server.workspaces.workspaces import ObjectWorkspaces
from tests.buckets import NAME, Bucket
from tests.server.places import BucketFolder
from tests.server.support import run_cfs, serving
from tests.server.test_rewound_files import put, said, stored

MAIN = f"{WORKSPACES}main/"
ALICE = Author("alice", "main")
SCRIPTED = ("--engine", "scripted")


class SharedBucket(S3Store):
    """A bucket that another program changes just before the next change of ours, after all looks at it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.other_program: Callable[[], None] | None = None

    def _changed_by_others(self) -> None:
        change, self.other_program = self.other_program, None
        if change is not None:
            change()

    def write(self, key: str, chunks: Iterable[bytes], expected: Expected) -> StoredObject:
        self._changed_by_others()
        return super().write(key, chunks, expected)

    def delete(self, key: str, expected: Expected) -> None:
        self._changed_by_others()
        super().delete(key, expected)

    def copy(self, source: StoredObject, key: str, expected: Expected) -> None:
        self._changed_by_others()
        super().copy(source, key, expected)


@pytest.fixture
def folder(bucket: Bucket) -> BucketFolder:
    """A part of the bucket, as other programs see it."""
    return BucketFolder(bucket, secrets.token_hex(4))


@pytest.fixture
def store(folder: BucketFolder) -> SharedBucket:
    store = SharedBucket(str(folder))
    store.check()
    return store


@pytest.fixture
def workspaces(store: SharedBucket, tmp_path: Path) -> Iterator[ObjectWorkspaces]:
    with closing(ObjectWorkspaces(store, versions=SqliteVersions(tmp_path / "versions.db"))) as found:
        yield found


def handle_of(workspaces: ObjectWorkspaces) -> FsHandle:
    return workspaces.create_handle([Grant(prefix=WORKSPACES, ops=OPERATIONS)])


def contents(workspaces: ObjectWorkspaces, path: str) -> list[bytes]:
    """All contents that a file ever had, the newest first."""
    assert workspaces.history is not None
    store = workspaces.history.store
    entries = [change.entries.get(path) for change in store.changes("main", path)]
    return [store.read("main", entry) for entry in entries if entry is not None and entry.digest]


def rewind(workspaces: ObjectWorkspaces) -> None:
    """Go back to the first version of `a`."""
    assert workspaces.history is not None
    workspaces.rewind("main", {"a": workspaces.history.store.at("main", "a", 1)}, ALICE)


CHANGES: dict[str, Callable[[ObjectWorkspaces, FsHandle], object]] = {
    "write": lambda _, handle: handle.write(MAIN + "a", "ours again"),
    "delete": lambda _, handle: handle.delete(MAIN + "a"),
    "move": lambda _, handle: handle.move(MAIN + "b", MAIN + "a", overwrite=True),
    "copy": lambda _, handle: handle.copy(MAIN + "b", MAIN + "a", overwrite=True),
    "rewind": lambda workspaces, _: rewind(workspaces),
    "remove everything": lambda _, handle: handle.remove_tree(MAIN.rstrip("/")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_lost_that_a_program_stores_just_before_a_change(
    workspaces: ObjectWorkspaces, store: SharedBucket, folder: BucketFolder, change: str
) -> None:
    """It becomes a version by an unknown author before it is replaced. What is removed as a whole keeps it."""
    handle = handle_of(workspaces)
    for name, text in (("a", "first"), ("a", "ours"), ("b", "of b")):
        handle.write(MAIN + name, text)
    store.other_program = lambda: (folder / "main/a").write_text("theirs")
    CHANGES[change](workspaces, handle)
    assert store.other_program is None
    if change == "remove everything":
        assert (folder / "main/a").read_text() == "theirs"
        return
    assert workspaces.history is not None
    changes = workspaces.history.store.changes("main", "a")
    assert [entry.kind for entry in changes] == [Kind(change), Kind.OUTSIDE, Kind.WRITE, Kind.WRITE]
    assert changes[1].author == OUTSIDE
    assert b"theirs" in contents(workspaces, "a")


def test_a_new_file_does_not_replace_one_that_a_program_stores_meanwhile(
    workspaces: ObjectWorkspaces, store: SharedBucket, folder: BucketFolder
) -> None:
    handle = handle_of(workspaces)
    store.other_program = lambda: (folder / "main/a").write_text("theirs")
    handle.write(MAIN + "a", "ours")
    assert contents(workspaces, "a") == [b"ours", b"theirs"]
    store.other_program = lambda: (folder / "main/b").write_text("theirs")
    with pytest.raises(ConflictError, match="exists"):
        handle.write(MAIN + "b", "ours", overwrite=False)
    assert (folder / "main/b").read_text() == "theirs"


def test_a_large_file_is_recorded_without_reading_it_back(
    workspaces: ObjectWorkspaces, store: SharedBucket, folder: BucketFolder
) -> None:
    """Also if a program has changed it meanwhile, and it is sent again."""
    data = [secrets.token_bytes(1 << 20) for _ in range(9)]
    handle = handle_of(workspaces)
    handle.write(MAIN + "a", "small")
    store.other_program = lambda: (folder / "main/a").write_text("theirs")
    handle.write_from(MAIN + "a", iter(data))
    assert contents(workspaces, "a") == [b"".join(data), b"theirs", b"small"]
    assert (folder / "main/a").read_bytes() == b"".join(data)


def test_folders_are_there_as_long_as_something_is_in_them(workspaces: ObjectWorkspaces, folder: BucketFolder) -> None:
    """One that was created stays when it is empty, and comes back as such."""
    assert workspaces.history is not None
    versions = workspaces.history.store
    handle = handle_of(workspaces)
    handle.make_directory(MAIN.rstrip("/"))
    handle.make_directory(MAIN + "made")
    handle.write(MAIN + "src/deep/a", "1")
    handle.delete(MAIN + "src/deep/a")
    assert versions.tree_at("main").keys() == {"made"}
    handle.write(MAIN + "made/a", "1")
    handle.remove_tree(MAIN + "made")
    assert versions.tree_at("main") == {}
    workspaces.history.look("main")
    assert versions.changes("main", limit=1)[0].kind is Kind.DELETE, "nothing else has changed"
    entries = versions.tree_at("main", 2)
    assert entries.keys() == {"made", "src", "src/deep", "src/deep/a"}
    assert workspaces.rewind("main", entries, ALICE) == []
    assert (folder / "main").objects() == {"": b"", "made/": b"", "src/deep/a": b"1"}
    assert versions.tree_at("main").keys() == entries.keys()
    assert workspaces.rewind("main", dict.fromkeys(entries), ALICE) == []
    assert (folder / "main").objects() == {"": b""}


def test_a_folder_does_not_end_while_a_file_is_written_into_it(
    workspaces: ObjectWorkspaces, store: SharedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last file is removed at the same time."""
    assert workspaces.history is not None
    handle = handle_of(workspaces)
    handle.write(MAIN + "d/last", "1")
    look, threads = store.holds_any, list[Thread]()

    def look_before_a_write(prefix: str) -> bool:
        found = look(prefix)
        if not found and not threads:
            threads.append(Thread(target=lambda: handle.write(MAIN + "d/new", "2")))
            threads[0].start()
            threads[0].join(1)
        return found

    monkeypatch.setattr(store, "holds_any", look_before_a_write)
    handle.delete(MAIN + "d/last")
    threads[0].join()
    assert workspaces.history.store.tree_at("main").keys() == {"d", "d/new"}


def test_a_removal_whose_answer_was_lost_is_recorded(workspaces: ObjectWorkspaces, bucket: Bucket) -> None:
    """It is sent again, and refused then, as nothing is there."""
    assert workspaces.history is not None
    handle = handle_of(workspaces)
    handle.write(MAIN + "a", "1")
    bucket.refuse("DELETE", "InternalError", 500, times=1, late=True)
    handle.delete(MAIN + "a")
    assert [change.kind for change in workspaces.history.store.changes("main", "a")] == [Kind.DELETE, Kind.WRITE]


def test_other_names_than_paths_are_left_alone(workspaces: ObjectWorkspaces, folder: BucketFolder) -> None:
    """Names that REST does not have are recorded, and come back; keys that are no paths stay where they are."""
    assert workspaces.history is not None
    handle = handle_of(workspaces)
    for key in ("star*", "back\\slash", "x//empty", "x/../up", ".cfs-write-1"):
        (folder / f"main/{key}").write_text("theirs")
    handle.write(MAIN + "a", "1")
    tree = workspaces.history.store.tree_at("main")
    assert tree.keys() == {"star*", "back\\slash", "a"}
    (folder / "main/star*").unlink()
    workspaces.rewind("main", {"star*": tree["star*"], "a": None}, ALICE)
    assert sorted(key for key in folder.objects() if key.startswith("main/")) == [
        *("main/.cfs-write-1", "main/back\\slash", "main/star*", "main/x/../up", "main/x//empty")
    ]


def test_moves_and_copies_are_recorded_without_reading_them(workspaces: ObjectWorkspaces, bucket: Bucket) -> None:
    assert workspaces.history is not None
    handle = handle_of(workspaces)
    for number in range(5):
        handle.write(f"{MAIN}src/{number}", f"{number}")
    before = bucket.requests_by_method()
    handle.copy(MAIN + "src", MAIN + "copy")
    handle.move(MAIN + "src/0", MAIN + "moved")
    reads = bucket.requests_by_method()["GET"] - before["GET"]
    workspaces.history.look("main")
    assert [change.kind for change in workspaces.history.store.changes("main", limit=2)] == [Kind.MOVE, Kind.COPY]
    assert reads < 30, "these are listings"


REQUESTS = {"new": (9, 7), "replace": (6, 5), "read": (4, 4)}
"""Requests to the bucket with and without versions; docs/how-to/shared-workspaces.md has them, too."""


@pytest.mark.parametrize("versions", [True, False])
def test_a_small_write_takes_few_requests_to_the_bucket(bucket: Bucket, versions: bool) -> None:
    place = f"s3://{NAME}/{secrets.token_hex(4)}"
    flags = () if versions else ("--no-versions",)
    with serving(*SCRIPTED, "--data-dir", "temporary", "--workspaces", place, *flags) as server:
        url = f"{server.url}/v1/files{MAIN}src/a"
        httpx.put(f"{server.url}/v1/files{MAIN}src/first", content=b"1").raise_for_status()
        counted = {}
        for name, method in (("new", "PUT"), ("replace", "PUT"), ("read", "GET")):
            before = bucket.requests()
            httpx.request(method, url, content=name.encode()).raise_for_status()
            counted[name] = bucket.requests() - before
    assert counted == {name: both[0 if versions else 1] for name, both in REQUESTS.items()}


def test_servers_without_a_common_database_keep_what_each_did_and_saw(bucket: Bucket, tmp_path: Path) -> None:
    """What the other one does is a change by an unknown author. After a restart the past is still there."""
    place = f"s3://{NAME}/{secrets.token_hex(4)}"
    flags = (*SCRIPTED, "--workspaces", place)
    with (
        serving(*flags, "--data-dir", str(tmp_path / "one")) as one,
        serving(*flags, "--data-dir", str(tmp_path / "other")) as other,
    ):
        for server, text in ((one, "1"), (other, "2"), (one, "3")):
            httpx.put(f"{server.url}/v1/files{MAIN}a", content=text.encode(), headers={AGENT: "main"})
        logs = [httpx.get(f"{server.url}/v1/versions{MAIN}").json()["changes"] for server in (one, other)]
        assert [[(change["kind"], change["agent"]) for change in changes] for changes in logs] == [
            [("write", "main"), ("outside", None), ("write", "main")],
            [("outside", None), ("write", "main"), ("outside", None)],
        ]
    with serving(*flags, "--data-dir", str(tmp_path / "one")) as one:
        texts = [httpx.get(f"{one.url}/v1/files{MAIN}a", params={"at": number}).text for number in (1, 2, 3)]
        assert texts == ["1", "2", "3"]
        shown = run_cfs("files", "diff", "main@1", "main@3", "--url", one.url)
        assert "+3" in shown.stdout
        for path in (f"/v1/past{MAIN}@2/a", f"/dav{MAIN}.versions/@2/a"):
            assert httpx.get(one.url + path).text == "2"


@pytest.mark.parametrize("running", [True, False])
def test_a_backup_has_the_past_of_the_files(bucket: Bucket, tmp_path: Path, running: bool) -> None:
    """Not the files, which are still in the bucket after a restore. What has changed there since is a version then."""
    place = f"s3://{NAME}/{secrets.token_hex(4)}"
    flags, backup = (*SCRIPTED, "--workspaces", place, "--data-dir"), str(tmp_path / "backup.tar")
    data, other = tmp_path / "data", tmp_path / "other"
    with serving(*flags, str(data)) as server:
        for text in ("1", "2"):
            httpx.put(f"{server.url}/v1/files{MAIN}a", content=text.encode()).raise_for_status()
        if running:
            assert run_cfs("backup", backup, "--url", server.url).returncode == 0
        httpx.put(f"{server.url}/v1/files{MAIN}a", content=b"3").raise_for_status()
    if not running:
        assert run_cfs("backup", backup, CFS_DATA_DIR=str(data), CFS_WORKSPACES=place).returncode == 0
    assert run_cfs("store", "check", backup).returncode == 0
    assert run_cfs("restore", backup, CFS_DATA_DIR=str(other), CFS_WORKSPACES=place).returncode == 0
    with serving(*flags, str(other)) as server:
        changes = httpx.get(f"{server.url}/v1/versions{MAIN}").json()["changes"]
        assert [change["kind"] for change in changes] == ["outside" if running else "write", "write", "write"]
        texts = [httpx.get(f"{server.url}/v1/files{MAIN}a", params={"at": at}).text for at in ("1", "2", "3")]
        assert texts == ["1", "2", "3"]


async def test_a_copy_that_could_not_be_removed_is_removed_before_the_next_one(
    bucket: Bucket, folder: BucketFolder, tmp_path: Path
) -> None:
    """Its session was not made, and the bucket did not answer when its files were to go."""
    async with stored(tmp_path, folder) as server:
        await said(server, "main", "first")
        await put(server, "main/a.txt", "one")
        await said(server, "taken", "first")
        bucket.refuse("DELETE", "InternalError", 500)
        try:
            refused = await server.client.post("/v1/sessions/main/fork", json={"id": "taken"})
        finally:
            bucket.accept()
        assert (refused.status_code, (folder / "taken/a.txt").exists()) == (503, True)
        assert (await server.client.post("/v1/sessions/main/fork", json={})).json()["id"] == "main-2"
        assert sorted(path.name for path in folder.iterdir()) == ["main", "main-2"]


def test_a_bucket_that_is_away_changes_no_version(bucket: Bucket, workspaces: ObjectWorkspaces) -> None:
    """Its files do not count as deleted."""
    assert workspaces.history is not None
    handle = handle_of(workspaces)
    handle.write(MAIN + "a", "1")
    bucket.refuse("GET", "InternalError", 500)
    try:
        with pytest.raises(Exception, match="does not answer"):
            workspaces.history.look("main")
    finally:
        bucket.accept()
    workspaces.history.look("main")
    assert workspaces.history.store.last("main") == 1
