"""Two callers by WebDAV: each has its own, whatever the method, the spelling or the Destination (G9, W5)."""

import asyncio
import json
import re
import shutil
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from cfs_filesystem import OPERATIONS, Grant
from tests.server.guests import Guest, guests
from tests.server.support import ServerHarness, running_server
from tests.webdav.wire import LOCK, METHODS, Dav

GIBIBYTE = 1 << 30
BODIES = {
    "PROPPATCH": b"<P:propertyupdate xmlns:P='DAV:'><P:set><P:prop><x xmlns='u:'/></P:prop></P:set></P:propertyupdate>",
    "LOCK": LOCK,
    "PUT": b"intruder",
}
SECRETS = ("/sessions/secret", "/sub_sessions/secret", "/sub_sessions/secret/child", "/workspaces/secret")
HIDDEN = (*SECRETS, "/workspaces/secret/file", "/workspaces/secret/deep/file")
ABSENT = tuple(path.replace("secret", "absent") for path in HIDDEN)


@dataclass(frozen=True, slots=True)
class Two:
    """A server, the owner of everything called `secret`, and a caller with rights elsewhere only."""

    server: ServerHarness
    owner: Dav
    other: Dav
    guest: Guest


@pytest_asyncio.fixture
async def two() -> AsyncIterator[Two]:
    """Fill a server."""
    mine = [Grant(prefix=f"/{kind}/mine", ops=OPERATIONS) for kind in ("sessions", "workspaces")]
    everything = [Grant(prefix="/", ops=OPERATIONS)]
    async with running_server() as server, guests(server, owner=everything, other=mine) as known:
        owner, other = Dav(known["owner"].client), Dav(known["other"].client)
        for name in ("secret", "mine"):
            await known["owner"].create(name, transcript=f"User: {name}\nAssistant: yes\n")
            await known["owner"].create(f"{name}/child")
            assert (await owner("MKCOL", f"/workspaces/{name}")).status_code == 201
            assert (await owner("MKCOL", f"/workspaces/{name}/deep")).status_code == 201
            for file in ("file", "deep/file"):
                assert (await owner("PUT", f"/workspaces/{name}/{file}", name.encode())).status_code == 201
        yield Two(server, owner, other, known["other"])


async def state(two: Two) -> list[bytes]:
    """What there is of the secret."""
    answers = [await two.owner("GET", path) for path in HIDDEN]
    assert [answer.status_code for answer in answers] == [200] * len(HIDDEN)
    return [answer.content for answer in answers]


async def test_each_sees_its_own(two: Two) -> None:
    assert await two.other.names("/sessions/") == ["mine"]
    assert await two.other.names("/sub_sessions/") == ["mine/"]
    assert await two.other.names("/sub_sessions/mine/") == ["child"]
    assert await two.other.names("/workspaces/") == ["mine/"]
    assert await two.other.names("/workspaces/mine/") == ["deep/", "file"]
    assert await two.owner.names("/sessions/") == ["mine", "secret"]


@pytest.mark.parametrize("method", METHODS)
async def test_what_is_hidden_is_as_what_is_not_there(two: Two, method: str) -> None:
    """Status and words are those for a name that does not exist, and nothing has changed."""
    before = await state(two)
    for hidden, absent in zip(HIDDEN, ABSENT, strict=True):
        for slash in ("", "/"):
            answers = [
                await two.other(
                    method,
                    path + slash,
                    BODIES.get(method, b""),
                    depth="0",
                    destination=f"/dav{path}-2",
                    lock_token="<x>",  # noqa: S106 - no secret
                )
                for path in (hidden, absent)
            ]
            assert answers[0].status_code == answers[1].status_code, (method, hidden)
            refused = (400, 403, 404, 405, 409) if method != "OPTIONS" else (200, 404)
            assert answers[0].status_code in refused, (method, hidden, answers[0].status_code)
            assert answers[0].text.replace("secret", "absent") == answers[1].text
    assert await state(two) == before
    assert "absent" not in (await two.owner("GET", "/sessions/")).text


@pytest.mark.parametrize(("method", "overwrite"), list(product(("COPY", "MOVE"), ("T", "F"))))
async def test_no_destination_leads_to_what_is_hidden(two: Two, method: str, overwrite: str) -> None:
    before = await state(two)
    kinds = {"/sessions/mine": 0, "/sub_sessions/mine/child": 2, "/workspaces/mine/file": 4, "/workspaces/mine/deep": 3}
    for source, target in product(kinds, HIDDEN):
        for spelled in (target, target.replace("secret", "%73ecret"), f"{two.server.url}/dav{target}"):
            where = spelled if spelled.startswith("http") else f"/dav{spelled}"
            answer = await two.other(method, source, destination=where, overwrite=overwrite)
            assert answer.status_code in (403, 404, 409, 412, 502), (source, spelled, answer.status_code)
    assert await state(two) == before


@pytest.mark.parametrize("path", ["/workspaces/secret/file", "/sessions/secret", "/sub_sessions/secret/child"])
async def test_who_may_not_write_is_refused_before_its_body_is_read(two: Two, path: str) -> None:
    """The answer comes although most of the announced body never does."""
    url = httpx.URL(two.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        token = two.other.client.headers["authorization"]
        head = f"PUT /dav{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: 100000\r\n\r\n"
        writer.write(head.encode() + b"the beginning")
        async with asyncio.timeout(30):
            status = await reader.readline()
    finally:
        writer.close()
    whole = await two.other("PUT", path, b"all of it")
    assert int(status.split()[1]) == whole.status_code in (403, 404)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "headers",
    [
        ("Expect: 100-continue",),
        ("Expect:",),
        ("Expect:", "Idempotency-Key: k"),
        ("Expect:", "Transfer-Encoding: chunked"),
    ],
)
@pytest.mark.parametrize("path", ["/workspaces/secret/file", "/sessions/secret"])
async def test_a_huge_body_of_who_may_not_write_is_not_read(
    two: Two, tmp_path: Path, path: str, headers: tuple[str, ...]
) -> None:
    """curl gets the answer and stops: what it has sent by then fits into buffers."""
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(GIBIBYTE)
    before = await state(two)
    token = f"Authorization: {two.other.client.headers['authorization']}"
    flags = [flag for header in (token, *headers) for flag in ("-H", header)]
    shown = "\n%{http_code} %{size_upload} %header{connection}"
    curl = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "--noproxy", "*", "-T", str(huge), "-w", shown, *flags, f"{two.server.url}/dav{path}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await curl.communicate()
    body, figures = out.decode().rsplit("\n", 1)
    status, sent, connection = figures.split(" ")
    assert curl.returncode == 0, err
    assert int(status) == 404
    assert (connection == "close") == ("Transfer-Encoding: chunked" not in headers)
    assert int(sent) == 0 if headers == ("Expect: 100-continue",) else int(sent) < GIBIBYTE // 4
    whole = await two.other("PUT", path, b"all of it")
    assert json.loads(body) == whole.json()
    assert whole.status_code == 404
    assert await state(two) == before


@pytest.mark.parametrize("name", ["/sessions/secret", "/workspaces/secret/file"])
async def test_a_small_body_of_who_may_not_write_leaves_the_connection_open(two: Two, name: str) -> None:
    """The rest of it is dropped, and the next request on the connection is answered."""
    url, token = httpx.URL(two.server.url), two.other.client.headers["authorization"]
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"Host: localhost\r\nAuthorization: {token}\r\n"
    try:
        async with asyncio.timeout(30):
            writer.write(f"PUT /dav{name} HTTP/1.1\r\n{head}Content-Length: 100000\r\n\r\nbegin".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"connection: close" not in answer
            length = re.search(rb"content-length: (\d+)", answer)
            assert length
            await reader.readexactly(int(length[1]))
            writer.write(b"x" * 99_995 + f"GET /v1/whoami HTTP/1.1\r\n{head}\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/workspaces/secret/file", "/sessions/secret"])
async def test_a_client_that_does_not_listen_cannot_send_a_body_without_end(two: Two, path: str) -> None:
    """It never reads the answer and sends on, in chunks, until the server ends the connection."""
    url, token = httpx.URL(two.server.url), two.other.client.headers["authorization"]
    head = f"PUT /dav{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"

    def send() -> int:
        with socket.create_connection((url.host, url.port), timeout=60) as wire:
            wire.sendall(head.encode())
            for number in range(1024):
                try:
                    wire.sendall(chunk)
                except ConnectionError:
                    return number
        return 1024

    assert await asyncio.to_thread(send) < 256


async def test_a_lock_of_another_cannot_be_taken_over(two: Two) -> None:
    two.guest.may(Grant(prefix="/workspaces/", ops=OPERATIONS))
    token = (await two.owner.lock("/workspaces/mine/file")).headers["lock-token"]
    assert (await two.other("UNLOCK", "/workspaces/mine/file", lock_token=token)).status_code == 403
    assert (await two.other("PUT", "/workspaces/mine/file", b"x", **{"if": f"({token})"})).status_code == 412
    assert (await two.other("PUT", "/workspaces/mine/file", b"x")).status_code == 423
    assert (await two.owner("PUT", "/workspaces/mine/file", b"x", **{"if": f"({token})"})).status_code == 204


async def test_who_may_only_read_changes_nothing_and_locks_nothing(two: Two) -> None:
    reading: list[Grant] = [
        Grant(prefix=p, ops={"list", "file", "read"}) for p in ("/sessions/mine", "/workspaces/mine")
    ]
    two.guest.may(*reading)
    for path in ("/sessions/mine", "/workspaces/mine/file"):
        before = (await two.other("GET", path)).content
        for method in ("PUT", "DELETE", "MOVE", "LOCK"):
            answer = await two.other(method, path, BODIES.get(method, b""), destination=f"/dav{path}-2", depth="0")
            assert answer.status_code == 403, (method, path, answer.text)
        assert (await two.owner("GET", path)).content == before
        found = await two.other.set(path, "{u:}x", "1")
        assert found[f"/dav{path}"].statuses["{u:}x"] == 403
        copied = await two.other("COPY", path, destination=f"/dav{path}-2")
        assert copied.status_code in (403, 404, 409)


async def test_who_may_only_write_does_not_overwrite_what_it_says_must_not_be_there(two: Two) -> None:
    """It cannot look, so the condition must hold in the write itself."""
    two.guest.may(
        Grant(prefix="/workspaces/mine/file", ops={"write"}), Grant(prefix="/workspaces/mine/deep", ops={"list"})
    )
    assert await two.other.names("/workspaces/mine/") == ["deep/"]
    refused = await two.other("PUT", "/workspaces/mine/file", b"x", if_none_match="*")
    assert refused.status_code == 412
    assert (await two.owner("GET", "/workspaces/mine/file")).content == b"mine"
    assert (await two.other("PUT", "/workspaces/mine/file", b"x")).status_code in (201, 204)


async def test_credentials(two: Two) -> None:
    """The token as the password of Basic, or by Bearer; a wrong one, or none, is told what to send."""
    good = b64encode(b"anybody:cfs_other").decode()
    bare = Dav(two.server.client)
    assert (await bare("PROPFIND", "/sessions/mine", depth="0", authorization=f"Basic {good}")).status_code == 207
    for wrong in (
        {},
        {"authorization": f"Basic {b64encode(b'other:cfs_wrong').decode()}"},
        {"authorization": "Bearer no"},
    ):
        answer = await bare.client.request("PROPFIND", "/dav/sessions/mine", headers={"Depth": "0", **wrong})
        assert answer.status_code == 401
        assert 'Basic realm="cfs"' in answer.headers["www-authenticate"]
