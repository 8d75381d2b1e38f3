"""What a hostile client sends to `/dav` is refused or bounded (W1, G1, H7)."""

import asyncio
import re
import resource
import tracemalloc
from collections.abc import AsyncIterator, Callable

import pytest

from cfs_webdav import storage
from tests.filesystem.hostile_paths import ALL, SOME
from tests.server.support import ServerHarness, running_server
from tests.server.test_hostile import encodings, once
from tests.server.wire import Wire
from tests.webdav.wire import LOCK, METHODS, Dav

NAMED = b"<D:propfind xmlns:D='DAV:'><D:prop><D:getetag/></D:prop></D:propfind>"
BOMB = (
    b'<!DOCTYPE b [<!ENTITY a "'
    + b"a" * 1000
    + b'">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10 if n else b"&a;" * 10) for n in range(9))
    + b"]><D:propfind xmlns:D='DAV:'><D:prop><D:getetag>&a8;</D:getetag></D:prop></D:propfind>"
)
OUTSIDE = (
    b"<!DOCTYPE b [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
    b"<D:propertyupdate xmlns:D='DAV:'><D:set><D:prop><x xmlns='u:'>&x;</x></D:prop></D:set></D:propertyupdate>"
)


async def note(server: ServerHarness) -> Dav:
    """A caller, and a workspace with a file."""
    dav = Dav(server.client)
    assert (await dav("MKCOL", "/workspaces/main")).status_code == 201
    assert (await dav("PUT", "/workspaces/main/note", b"kept")).status_code == 201
    return dav


@pytest.mark.parametrize("document", [BOMB, OUTSIDE, b"<!DOCTYPE x><D:propfind xmlns:D='DAV:'/>", b"no XML", b"<a>"])
@pytest.mark.parametrize("method", ["PROPFIND", "PROPPATCH", "LOCK"])
async def test_documents_with_types_and_those_that_are_none_are_refused(method: str, document: bytes) -> None:
    async with running_server() as server:
        dav = await note(server)
        for body in (document, document.decode().encode("utf-16")):
            answer = await dav(method, "/workspaces/main/note", body, depth="0")
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "application/problem+json"
            assert b"root:" not in answer.content
        found = await dav.find("/workspaces/main/note", depth="0")
        assert "{u:}x" not in found["/dav/workspaces/main/note"].values


async def test_comments_and_instructions_say_nothing() -> None:
    """They are legal XML; a client that sends them gets what it asks for."""
    body = b"<?x y?><D:propfind xmlns:D='DAV:'><!-- b --><D:prop><?z?><D:getetag/><!-- c --></D:prop></D:propfind>"
    async with running_server() as server:
        dav = await note(server)
        answer = await dav("PROPFIND", "/workspaces/main/note", body, depth="0")
        assert answer.status_code == 207
        assert answer.text.count("getetag") == 2


@pytest.mark.parametrize("method", ["PROPFIND", "PROPPATCH", "LOCK", "MKCOL", "COPY"])
async def test_a_large_body_of_anything_but_a_put_is_refused(method: str) -> None:
    """Before it is read, and chunked as well, when it has become too large."""
    async with running_server() as server:
        await note(server)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(1600):
                yield b" " * (64 << 10)

        for content in (b" " * (65 << 10), endless()):
            answer = await server.client.request(method, "/dav/workspaces/main/note", content=content)
            assert answer.status_code == 413, answer.text
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


@pytest.mark.parametrize("name", ["chat1", ".DS_Store"])
async def test_a_body_that_no_session_can_take_is_not_held_in_memory(name: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(80 << 4):
            yield b"x" * (64 << 10)

    async with running_server() as server:
        tracemalloc.start()
        try:
            answer = await server.client.put(f"/dav/sessions/{name}", content=pieces())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:cfs:error:too-large"
        assert peak < 40 << 20
        assert len(server.store) == 0


@pytest.mark.parametrize("body", [b"", NAMED])
async def test_workspaces_are_listed_one_level_at_a_time(body: bytes) -> None:
    """A tree can be of any size, so `infinity`, also by leaving the header out, is refused with the reason's code."""
    async with running_server() as server:
        dav = await note(server)
        for headers in ({"depth": "infinity"}, {}):
            answer = await dav("PROPFIND", "/workspaces/main", body, **headers)
            assert answer.status_code == 403
            assert "propfind-finite-depth" in answer.text
        assert (await dav("PROPFIND", "/workspaces/main", body, depth="2")).status_code == 400


async def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In number, also when they would make new names; in time; and in what is said of the owner."""
    monkeypatch.setattr(storage, "MOST_OF_ONE", 20)
    async with running_server() as server:
        dav = await note(server)
        answers = await asyncio.gather(*(dav.lock(f"/workspaces/main/new{n}") for n in range(60)))
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(201) == 20
        assert statuses.count(507) == 40
        assert len(await dav.names("/workspaces/main/")) == 21
        token = next(answer.headers["lock-token"] for answer in answers if answer.status_code == 201)
        free = await dav("UNLOCK", f"/workspaces/main/new{statuses.index(201)}", lock_token=token)
        assert free.status_code == 204
        eternal = await dav.lock("/workspaces/main/note", timeout="Infinite, Second-4100000000")
        assert eternal.status_code == 200
        assert "Second-599" in eternal.text or "Second-600" in eternal.text
        await dav("UNLOCK", "/workspaces/main/note", lock_token=eternal.headers["lock-token"])
        long = LOCK.replace(b"somebody", b"x" * 3000)
        assert (await dav("LOCK", "/workspaces/main/note", long, depth="0")).status_code == 413


@encodings
async def test_hostile_names_go_nowhere(request: pytest.FixtureRequest, encode: Callable[[str], bytes]) -> None:
    """As paths and as destinations, some by every method: a refusal, or success at just that name of the workspace."""
    names = ALL if encode is once or request.config.getoption("--slow") else SOME
    async with running_server() as server, Wire(server.url) as wire:
        dav = await note(server)
        for name in names:
            target = b"/dav/workspaces/main/" + encode(name.lstrip("/"))
            if re.search(rb"[^\x21-\x7e]", target) or re.split(rb"[?#]", target)[0].rstrip(b"/").endswith(b"/main"):
                continue  # no request line, and no header, can hold it; or it is the workspace
            for method in METHODS if encode is once and name in SOME else ("GET", "PUT", "DELETE"):
                reply = await wire.ask(method, target, Depth="0")
                assert reply.status < 500, (method, target, reply)
            for method in ("COPY", "MOVE"):
                reply = await wire.ask(method, b"/dav/workspaces/main/note", Destination=target.decode())
                assert reply.status < 500, (method, target, reply)
                if reply.status < 300:
                    await dav("PUT", "/workspaces/main/note", b"kept")
        assert (await dav("GET", "/workspaces/main/note")).content == b"kept"
        assert await dav.names("/") == ["questions/", "sessions/", "sub_sessions/", "workspaces/"]
        assert await dav.names("/workspaces/") == ["main/"]
