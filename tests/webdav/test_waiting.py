"""Many that wait for a reply hold nobody up, and hold nothing when they leave (W4, S7)."""

import asyncio
import threading
from urllib.parse import urlsplit

from tests.server.support import ServerHarness, running_server, until
from tests.webdav.wire import Dav

READERS = 500


async def readers(server: ServerHarness, count: int) -> list[asyncio.StreamWriter]:
    """Ask for a session that is generating, on as many connections."""
    at = urlsplit(server.url)
    opened = await asyncio.gather(*(asyncio.open_connection(at.hostname, at.port) for _ in range(count)))
    for _, writer in opened:
        writer.write(b"GET /dav/sessions/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return [writer for _, writer in opened]


async def test_five_hundred_that_wait_stop_nobody() -> None:
    """While they wait, listings, files and REST are answered; no thread is theirs; and all wake with the reply."""
    async with running_server() as server:
        dav = Dav(server.client)
        await dav("MKCOL", "/workspaces/main")
        server.engine.hold()
        await server.say("slow", "hello")
        threads = threading.active_count()
        streams = await readers(server, READERS)
        session = server.store.get("slow")
        await until(lambda: session.changed.waiting == READERS)
        assert threading.active_count() - threads < 20
        assert await dav.names("/sessions/") == ["slow"]
        assert (await dav("PUT", "/workspaces/main/note", b"x")).status_code == 201
        assert (await server.say("other", "hello")).status_code == 202
        assert (await dav("GET", "/sessions/slow", prefer="wait=0")).headers["x-cfs-state"] == "generating"
        server.engine.release()
        await until(lambda: session.changed.waiting == 0)
        for writer in streams:
            writer.transport.abort()


async def test_who_leaves_frees_its_wait_at_once() -> None:
    async with running_server() as server:
        server.engine.hold()
        await server.say("slow", "hello")
        session = server.store.get("slow")
        streams = await readers(server, 50)
        await until(lambda: session.changed.waiting == 50)
        for writer in streams:
            writer.transport.abort()
        await until(lambda: session.changed.waiting == 0)
        assert session.state == "generating"
        server.engine.release()
