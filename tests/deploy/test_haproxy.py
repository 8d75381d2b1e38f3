"""`deploy/haproxy/haproxy.cfg`: the real HAProxy in front of two real servers."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from ports import free_port
from tests.server.support import EventStream, Process, data, running_server, serving, spoken

CONFIGURATION = Path(__file__).parent.parent.parent / "deploy/haproxy/haproxy.cfg"
HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")  # not on every user's path
SCRIPTED = ("--engine", "scripted", "--scripted-interval", "0.1", "--shutdown-grace", "60")
_LOG_BYTES = 1 << 30
"""More than it ever logs. When a smaller buffer is full, HAProxy drops lines, and asyncio does not notice its end."""
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: scripts/test installs it on Debian")


@dataclass(frozen=True, slots=True)
class Proxy:
    """HAProxy, running, and a client of it."""

    url: str
    client: httpx.AsyncClient
    output: asyncio.StreamReader

    async def logged(self, *parts: str) -> str:
        """Wait for a line of its log."""
        while line := (await self.output.readline()).decode():
            if all(part in line for part in parts):
                return line
        raise AssertionError(f"HAProxy has ended and never logged {parts}")

    async def life(self) -> str:
        """Return which server answers now: each has another life."""
        answer = await self.client.get("/healthz")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["store"])

    async def say(self, session: str, text: str, **headers: str) -> httpx.Response:
        """Send a message, and wait for the reply."""
        where = f"/v1/sessions/{session}/messages"
        return await self.client.post(where, params={"wait": "true"}, content=text.encode(), headers=headers)


@asynccontextmanager
async def balanced(*servers: str, idle: str = "60s") -> AsyncIterator[Proxy]:
    """Run HAProxy with the file as it is, in front of two servers."""
    assert HAPROXY is not None
    url = f"http://127.0.0.1:{free_port()}"
    replicas = {f"CFS_REPLICA_{number}": urlsplit(server).netloc for number, server in enumerate(servers, 1)}
    variables = {"CFS_LISTEN": urlsplit(url).netloc, "CFS_IDLE": idle} | replicas
    process = await asyncio.create_subprocess_exec(
        *(HAPROXY, "-db", "-f", str(CONFIGURATION)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LOG_BYTES,
        env=os.environ | variables,
    )
    assert process.stdout is not None
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            while not await _answers(client):
                assert process.returncode is None, (await process.stdout.read()).decode()
            yield Proxy(url, client, process.stdout)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _answers(client: httpx.AsyncClient) -> bool:
    """Whether the proxy has a server; the test's time-out is the limit."""
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def life_of(server: Process) -> str:
    """Return the life of a server, asked without the proxy."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return str((await client.get(f"{server.url}/healthz")).json()["store"])


async def test_each_event_passes_when_it_comes() -> None:
    """The second token is generated only after the first one has come through the proxy."""
    async with (
        running_server(may_block=True) as one,
        running_server(may_block=True) as two,
        balanced(one.url, two.url) as proxy,
    ):
        for server in (one, two):
            server.engine.hold()
        async with await EventStream.open(proxy.url, "/v1/sessions/a/messages", body=b"one two three") as stream:
            seen = []
            for _ in range(3):
                for server in (one, two):
                    server.engine.step()
                seen.append(data((await stream.until("token"))[-1])["text"])
            assert seen == ["one", " two", " three"]
            for server in (one, two):
                server.engine.release()
            await stream.until("turn.finished")


async def test_a_wait_is_not_cut_when_the_client_idles() -> None:
    """A reply takes three times as long as a client may be idle; a stream is silent for the same time."""
    with serving(*SCRIPTED, "--ping", "0") as one, serving(*SCRIPTED, "--ping", "0") as two:
        async with balanced(one.url, two.url, idle="500ms") as proxy:
            async with await EventStream.open(proxy.url, "/v1/sessions/silent/messages", body=b"one") as stream:
                await stream.until("turn.finished")
            async with await EventStream.open(proxy.url, "/v1/events") as stream:
                text = " ".join(["word"] * 15)
                answer = await proxy.say("a", text)
                assert (answer.status_code, answer.json()["reply"]) == (200, text)
                for server in (one, two):
                    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                        (await client.post("/v1/sessions/b/messages", content=b"x")).raise_for_status()
                await stream.until("turn.finished")


async def test_a_dead_server_is_replaced_and_comes_back() -> None:
    """Every request is answered, those too that come before the proxy knows."""
    port = str(free_port())
    with serving(*SCRIPTED, "--port", port) as one, serving(*SCRIPTED) as two:
        lives = {await life_of(one), await life_of(two)}
        async with balanced(one.url, two.url) as proxy:
            seen: set[str] = set()
            while seen != lives:
                seen.add(await proxy.life())
            key = {"Idempotency-Key": "a-file"}
            stored = await proxy.client.put("/v1/files/workspaces/w/long", content=bytes(1 << 20), headers=key)
            assert stored.status_code == 201, stored.text
            one.process.kill()
            one.process.wait()
            for number in range(20):
                assert (await proxy.say(f"s{number}", "hello")).json()["reply"] == "hello"
            assert await proxy.life() == await life_of(two)
            await proxy.logged("ready/replica-1 is DOWN")
            with serving(*SCRIPTED, "--port", port) as again:
                await proxy.logged("ready/replica-1 is UP")
                life = await life_of(again)
                while await proxy.life() != life:
                    pass


async def test_a_server_that_leaves_gets_no_new_requests_and_ends_what_it_has_begun() -> None:
    """It is out as soon as `/readyz` says 503, even if the other one has more connections."""
    with serving(*SCRIPTED) as one, serving(*SCRIPTED) as two:
        async with balanced(one.url, two.url) as proxy, AsyncExitStack() as streams:
            text = " ".join(["word"] * 40)
            turn = await streams.enter_async_context(
                await EventStream.open(proxy.url, "/v1/sessions/a/messages", body=text.encode())
            )
            begun = await turn.until("token")
            leaving, number = (one, 1) if await _has(one, "a") else (two, 2)
            other = await life_of(two if leaving is one else one)
            leaving.signal(signal.SIGTERM)
            await proxy.logged(f"ready/replica-{number} is DOWN", "503")
            for _ in range(3):
                stream = await streams.enter_async_context(await EventStream.open(proxy.url, "/v1/events"))
                assert stream.status == 200
            for _ in range(10):
                assert await proxy.life() == other
            assert spoken(begun + await turn.until("turn.finished")) == text


async def _has(server: Process, session: str) -> bool:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        return (await client.get(f"/v1/sessions/{session}")).status_code == 200


async def test_while_no_server_is_ready_those_that_live_answer() -> None:
    """Reads go on, and a refusal is the server's own, with its reason; without any, the proxy says to come back."""
    with serving(*SCRIPTED) as one, serving(*SCRIPTED) as two:
        async with balanced(one.url, two.url) as proxy:
            for number, server in enumerate((one, two), 1):
                async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                    text = " ".join(["word"] * 300).encode()
                    (await client.post("/v1/sessions/a/messages", content=text)).raise_for_status()
                server.signal(signal.SIGTERM)
                await proxy.logged(f"ready/replica-{number} is DOWN", "503")
            assert (await proxy.client.get("/v1/sessions/a")).json()["state"] == "generating"
            refused = await proxy.client.get("/readyz")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "stopping" in refused.json()["detail"]
            for server in (one, two):
                server.process.kill()
                server.process.wait()
            refused = await proxy.client.get("/v1/sessions/a")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert refused.json()["detail"] == "no replica can be reached; repeat"


async def test_only_a_request_that_may_be_repeated_goes_to_a_second_server() -> None:
    """The first server is healthy, but closes each connection without an answer."""
    taken: list[str] = []

    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "/readyz" in head or "/healthz" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        else:
            taken.append(head.split()[0])
        writer.close()

    losing = await asyncio.start_server(lose, "127.0.0.1", 0)
    lost = "http://{}:{}".format(*losing.sockets[0].getsockname())
    async with losing, running_server(may_block=True) as sound, balanced(lost, sound.url) as proxy:
        await _until_taken(taken, lambda: proxy.client.get("/v1/sessions"))
        keys = count()
        await _until_taken(taken, lambda: proxy.say("a", "hello", **{"Idempotency-Key": f"key-{next(keys)}"}))
        taken.clear()
        statuses = []
        for _ in range(4):  # each on a connection of its own: HAProxy closes one that it has used, and says nothing
            async with httpx.AsyncClient(base_url=proxy.url, timeout=30, trust_env=False) as client:
                statuses.append((await client.post("/v1/sessions/b/messages", content=b"hello")).status_code)
        assert set(statuses) == {202, 502}
        assert statuses.count(502) == taken.count("POST")


async def _until_taken(taken: list[str], request: Callable[[], Awaitable[httpx.Response]]) -> None:
    """Send requests until the first server has lost one; each gets a good answer."""
    taken.clear()
    while not taken:
        assert (await request()).status_code == 200
