"""Where the files of workspaces are: they outlive the server, or end with it, and are on a disk that can be full."""

import asyncio
import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import pytest
from lxml import etree

from cfs.errors import CfsError, PreconditionFailed, StorageFull, TooLarge
from cfs_filesystem import (
    OPERATIONS,
    ConflictError,
    EntryMeta,
    Grant,
    InMemoryFileSystem,
    RouterFileSystem,
)
from cfs_server.access.auth import Principal
from cfs_server.domain.ids import WORKSPACES
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.sessions.authorization import Authorization
from cfs_server.sessions.store import SessionStore
from cfs_server.workspaces.file_service import Condition, Files, etag_of
from cfs_server.workspaces.workspaces import DiskWorkspaces, WorkspaceUsage
from tests.odd_trees import emptied, nest
from tests.server.support import Process, run_cfs, serving, until

__all__ = ["emptied"]
SCRIPTED = ("--engine", "scripted")
NOTE = "/v1/files/workspaces/main/deep/note"


def put(server: Process, data: bytes, url: str = NOTE) -> httpx.Response:
    return httpx.put(server.url + url, content=data, timeout=60)


def stopped(server: Process, number: signal.Signals = signal.SIGTERM) -> None:
    server.signal(number)
    assert server.ended()[0] == 0


ODD = (b"\xff", b"a\nb", b"\x01", b"\xed\xa0\x80", b"back\\slash", b"star*", "\uff0f".encode(), b"d\xfe/in", b"e/\xfe")
"""Names of files that no logical path can name: listings pass over them."""
NAMES = ("plain", "x" * 255, "\u202etxt", "%ff", "#", '"&<', "\ufffe", "e\u0301", " ")


def test_names_that_are_no_paths_hide_nothing_else(tmp_path: Path) -> None:
    files = [tmp_path / "workspaces/main" / os.fsdecode(name) for name in (*ODD, *map(str.encode, NAMES))]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    with (
        serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        paths = [f"/workspaces/main/{name}" for name in NAMES]
        listed = client.get("/v1/files", params={"prefix": "/workspaces/main/"})
        assert sorted(file["path"] for file in listed.json()["files"]) == sorted(paths)
        shown = client.request("PROPFIND", "/dav/workspaces/main/", headers={"Depth": "1"})
        assert shown.status_code == 207
        hrefs = {unquote(element.text or "") for element in etree.fromstring(shown.content).iter("{DAV:}href")}
        assert hrefs == {f"/dav{path}" for path in ["/workspaces/main/", "/workspaces/main/e/", *paths]}
        for path in map(quote, paths):
            assert client.get(f"/v1/files{path}").text == "x"
            assert client.get(f"/dav{path}").text == "x"
        for name in map(quote, ODD):
            for face in ("/v1/files", "/dav"):
                for method in ("GET", "PUT", "DELETE"):
                    answer = client.request(method, f"{face}/workspaces/main/{name}")
                    assert answer.status_code in (400, 404), (method, face, name)
    assert all(file.exists() for file in files)


def test_folders_that_are_too_deep_are_refused_and_those_on_the_disk_do_no_harm(tmp_path: Path) -> None:
    """Neither the listings nor the start of the server recurse into what a command has made there."""
    workspace = tmp_path / "workspaces/main"
    for name in ("deep", ".cfs-write-left"):
        (workspace / name).mkdir(parents=True)
        nest(workspace / name)
    with (
        serving(*SCRIPTED, "--data-dir", str(tmp_path)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for interface in ("/v1/files", "/dav"):
            refused = client.put(f"{interface}/workspaces/main{'/d' * 1_200}", content=b"x")
            assert (refused.status_code, "too deep" in refused.text) == (400, True)
        assert put(server, b"x").status_code == 201
        listed = client.get("/v1/files", params={"prefix": "/workspaces/main/"}).json()["files"]
        assert [file["path"] for file in listed] == ["/workspaces/main/deep/note"]
        for method, path in (("PROPFIND", "deep/"), ("PROPFIND", ""), ("MOVE", "deep/"), ("DELETE", "moved/")):
            headers = {"Depth": "1", "Destination": f"{server.url}/dav/workspaces/main/moved/"}
            if method == "DELETE":
                del headers["Depth"]
            elif method == "MOVE":
                headers["Depth"] = "infinity"
            assert client.request(method, f"/dav/workspaces/main/{path}", headers=headers).status_code < 500
    assert (workspace / "moved").is_dir()


def test_files_below_the_data_folder_outlive_the_server(tmp_path: Path) -> None:
    data = tmp_path / "not" / "there" / "yet"
    with serving(*SCRIPTED, "--data-dir", str(data)) as server:
        etag = put(server, b"kept").headers["ETag"]
        stopped(server)
    assert (data / "workspaces/main/deep/note").read_bytes() == b"kept"
    with serving(*SCRIPTED, "--data-dir", str(data)) as server:
        read = httpx.get(server.url + NOTE, timeout=60)
        assert (read.content, read.headers["ETag"]) == (b"kept", etag)
        assert put(server, b"changed").status_code == 200
        server.signal(signal.SIGKILL)
        server.ended()
    with serving(*SCRIPTED, "--data-dir", str(data)) as server:
        assert httpx.get(server.url + NOTE, timeout=60).content == b"changed"
        stopped(server)


def test_unless_said_otherwise_files_are_in_the_users_data_folder_for_this_user_only(tmp_path: Path) -> None:
    home = {"CFS_DATA_DIR": "", "XDG_DATA_HOME": str(tmp_path)}
    with serving(*SCRIPTED, **home) as server:
        put(server, b"kept")
        stopped(server)
    assert (tmp_path / "cfs/workspaces/main/deep/note").read_bytes() == b"kept"
    assert (tmp_path / "cfs").stat().st_mode & 0o777 == 0o700


def test_a_data_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/below"):
        refused = run_cfs("serve", *SCRIPTED, "--port", "0", "--data-dir", str(folder))
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"data folder {folder}: " in refused.stderr
        assert "--data-dir" in refused.stderr


def test_what_people_put_there_is_seen_and_links_are_not(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret of the house")
    main = tmp_path / "data/workspaces/main"
    main.mkdir(parents=True)
    (main / "by hand").write_text("hello")
    (main / "link").symlink_to(secret)
    (main / "up").symlink_to(tmp_path)
    with serving(*SCRIPTED, "--data-dir", str(tmp_path / "data")) as server:
        listed = httpx.get(f"{server.url}/v1/files", timeout=60).json()["files"]
        assert [info["path"] for info in listed] == ["/workspaces/main/by hand"]
        for name in ("link", "up/secret"):
            for method in ("GET", "PUT", "DELETE"):
                refused = httpx.request(method, f"{server.url}/v1/files/workspaces/main/{name}", timeout=60)
                assert refused.status_code in (400, 404)
                assert str(tmp_path) not in refused.text
                assert "house" not in refused.text
        stopped(server)
    assert secret.read_text() == "secret of the house"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_of_a_temporary_data_folder_nothing_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    with serving(*SCRIPTED, TMPDIR=str(tmp_path)) as server:
        assert put(server, b"short-lived").status_code == 201
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0, "nobody else looks into it"
        assert (folder / "workspaces/main/deep/note").read_bytes() == b"short-lived"
        stopped(server, number)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_disk_does_not_take_is_told_and_the_one_before_stays(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--data-dir", str(tmp_path), "--log-level", "error") as server:  # its log is limited, too
        put(server, b"before")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        refused = put(server, b"x" * 1001)
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:cfs:error:too-large")
        assert str(tmp_path) not in refused.text
        assert httpx.get(server.url + NOTE, timeout=60).content == b"before"
        assert put(server, b"x" * 1000).status_code == 200
        assert [path.name for path in (tmp_path / "workspaces/main/deep").iterdir()] == ["note"]
        stopped(server)


# -- directories and streams ------------------------------------------------------------------------------------------


def test_a_workspace_is_a_directory_that_is_made_moved_and_removed(tmp_path: Path) -> None:
    handle = DiskWorkspaces(tmp_path).create_handle([Grant(prefix=WORKSPACES, ops=OPERATIONS)])
    assert handle.scan(WORKSPACES) == []
    handle.make_directory("/workspaces/main")
    assert handle.scan("/workspaces/main") == []
    handle.write_from("/workspaces/main/deep/note", [b"x"])
    handle.move("/workspaces/main", "/workspaces/other")
    assert [meta["path"] for meta in handle.scan(WORKSPACES)] == ["/workspaces/other"]
    assert handle.read_file("/workspaces/other/deep/note") == "x"
    handle.delete("/workspaces/other/deep/note")
    handle.remove_directory("/workspaces/other/deep")
    handle.remove_directory("/workspaces/other")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_never_in_the_place_of_a_workspace(tmp_path: Path) -> None:
    """Neither streamed nor moved there; the source is not read for it."""
    disk = DiskWorkspaces(tmp_path)
    handle = disk.create_handle([Grant(prefix=WORKSPACES, ops=OPERATIONS)])
    handle.write("/workspaces/main/note", "x")
    source = iter([b"x"])
    with pytest.raises(ConflictError, match="names a workspace"):
        handle.write_from("/workspaces/note", source)
    assert next(source) == b"x"
    for overwrite in (True, False):
        with pytest.raises(ConflictError, match="names a workspace"):
            handle.move("/workspaces/main/note", "/workspaces/note", overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_what_changes_how_much_is_stored_is_counted(tmp_path: Path) -> None:
    """Streams and moves as well: a file that is moved to where others may write counts for them."""
    disk = DiskWorkspaces(tmp_path)
    handle = disk.create_handle([Grant(prefix=WORKSPACES, ops=OPERATIONS)])
    handle.write_from("/workspaces/a/large", [b"x" * 600, b"x" * 400])
    assert disk.changes == 1
    narrow = disk.create_handle([Grant(prefix="/workspaces/b/", ops=OPERATIONS)])
    usage = WorkspaceUsage(narrow, disk)
    with usage.room("/workspaces/b/new", 100, 1000):
        pass
    handle.make_directory("/workspaces/b")
    handle.move("/workspaces/a/large", "/workspaces/b/large")
    assert disk.changes == 2
    with pytest.raises(StorageFull), usage.room("/workspaces/b/new", 950, 1000):
        pass
    with pytest.raises(ConflictError):
        handle.move("/workspaces/b/large", "/workspaces/b/large")
    assert disk.changes == 2


class SlowDisk(DiskWorkspaces):
    """Takes its time before a write or a deletion: a caller that does not wait for it is sure to come in between."""

    def _write_from_impl(self, path: str, source: Iterable[bytes], overwrite: bool) -> EntryMeta:
        time.sleep(0.02)
        return super()._write_from_impl(path, source, overwrite)

    def _delete_impl(self, path: str) -> None:
        time.sleep(0.02)
        super()._delete_impl(path)


async def test_nobody_comes_in_between_the_look_at_a_version_and_its_change(tmp_path: Path) -> None:
    """Of many that write and delete one version at once, one does."""
    disk = SlowDisk(tmp_path)
    handle = disk.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    files = Files(Authorization("bob", handle), WorkspaceUsage(handle, disk), None)
    path = "/workspaces/main/note"
    first = etag_of((await files.write(path, BytesIO(b"before"), overwrite=True, condition=None)).meta)
    condition = Condition(lambda meta: etag_of(meta) == first, "If-Match")

    async def attempt(number: int) -> bool:
        try:
            if number % 2:
                await files.delete(path, condition)
            else:
                await files.write(path, BytesIO(f"writer {number}".encode()), overwrite=True, condition=condition)
        except PreconditionFailed:
            return False
        return True

    assert sum(await asyncio.gather(*map(attempt, range(10)))) == 1


class FullDisk(InMemoryFileSystem):
    """Reads well and takes nothing, for a reason."""

    def __init__(self, number: int) -> None:
        super().__init__([WORKSPACES])
        self._number = number

    def _write_impl(self, path: str, data: bytes, overwrite: bool) -> EntryMeta:  # noqa: ARG002
        raise OSError(self._number, os.strerror(self._number), path)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EFBIG, TooLarge)]
)
async def test_a_full_disk_is_no_defect(tmp_path: Path, number: int, kind: type[CfsError]) -> None:
    handle = RouterFileSystem({WORKSPACES: FullDisk(number)}).create_handle([Grant(prefix="/", ops=OPERATIONS)])
    files = Files(Authorization("bob", handle), WorkspaceUsage(handle, DiskWorkspaces(tmp_path)), None)
    with pytest.raises(kind, match="/workspaces/main/a"):
        await files.write("/workspaces/main/a", BytesIO(b"x"), overwrite=True, condition=None)


async def test_any_other_failure_of_the_disk_stays_one(tmp_path: Path) -> None:
    handle = RouterFileSystem({WORKSPACES: FullDisk(errno.EIO)}).create_handle([Grant(prefix="/", ops=OPERATIONS)])
    files = Files(Authorization("bob", handle), WorkspaceUsage(handle, DiskWorkspaces(tmp_path)), None)
    with pytest.raises(OSError, match="Input/output"):
        await files.write("/workspaces/main/a", BytesIO(b"x"), overwrite=True, condition=None)


class SlowSearches(InMemoryFileSystem):
    """Searches until it is told to stop, and counts how many do so at once."""

    def __init__(self) -> None:
        super().__init__([WORKSPACES])
        self.stop = threading.Event()
        self.now = self.most = 0

    def _read_re_impl(self, path: str, pattern: str, overlap: int | None) -> list[str]:  # noqa: ARG002
        self.now += 1
        self.most = max(self.most, self.now)
        self.stop.wait(30)
        self.now -= 1
        return []


async def test_many_searches_of_one_caller_leave_the_threads_to_the_others(tmp_path: Path) -> None:
    """Twice as many searches as there are threads wait for one another, and no other request waits for them."""
    slow = SlowSearches()
    handle = slow.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    handle.write("/workspaces/main/a", "x")
    principal = Principal("alice", SessionStore(ScriptedEngine()), DiskWorkspaces(tmp_path))
    files = Files(
        Authorization("bob", handle), WorkspaceUsage(handle, DiskWorkspaces(tmp_path)), None, principal.searches
    )
    searches = [asyncio.create_task(files.read_re("/workspaces/main/a", "x", None)) for _ in range(80)]
    await until(lambda: slow.now == 2)
    for _ in range(20):
        assert (await files.file("/workspaces/main/a"))["size"] == 1
    slow.stop.set()
    await asyncio.gather(*searches)
    assert slow.most == 2


def test_what_a_killed_server_has_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    """Only that: the folder of a server that runs stays, and so does one that was made just now."""

    def folders() -> set[Path]:
        return set(tmp_path.glob("cfs-workspaces-*"))

    with serving(*SCRIPTED, TMPDIR=str(tmp_path)) as killed:
        (left,) = folders()
        killed.signal(signal.SIGKILL)
        killed.ended()
    with serving(*SCRIPTED, TMPDIR=str(tmp_path)) as running:
        (here,) = folders() - {left}
        for folder in (left, here):
            os.utime(folder, (0, 0))
        with serving(*SCRIPTED, TMPDIR=str(tmp_path)) as other:
            assert here in folders()
            assert left not in folders()
            other.signal()
            other.ended()
        httpx.put(f"{running.url}{NOTE}", content="kept").raise_for_status()
        running.signal()
        running.ended()
    assert folders() == set()
