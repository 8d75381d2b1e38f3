"""Workspaces in a bucket that several servers share: what one writes the others read, and failures of the store."""

import asyncio
import hashlib
import secrets
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from cfs.errors import StorageFull
from cfs_filesystem import OPERATIONS, Grant, ObjectFileSystem, _s3, open_store
from cfs_filesystem.testing import FileSystemConformance
from cfs_server.domain.ids import WORKSPACES
from cfs_server.workspaces.workspaces import ObjectWorkspaces, WorkspaceUsage
from tests.buckets import NAME, Bucket, bucket_server
from tests.server.files_client import RemoteFileSystem
from tests.server.support import Process, run_cfs, running_server, serving

SCRIPTED = ("--engine", "scripted", "--store", "memory", "--data-dir", "temporary")
NOTE = "/v1/files/workspaces/main/deep/note"


@contextmanager
def server_of(place: str) -> Iterator[Process]:
    with serving(*SCRIPTED, "--workspaces", place) as process:
        yield process


@pytest.fixture(scope="module")
def two(bucket: Bucket) -> Iterator[tuple[Process, Process]]:
    """Two servers, each a process, that have nothing in common but the bucket."""
    place = f"s3://{NAME}/both"
    with server_of(place) as one, server_of(place) as other:
        yield one, other


def test_what_one_server_writes_the_other_reads_at_once(two: tuple[Process, Process]) -> None:
    one, other = two
    made = httpx.put(one.url + NOTE, content=b"first")
    read = httpx.get(other.url + NOTE)
    assert (made.status_code, read.content, read.headers["ETag"]) == (201, b"first", made.headers["ETag"])
    changed = httpx.put(other.url + NOTE, content=b"second", headers={"If-Match": made.headers["ETag"]})
    assert changed.status_code == 200
    stale = httpx.put(one.url + NOTE, content=b"third", headers={"If-Match": made.headers["ETag"]})
    assert (stale.status_code, stale.json()["type"]) == (412, "urn:cfs:error:precondition-failed")
    assert httpx.get(one.url + NOTE).content == b"second"
    assert [httpx.get(server.url + NOTE, params={"at": "1"}).text for server in two] == ["first", "first"]
    listed = httpx.get(f"{one.url}/v1/files", params={"prefix": "/workspaces/main/"}).json()["files"]
    assert [(info["path"], info["version"]) for info in listed] == [
        ("/workspaces/main/deep/note", changed.headers["ETag"].strip('"'))
    ]
    part = httpx.get(one.url + NOTE, headers={"Range": "bytes=2-3"})
    assert (part.status_code, part.content) == (206, b"co")
    assert httpx.delete(one.url + NOTE, headers={"If-Match": changed.headers["ETag"]}).status_code == 204
    assert httpx.get(other.url + NOTE).status_code == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_of_many_that_change_one_version_by_two_servers_one_does(
    two: tuple[Process, Process], method: str
) -> None:
    path = f"/v1/files/workspaces/race/{method}"
    async with httpx.AsyncClient(timeout=60) as client:
        for round_ in range(3):
            version = (await client.put(two[0].url + path, content=f"before {round_}".encode())).headers["ETag"]

            async def attempt(number: int, version: str = version, round_: int = round_) -> int:
                body = f"writer {number} {round_}".encode() if method == "PUT" else None
                url = two[number % 2].url + path
                answer = await client.request(method, url, headers={"If-Match": version}, content=body)
                return answer.status_code

            done = await asyncio.gather(*map(attempt, range(12)))
            assert sorted(done) == [200 if method == "PUT" else 204, *[412] * 11]


async def test_of_many_that_make_a_file_by_two_servers_one_does(two: tuple[Process, Process]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for face in ("/v1/files", "/dav"):

            async def attempt(number: int, face: str = face) -> int:
                url = f"{two[number % 2].url}{face}/workspaces/race{face.replace('/', '-')}"
                answer = await client.put(f"{url}/new", content=f"{number}".encode(), headers={"If-None-Match": "*"})
                return answer.status_code

            for server in two:
                await client.request("MKCOL", f"{server.url}/dav/workspaces/race{face.replace('/', '-')}")
            done = await asyncio.gather(*map(attempt, range(12)))
            assert sorted(done) == [201, *[412] * 11]


# -- large files, and failures --------------------------------------------------------------------------------------


LARGE = 64 << 20


def pieces() -> Iterator[bytes]:
    """Supply the content of a large file, which is not in memory as a whole."""
    for number in range(LARGE >> 20):
        yield bytes([number]) * (1 << 20)


def test_a_large_file_is_never_in_memory_as_a_whole(bucket: Bucket) -> None:
    """Neither when it is written nor when it is read, in slices as the server does."""
    files = ObjectFileSystem(open_store(f"s3://{NAME}/large"), prefix=WORKSPACES)
    handle = files.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    handle.write("/workspaces/main/small", "x")
    tracemalloc.start()
    try:
        handle.write_from("/workspaces/main/large", pieces())
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with handle.open("/workspaces/main/large") as content:
            for piece in pieces():
                assert content.read(1 << 20) == piece
            assert content.read(1) == b""
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    files.close()
    assert (written < LARGE // 2, read < LARGE // 2) == (True, True), (written >> 20, read >> 20)
    assert bucket.unfinished() == 0


def test_a_large_file_goes_from_one_server_to_the_other(two: tuple[Process, Process]) -> None:
    url = "/v1/files/workspaces/main/large"
    made = httpx.put(two[0].url + url, content=b"".join(pieces()), timeout=100)
    assert (made.status_code, made.json()["size"]) == (201, LARGE)
    for face in (url, "/dav/workspaces/main/large"):
        read = httpx.get(two[1].url + face, timeout=100)
        assert hashlib.sha256(read.content).digest() == hashlib.sha256(b"".join(pieces())).digest()
    part = httpx.get(two[1].url + url, headers={"Range": f"bytes={(40 << 20) - 1}-{40 << 20}"})
    assert part.content == bytes([39, 40])
    stale = httpx.put(two[1].url + url, content=b"".join(pieces()), headers={"If-Match": '"older"'}, timeout=100)
    assert stale.status_code == 412


def test_an_upload_that_the_store_does_not_take_leaves_the_file_as_it_was(bucket: Bucket) -> None:
    with server_of(f"s3://{NAME}/refused") as server:
        httpx.put(server.url + NOTE, content=b"before")
        bucket.refuse("PUT", "InternalError", 500)
        try:
            for size in (10, 20 << 20):
                failed = httpx.put(server.url + NOTE, content=b"x" * size, timeout=100)
                assert (failed.status_code, failed.json()["type"]) == (503, "urn:cfs:error:unavailable")
                assert int(failed.headers["Retry-After"]) > 0
                assert "127.0.0.1" not in failed.text
        finally:
            bucket.accept()
        assert httpx.get(server.url + NOTE).content == b"before"
        assert bucket.unfinished() == 0


def test_of_an_upload_whose_server_is_killed_nothing_is_seen(bucket: Bucket) -> None:
    """Its parts are no file. The store deletes them by the rule for its bucket."""
    place = f"s3://{NAME}/killed"
    with server_of(place) as server:
        httpx.put(server.url + NOTE, content=b"before")
        bucket.refuse("PUT", "SlowDown", 503)
        try:
            upload = threading.Thread(target=put_until_it_ends, args=(server.url + NOTE, b"x" * (20 << 20)))
            upload.start()
            while bucket.unfinished() == 0:
                assert upload.is_alive()
            server.signal(signal.SIGKILL)
            upload.join()
        finally:
            bucket.accept()
    assert bucket.unfinished() == 1
    with server_of(place) as server:
        assert httpx.get(server.url + NOTE).content == b"before"
        listed = httpx.get(f"{server.url}/v1/files").json()["files"]
        assert [info["path"] for info in listed] == ["/workspaces/main/deep/note"]


def put_until_it_ends(url: str, data: bytes) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.put(url, content=data, timeout=100)


@pytest.mark.parametrize(
    ("code", "status", "answered"),
    [("XMinioStorageFull", 507, 507), ("AccessDenied", 403, 503), ("EntityTooLarge", 400, 413)],
)
def test_what_the_store_says_is_told(
    bucket: Bucket, two: tuple[Process, Process], code: str, status: int, answered: int
) -> None:
    bucket.refuse("PUT", code, status)
    try:
        for face in ("/v1/files/workspaces/main/note", "/dav/workspaces/main/note"):
            assert httpx.put(two[0].url + face, content=b"x", timeout=60).status_code == answered, face
    finally:
        bucket.accept()


def test_a_store_that_wants_it_slower_is_asked_again(bucket: Bucket, two: tuple[Process, Process]) -> None:
    httpx.put(two[0].url + "/v1/files/workspaces/main/slow", content=b"x").raise_for_status()
    bucket.refuse("GET", "SlowDown", 503, times=2)
    assert httpx.get(two[0].url + "/v1/files/workspaces/main/slow", timeout=60).content == b"x"


def test_a_store_that_is_away_is_unavailable_until_it_is_back() -> None:
    with bucket_server() as first, server_of(f"s3://{NAME}") as server:
        httpx.put(server.url + NOTE, content=b"x").raise_for_status()
        first.process.kill()
        first.process.wait()
        for method, face in (("GET", "/v1/files"), ("PUT", "/v1/files"), ("PUT", "/dav")):
            answer = httpx.request(method, server.url + NOTE.replace("/v1/files", face), timeout=100)
            assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (503, True), (method, face)
        assert httpx.get(f"{server.url}/readyz").status_code == 200, "sessions go on"
        with bucket_server(first.port):  # empty: moto keeps nothing
            assert httpx.get(server.url + NOTE, timeout=100).status_code == 404
            assert httpx.put(server.url + NOTE, content=b"again", timeout=100).status_code == 201


# -- the start --------------------------------------------------------------------------------------------------------


def refused_start(place: str, **env: str) -> str:
    """Return the one line with which the server does not start."""
    ended = run_cfs("serve", *SCRIPTED, "--port", "0", "--workspaces", place, **env)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("cfs: ")]
    assert (ended.returncode, len(lines), ended.stderr.count("Traceback")) == (2, 1, 0), ended.stderr
    return lines[0]


REFUSED: dict[str, tuple[str, str, dict[str, str]]] = {
    "no bucket": ("s3://none/start", "the bucket does not exist", {}),
    "no server": ("s3://shared/start", "does not answer", {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}),
    "no key": ("s3://shared/start", "NoCredentialsError", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}),
    "no store": ("nothing://here", "fsspec cannot open nothing://", {}),
    "no folder": ("/dev/null/below", "Not a directory", {}),
}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("reason", REFUSED)
def test_a_place_that_cannot_be_used_is_told_in_one_line(reason: str) -> None:
    place, said, env = REFUSED[reason]
    line = refused_start(place, **env)
    assert line.startswith(f"cfs: workspaces in {place}: ")
    assert said in line


def test_a_bucket_that_may_not_be_written_is_told_in_one_line(bucket: Bucket) -> None:
    """A trial at the start finds that out, and leaves nothing but the name of the store."""
    place = f"s3://{NAME}/start"
    bucket.refuse("PUT", "AccessDenied", 403)
    try:
        assert "denies access to the server (AccessDenied)" in refused_start(place)
    finally:
        bucket.accept()
    with server_of(place):
        assert [key for key in bucket.stored() if key.startswith("start")] == ["start/.cfs-write-identity"]


def test_the_log_says_what_the_store_compares(bucket: Bucket) -> None:
    """moto compares versions in all requests but two, so this server does it there."""
    with server_of(f"s3://{NAME}/log") as server:
        server.signal()
        code, log = server.ended()
    assert code == 0
    line = next(line for line in log.splitlines() if "workspaces are in an object store" in line)
    assert "complete IfMatch" in line
    assert "copy IfNoneMatch" in line
    assert "put" not in line.partition("except")[2]


def test_a_folder_of_ones_choice(tmp_path: Path) -> None:
    with serving(*SCRIPTED, "--workspaces", str(tmp_path / "shared")) as server:
        assert httpx.put(server.url + NOTE, content=b"x").status_code == 201
    assert (tmp_path / "shared/main/deep/note").read_bytes() == b"x"


# -- listings and limits ----------------------------------------------------------------------------------------------


def test_what_one_may_store_is_counted_by_pages(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request for each page of a listing, at most every ten seconds, or each second where it leads to a refusal."""
    monkeypatch.setattr(_s3, "_LARGEST_PAGE", 10)
    files = ObjectWorkspaces(open_store(f"s3://{NAME}/pages"))
    handle = files.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    for number in range(25):
        handle.write(f"/workspaces/main/{number}", b"x" * 100)
    assert len(handle.list()) == 25
    usage = WorkspaceUsage(handle, files)
    before = bucket.requests()
    for number in range(3):
        with usage.room(f"/workspaces/main/new-{number}", 100, 2900):
            pass
    assert bucket.requests() - before == 3 + 3, "a look at each file, and three pages once"
    with pytest.raises(StorageFull), usage.room("/workspaces/main/more", 1000, 2900):
        pass
    assert usage._bytes + 1000 > 2900
    files.close()


def test_a_limit_counts_what_other_servers_have_stored(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (ObjectWorkspaces(open_store(f"s3://{NAME}/limit")) for _ in range(2))
    handle = one.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    elsewhere = other.create_handle([Grant(prefix="/", ops=OPERATIONS)])
    elsewhere.write("/workspaces/main/a", b"x" * 900)
    usage = WorkspaceUsage(handle, one)
    with pytest.raises(StorageFull), usage.room("/workspaces/main/b", 200, 1000):
        pass
    elsewhere.delete("/workspaces/main/a")
    monkeypatch.setattr("cfs_server.workspaces.workspaces._SHARED_SECONDS", 0)
    with usage.room("/workspaces/main/b", 200, 1000):
        pass
    for each in (one, other):
        each.close()


# -- without a bucket -------------------------------------------------------------------------------------------------


class TestByRestInMemory(FileSystemConformance):
    """Over HTTP, on a loop that no call may block."""

    prefix = "/workspaces/main/"
    complete = False

    @pytest.fixture
    def filesystem(self) -> Iterator[RemoteFileSystem]:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(running_server(workspaces=f"memory://{secrets.token_hex(4)}")) as server,
            httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client,
        ):
            yield RemoteFileSystem(client, server, portal)
