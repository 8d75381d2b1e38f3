"""`.versions` on WebDAV: the past, read by name and listed nowhere (W3)."""

import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio

from cfs_filesystem import OPERATIONS, Grant
from tests.fuse.support import Stage, names
from tests.server.guests import guests
from tests.server.support import ServerHarness, running_server
from tests.webdav import davmount
from tests.webdav.test_rclone import Rclone
from tests.webdav.wire import LOCK, METHODS, Dav

PAST = "/workspaces/main/.versions"
ONE = "User: one\nAssistant: one\n"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerHarness]:
    """A server without tokens, with a session and a workspace that has four changes."""
    async with running_server() as server:
        await server.client.post("/v1/sessions/main/messages", content=b"one", params={"wait": "true"})
        for path, data in (("src/a.py", b"one"), ("src/a.py", b"one\ntwo"), ("gone.txt", b"gone")):
            assert (await server.client.put(f"/v1/files/workspaces/main/{path}", content=data)).status_code < 300
        assert (await server.client.delete("/v1/files/workspaces/main/gone.txt")).status_code == 204
        yield server


async def names_of(dav: Dav, path: str) -> list[str]:
    """List a folder; of the names of versions only the numbers."""
    listed = [name.removesuffix("/") for name in await dav.names(quote(path))]
    return [f"@{int(name[3:8])}" if name.startswith("%40") else name for name in listed]


async def test_the_past_of_a_workspace_is_listed_and_read(server: ServerHarness) -> None:
    dav = Dav(server.client)
    assert await names_of(dav, f"{PAST}/") == ["@1", "@2", "@3", "@4", "gone.txt", "src"]
    assert await names_of(dav, f"{PAST}/src/a.py/") == ["@1", "@2"]
    assert await names_of(dav, f"{PAST}/@3/") == ["gone.txt", "src"]
    for path in ("@1/src/a.py", "src/@1/a.py", "src/a.py/@1"):
        read = await dav("GET", f"{PAST}/{path}")
        assert (read.text, read.headers["content-type"]) == ("one", "text/x-python; charset=utf-8")
    assert (await dav("GET", f"{PAST}/@3/gone.txt")).text == "gone"
    assert (await dav("GET", f"{PAST}/src/a.py/@2", range="bytes=4-")).text == "two"
    listing = (await dav("GET", f"{PAST}/src/a.py")).text.splitlines()
    assert [name.partition("_")[0] for name in listing] == ["@00002", "@00001"]
    (entry,) = (await dav.find(f"{PAST}/src/a.py/{listing[1]}", depth="0")).values()
    change = (await server.client.get("/v1/versions/workspaces/main/src/a.py")).json()["changes"][1]
    date = format_datetime(datetime.fromtimestamp(int(change["at"]), UTC), usegmt=True)
    assert entry.values["{DAV:}getcontentlength"] == "3"
    assert entry.values["{DAV:}getlastmodified"] == date
    read = await dav("GET", f"{PAST}/src/a.py/{listing[1]}", if_none_match=entry.values["{DAV:}getetag"])
    assert read.status_code == 304
    assert (await dav("HEAD", f"{PAST}/src/a.py/@2")).headers["content-length"] == "7"
    for wrong in ("none", "@9", "@9/src", "@x", "src/a.py/@9", "@1/gone.txt", "@1/src/a.py/x"):
        for method in ("GET", "PROPFIND"):
            assert (await dav(method, f"{PAST}/{wrong}", depth="1")).status_code == 404, (method, wrong)
    assert (await dav("PROPFIND", PAST, depth="infinity")).status_code == 403


async def test_the_past_of_sessions_is_listed_and_read(server: ServerHarness) -> None:
    dav = Dav(server.client)
    await server.client.post("/v1/sessions", json={"id": "main/coder", "transcript": "User: x\n"})
    assert await names_of(dav, "/sessions/.versions/") == ["sessions", "workspaces"]
    assert await names_of(dav, "/sessions/.versions/sessions/") == ["main%252Fcoder", "main"]
    assert await names_of(dav, "/sessions/.versions/workspaces/") == ["main"]
    assert await names_of(dav, "/sessions/.versions/sessions/main/") == ["@0", "@1", "@2"]
    assert (await dav("GET", "/sessions/.versions/sessions/main/@2")).text == ONE
    assert (await dav("GET", "/sessions/.versions/sessions/main/@1")).text == "User: one\n"
    assert (await dav("GET", "/sessions/.versions/sessions/main%252Fcoder/@0")).text == "User: x\n"
    assert (await dav("GET", "/sessions/.versions/workspaces/main/@1/src/a.py")).text == "one"


@pytest.mark.parametrize("path", ["/sessions/.versions/sessions/main/@1", f"{PAST}/src/a.py/@1", PAST, f"{PAST}/new"])
async def test_nothing_can_be_changed(server: ServerHarness, path: str) -> None:
    dav = Dav(server.client)
    changes = (await server.client.get("/v1/versions/workspaces/main")).json()
    for method in set(METHODS) - {"GET", "HEAD", "OPTIONS", "PROPFIND"}:
        body = LOCK if method == "LOCK" else b"x"
        refused = await dav(method, path, body, destination="/dav/workspaces/main/b")
        assert refused.status_code == 403, (method, refused.text)
        assert "is the past, which can only be read" in refused.json()["detail"]
    for method in ("COPY", "MOVE"):
        source = "/sessions/main" if path.startswith("/sessions/") else "/workspaces/main/src/a.py"
        refused = await dav(method, source, destination=f"/dav{path}")
        assert refused.status_code == 403, refused.text
    assert (await server.client.get("/v1/versions/workspaces/main")).json() == changes


async def test_no_listing_shows_the_past(server: ServerHarness) -> None:
    dav = Dav(server.client)
    assert await dav.names("/workspaces/main/") == ["src/"]
    assert await dav.names("/sessions/") == ["main"]
    listed = (await server.client.get("/v1/files")).json()["files"]
    assert [file["path"] for file in listed] == ["/sessions/main", "/workspaces/main/src/a.py"]
    assert (await dav("COPY", "/workspaces/main/", destination="/dav/workspaces/copy/")).status_code == 201
    assert await dav.names("/workspaces/copy/") == ["src/"]
    assert (await dav("DELETE", "/workspaces/main/src/")).status_code == 204
    assert (await dav("GET", f"{PAST}/@3/src/a.py")).text == "one\ntwo", "deleting the files keeps their past"


async def test_a_workspace_may_have_a_file_of_that_name(server: ServerHarness) -> None:
    """What a program has made is shown as on all interfaces; the past is below the sessions then."""
    dav = Dav(server.client)
    assert (await server.client.put("/v1/files/workspaces/main/.versions", content=b"mine")).status_code == 201
    assert (await dav("GET", PAST)).text == "mine"
    assert ".versions" in await dav.names("/workspaces/main/")
    assert (await dav("PUT", PAST, b"changed")).status_code == 204
    assert (await dav("GET", "/sessions/.versions/workspaces/main/.versions/@5")).text == "mine"


async def test_the_rights_of_the_present_hold(server: ServerHarness) -> None:
    one = Grant(prefix="/workspaces/main/src/", ops=frozenset({"list", "file", "read_binary"}))
    async with guests(server, admin=[Grant(prefix="/", ops=OPERATIONS)], one=[one], none=[]) as found:
        guest, other = Dav(found["one"].client), Dav(found["none"].client)
        assert await names_of(guest, f"{PAST}/src/a.py/") == ["@1", "@2"]
        assert await names_of(guest, f"{PAST}/") == ["@1", "@2", "src"]
        assert (await guest("GET", f"{PAST}/@3/src/a.py")).text == "one\ntwo"
        assert await names_of(guest, f"{PAST}/@3/") == ["src"]
        assert await names_of(guest, "/sessions/.versions/sessions/") == []
        for path in ("@3/gone.txt", "gone.txt/@3", "gone.txt"):
            for method in ("GET", "PROPFIND"):
                assert (await guest(method, f"{PAST}/{path}", depth="0")).status_code in (403, 404)
        for path in ("", "/@1", "/src/a.py/@1", "/src/a.py", "/@99", "/none"):
            for method in ("GET", "PROPFIND"):
                refused = await other(method, PAST + path, depth="1")
                assert refused.status_code in (403, 404), (method, path)
                unknown = await other(method, PAST.replace("main", "none") + path, depth="1")
                assert refused.text.replace("main", "none") == unknown.text, "a name that is hidden reads like none"


async def test_a_server_without_versions_says_so(tmp_path: Path) -> None:
    async with running_server(versions=False, data_dir=tmp_path) as server:
        await server.client.put("/v1/files/workspaces/main/a", content=b"x")
        await server.client.post("/v1/sessions/main/messages", content=b"one", params={"wait": "true"})
        dav = Dav(server.client)
        for method in ("GET", "PROPFIND"):
            for path in (PAST, f"{PAST}/@1/a"):
                answer = await dav(method, path, depth="1")
                assert answer.status_code == 501
                assert "versions of files are not kept here" in answer.json()["detail"]
        assert (await dav("GET", "/sessions/.versions/sessions/main/@2")).text == ONE, "transcripts have versions"


@pytest.fixture
def workspace(stage: Stage, name: str) -> str:
    """A workspace with two changes of a file, for programs."""
    for data in (b"one\n", b"two\n"):
        assert stage.client.put(f"/v1/files/workspaces/{name}/src/a.py", content=data).status_code < 300
    return name


def test_curl_reads_the_past(stage: Stage, workspace: str) -> None:
    url = f"{stage.url}/dav/workspaces/{workspace}/.versions/src/a.py/@1"
    read = subprocess.run(["curl", "-s", url], capture_output=True, text=True, timeout=60, check=True)
    assert read.stdout == "one\n"
    sent = subprocess.run(
        ["curl", "-s", "-T", "-", "-w", "%{http_code}", url],
        input="x",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sent.stdout.endswith("403")


@pytest.mark.skipif(davmount.reason_to_skip() is not None, reason=str(davmount.reason_to_skip()))
def test_davfs2_mounts_the_past(stage: Stage, workspace: str, tmp_path: Path) -> None:
    """It knows only what is listed, so the folder itself is mounted."""
    with davmount.mounting(f"{stage.url}/dav/workspaces/{workspace}/.versions", tmp_path / "past") as mount:
        first, second = names(mount / "src/a.py")
        assert (mount / "src/a.py" / first).read_text() == "one\n"
        assert (mount / second.removesuffix(".py") / "src/a.py").read_text() == "two\n"
        change = stage.client.get(f"/v1/versions/workspaces/{workspace}").json()["changes"][1]
        assert int((mount / "src/a.py" / first).stat().st_mtime) == int(change["at"])
        assert mount.shell(f"cp -a $M/{first.removesuffix('.py')} {tmp_path}/copy").stderr == ""
        assert (tmp_path / "copy/src/a.py").read_text() == "one\n"


def test_rclone_copies_the_past_only_when_it_is_named(stage: Stage, workspace: str, tmp_path: Path) -> None:
    rclone = Rclone(f"{stage.url}/dav/workspaces", tmp_path)
    rclone.done("sync", f":webdav:{workspace}", "now")
    assert [path.relative_to(tmp_path / "now").as_posix() for path in (tmp_path / "now").rglob("*")] == [
        "src",
        "src/a.py",
    ]
    rclone.done("copy", f":webdav:{workspace}/.versions/@1", "then")
    assert (tmp_path / "then/src/a.py").read_text() == "one\n"
    rclone.done("sync", "--ignore-times", "then", f":webdav:{workspace}")
    assert stage.client.get(f"/v1/files/workspaces/{workspace}/src/a.py").text == "one\n"
    assert len(stage.client.get(f"/v1/versions/workspaces/{workspace}").json()["changes"]) == 3, (
        "the sync is one more change"
    )
