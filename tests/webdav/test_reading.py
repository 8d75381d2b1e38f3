"""GET and HEAD of the mounts of sessions, through a real server (W4, S7)."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate

import httpx
import pytest
from blockbuster import blockbuster_ctx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cfs.errors import CfsError
from cfs_server.dav.get import read, read_session, wait_of
from cfs_server.dav.sessions import RootSessionTree, SubSessionTree
from cfs_server.http.disconnects import ClientLeft, nobody_listens
from cfs_server.http.errors import problem_response
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of
from cfs_server.sessions.session import Session
from tests.filesystem.support import grant
from tests.pacing.clock import Clock
from tests.server.support import until
from tests.webdav.support import Caller, mount

TALK = "User: hello\nAssistant: hi\n"


@dataclass(frozen=True, slots=True)
class Reader:
    """A client of the mounts, and the caller that it is."""

    ann: Caller
    client: httpx.AsyncClient
    url: str

    async def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Make a request; `_` in a header's name stands for `-`."""
        return await self.client.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    def session(self, text: str = TALK, name: str = "chat1") -> Session:
        """Make a session with a history."""
        return self.ann.harness.store.create(name, transcript=text)

    async def waiting(self, session: Session) -> None:
        """Wait until somebody waits for a session."""
        while not session.changed.waiting:  # noqa: ASYNC110 - without a pause, for the clock may stand still
            await asyncio.sleep(0)


class _HeadAsGet:
    """What the guard does to a HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = dict(scope, method="GET") | {"cfs.head": True}
        await self._app(scope, receive, send)


@asynccontextmanager
async def reader(seconds: float = 20.0) -> AsyncIterator[Reader]:
    """Serve the mounts in this loop; a blocking call in it fails."""
    async with mount() as ann:

        def serves(kind: type[RootSessionTree]) -> Route:
            async def answer(request: Request) -> Response:
                tree = ann.by(kind=kind).tree
                return await read(request, tree, "/" + request.path_params["path"], seconds=seconds)

            return Route("/{path:path}", answer, methods=["GET", "HEAD"])

        async def refuse(_: Request, error: Exception) -> Response:
            assert isinstance(error, CfsError)
            return problem_response(error)

        app = Starlette(
            routes=[
                Mount("/guarded", _HeadAsGet(Starlette(routes=[serves(RootSessionTree)]))),
                Mount("/sub", routes=[serves(SubSessionTree)]),
                serves(RootSessionTree),
            ],
            exception_handlers={CfsError: refuse, ClientLeft: nobody_listens},
        )
        listener = listen("127.0.0.1", 0, 30)
        started = asyncio.Event()
        server = UvicornServer(server_config(app), started.set)
        with blockbuster_ctx():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await started.wait()
            try:
                async with httpx.AsyncClient(base_url=url_of(listener), timeout=30, trust_env=False) as client:
                    yield Reader(ann, client, url_of(listener))
            finally:
                ann.harness.engine.release()
                server.should_exit = True
                await serving
        listener.close()


async def test_a_transcript_is_text_with_its_version_and_state() -> None:
    async with reader() as r:
        session = r.session("User: 你好\n" + TALK)
        answer = await r.get("/chat1")
        assert (answer.status_code, answer.text) == (200, "User: 你好\n" + TALK)
        listed = await r.ann.look("/chat1")
        assert listed is not None
        assert listed.modified is not None
        wanted = {
            "content-type": "text/plain; charset=utf-8",
            "etag": session.etag,
            "last-modified": formatdate(listed.modified, usegmt=True),
            "x-cfs-state": "idle",
            "accept-ranges": "bytes",
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
            "content-length": str(session.history.size),
        }
        assert {name: answer.headers.get(name) for name in wanted} == wanted
        for path in ("/chat1", "/guarded/chat1"):
            head = await r.get(path, "HEAD")
            assert (head.status_code, head.content) == (200, b"")
            assert {name: head.headers.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("size", [0, 10, 256 << 10, (256 << 10) + 1, 5 << 20])
async def test_texts_of_any_length_arrive_whole(size: int) -> None:
    async with reader() as r:
        r.session(f"Assistant: {'é' * (size // 2)}\n" if size else "")
        answer = await r.get("/chat1")
        assert answer.text == r.ann.harness.store.get("chat1").history.text
        assert int(answer.headers["content-length"]) == len(answer.content)


async def test_what_the_client_has_is_not_sent_again() -> None:
    async with reader() as r:
        session = r.session()
        now, before = formatdate(time.time() + 1, usegmt=True), formatdate(0, usegmt=True)
        for headers, status in [
            ({"If_None_Match": session.etag}, 304),
            ({"If_None_Match": f'"x", W/{session.etag}'}, 304),
            ({"If_None_Match": "*"}, 304),
            ({"If_None_Match": '"x"'}, 200),
            ({"If_None_Match": '"x"', "If_Modified_Since": now}, 200),
            ({"If_Modified_Since": now}, 304),
            ({"If_Modified_Since": before}, 200),
            ({"If_Modified_Since": "yesterday"}, 200),
            ({"If_Modified_Since": "Mon, 99 Jan 2024 00:00:00 GMT"}, 200),
            ({"If_Match": session.etag}, 200),
            ({"If_Match": "*"}, 200),
            ({"If_Match": '"x"'}, 412),
            ({"If_Match": f"W/{session.etag}"}, 412),
        ]:
            for method in ("GET", "HEAD"):
                answer = await r.get("/chat1", method, **headers)
                assert answer.status_code == status, (headers, method)
                if status == 304:
                    assert (answer.content, answer.headers["etag"], answer.headers["x-cfs-state"]) == (
                        b"",
                        session.etag,
                        "idle",
                    )


async def test_a_part_is_sent_where_one_is_asked_for() -> None:
    async with reader() as r:
        session = r.session()
        for headers, part in [
            ({"Range": "bytes=0-4"}, "bytes 0-4/26"),
            ({"Range": "bytes=6-"}, "bytes 6-25/26"),
            ({"Range": "bytes=-3"}, "bytes 23-25/26"),
            ({"Range": "bytes=2-999", "If_Range": session.etag}, "bytes 2-25/26"),
            ({"Range": "bytes=0-4", "If_Range": '"x"'}, None),
            ({"Range": "bytes=0-4", "If_Range": formatdate(time.time() + 1, usegmt=True)}, None),
            ({"Range": "bytes=0-4, 6-7"}, None),
            ({"Range": "lines=0-4"}, None),
        ]:
            answer = await r.get("/chat1", **headers)
            assert answer.headers.get("content-range") == part, headers
            assert answer.status_code == (206 if part else 200)
            first, last = map(int, part.split()[1].split("/")[0].split("-")) if part else (0, 25)
            assert answer.content == TALK.encode()[first : last + 1]
        none = await r.get("/chat1", Range="bytes=26-")
        assert (none.status_code, none.headers["content-range"]) == (416, "bytes */26")
        assert (await r.get("/chat1", Range="bytes=26-", If_None_Match=session.etag)).status_code == 304
        head = await r.get("/chat1", "HEAD", Range="bytes=0-4")
        assert (head.status_code, head.headers["content-length"]) == (200, "26")


async def test_collections_are_lists_of_names() -> None:
    async with reader() as r:
        for name in ("b", "a b", "main/coder/tester", "ü"):
            r.ann.harness.store.open(name)
        await r.ann.put("/x~", "x")
        answer = await r.get("/")
        assert (answer.text, answer.headers["content-type"]) == ("a b\nb\nmain\nx~\nü\n", "text/plain; charset=utf-8")
        assert (await r.get("/sub/")).text == "main/\n"
        assert (await r.get("/sub/main")).text == "coder\ncoder.tester\n"
        assert (await r.get("/", "HEAD")).content == b""


async def test_scratch_files_are_bytes() -> None:
    async with reader() as r:
        etag = await r.ann.put("/.x.swp", b"\xff\x00<script>")
        answer = await r.get("/.x.swp")
        assert (answer.content, answer.headers["etag"]) == (b"\xff\x00<script>", etag)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert (await r.get("/.x.swp", If_None_Match=etag)).status_code == 304
        assert (await r.get("/.x.swp", Range="bytes=1-1")).content == b"\x00"
        assert (await r.get("/.x.swp", "HEAD")).headers["content-length"] == "10"


async def test_sub_sessions_are_read_in_their_mount_only() -> None:
    async with reader() as r:
        r.session(name="main/coder")
        assert (await r.get("/sub/main/coder")).text == TALK
        for path in ("/main/coder", "/sub/main/none", "/sub/none", "/sub/a/b/c", "/none", "/x~"):
            assert (await r.get(path)).status_code == 404, path
        assert (await r.get("/" + "x" * 256)).status_code == 422


async def test_reading_needs_the_right_to_read() -> None:
    async with reader() as r:
        r.session()
        r.ann.may(grant("/sessions/chat1", "list", "file", "write"))
        for method in ("GET", "HEAD"):
            assert (await r.get("/chat1", method)).status_code == 403
            assert (await r.get("/none", method)).status_code == 404
        r.ann.may()
        assert (await r.get("/chat1")).status_code == 404
        r.ann.may(grant("/sessions/chat1", "read_binary"))
        assert (await r.get("/chat1")).text == TALK


async def test_a_reader_waits_for_the_reply_and_one_who_only_asks_does_not() -> None:
    async with reader() as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        reading = asyncio.create_task(r.get("/chat1"))
        await r.waiting(session)
        head = await r.get("/chat1", "HEAD")
        assert (head.headers["x-cfs-state"], head.headers["etag"]) == ("generating", session.etag)
        r.ann.harness.engine.release()
        answer = await reading
        assert answer.text == TALK + "User: more\nAssistant: more\n"
        assert (answer.headers["x-cfs-state"], answer.headers["etag"]) == ("idle", session.etag)


async def test_davfs2_waits_for_a_second_at_least(clock: Clock) -> None:
    """Else the kernel would cut the answer to the size of a moment ago."""
    async with reader() as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        with clock.stopped():
            reading = asyncio.create_task(r.get("/chat1", user_agent="davfs2/1.6.1 neon/0.32.5"))
            await r.waiting(session)
            r.ann.harness.engine.release()
            while session.state != "idle":
                await clock.passes(0)
            await clock.passes(1.05)
            assert not reading.done()
            await clock.passes(0.5)
            assert (await reading).text == TALK + "User: more\nAssistant: more\n"


async def test_a_reader_waits_for_sub_sessions() -> None:
    async with reader() as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1/child", "work")
        reading = asyncio.create_task(r.get("/chat1"))
        await r.waiting(session)
        r.ann.harness.engine.release()
        assert (await reading).text == TALK


async def test_after_a_while_there_is_what_there_is(clock: Clock) -> None:
    async with reader(seconds=20.0) as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        with clock.stopped():
            reading = asyncio.create_task(r.get("/chat1"))
            await r.waiting(session)
            await clock.passes(19.9)
            assert not reading.done()
            clock.advance(0.2)
            answer = await reading
        assert (answer.status_code, answer.text) == (200, TALK + "User: more\n")
        assert answer.headers["x-cfs-state"] == "generating"


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [("wait=0", "wait=0"), ("respond-async, Wait = 1 ; x=y", "wait=1"), ("wait=30", None), ("wait=x, foo", None)],
)
async def test_a_client_may_prefer_to_wait_less(clock: Clock, prefer: str, applied: str | None) -> None:
    async with reader(seconds=20.0) as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        with clock.stopped():
            reading = asyncio.create_task(r.get("/chat1", Prefer=prefer))
            if seconds := 20.0 if applied is None else float(applied[-1]):
                await r.waiting(session)
                await clock.passes(seconds - 0.1)
                assert not reading.done()
                clock.advance(0.2)
            answer = await reading
        assert answer.text == TALK + "User: more\n"
        assert answer.headers.get("preference-applied") == applied


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], None),
        (["wait=5"], 5),
        (['WAIT="07"'], 7),
        (["a, b", "x, wait=3"], 3),
        (["wait=1, wait=2"], 1),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait"], None),
        (["awaits=5, wait=" + "9" * 99], None),
    ],
)
def test_preferences(headers: list[str], seconds: int | None) -> None:
    assert wait_of(headers) == seconds


async def test_nobody_waits_for_a_client_that_left(clock: Clock) -> None:
    async with reader() as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        tasks = len(asyncio.all_tasks())
        host, port = r.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /chat1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await r.waiting(session)
        with clock.stopped():  # so the wait itself does not end
            writer.transport.abort()
            while session.changed.waiting or len(asyncio.all_tasks()) > tasks:
                await clock.passes(0)
        assert session.state == "generating"
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_many_readers_wait_without_a_thread() -> None:
    async with reader() as r:
        session = r.session()
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=r.url, timeout=30, trust_env=False, limits=limits) as client:
            reading = [asyncio.create_task(client.get("/chat1")) for _ in range(100)]
            await until(lambda: session.changed.waiting == 100)
            entry = await r.ann.look("/chat1")
            assert entry is not None
            r.ann.harness.engine.release()
            assert {answer.text for answer in await asyncio.gather(*reading)} == {session.history.text}


@pytest.mark.parametrize("event", ["deleted", "rights", "renamed"])
async def test_a_wait_ends_with_what_was_waited_for(event: str) -> None:
    async with reader() as r:
        session = r.session()
        r.ann.may(grant("/sessions/chat1"))
        r.ann.harness.engine.hold()
        r.ann.harness.say("chat1", "more")
        reading = asyncio.create_task(r.get("/chat1"))
        await r.waiting(session)
        if event == "deleted":
            r.ann.harness.store.delete("chat1")
        elif event == "rights":
            r.ann.may()
        else:
            r.ann.harness.store.rename("chat1", "hidden")
        r.ann.harness.engine.release()
        answer = await reading
        assert answer.status_code == (404 if event == "rights" else 410)
        assert "hidden" not in answer.text


async def test_reading_one_session_needs_no_tree() -> None:
    """For whoever has the gate and the id."""
    async with mount() as ann:
        ann.harness.store.create("chat1", transcript=TALK)
        scope = {"type": "http", "method": "GET", "headers": [], "path": "/"}
        answer = await read_session(Request(scope), ann.principal.gate, "chat1")
        assert answer.body == TALK.encode()
