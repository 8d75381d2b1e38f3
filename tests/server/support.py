"""A real uvicorn in the test's own loop with the store in hand, and `cfs serve` as a process of its own."""

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, Self
from urllib.parse import urlsplit

import httpx
from blockbuster import blockbuster_ctx

from cfs.contract.sse import ServerSentEvent, SSEDecoder
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.contract.interface import ModelInfo
from cfs_server.engine.host.scripted import Script, ScriptedEngine, echo
from cfs_server.http.caller import Context
from cfs_server.journal.journal import Journal
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of
from cfs_server.sessions.store import SessionStore
from tests.fork_server import CFS as CFS
from tests.fork_server import Program, run
from tests.prompt_server import PromptServer

JSON = {"Content-Type": "application/json"}
TEXT = {"Accept": "text/plain"}
EVENTS = {"Accept": "text/event-stream"}
MODEL = ModelInfo("scripted", 2048, has_chat_template=False)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something has become true; the test's time-out is the limit."""
    while not condition():  # noqa: ASYNC110 - it looks at what has no event of its own
        await asyncio.sleep(0.001)


@dataclass(frozen=True, slots=True)
class ServerHarness:
    """A running server of the test's own loop, and a client for it."""

    url: str
    client: httpx.AsyncClient
    engine: ScriptedEngine
    parts: Context
    server: UvicornServer

    @property
    def store(self) -> SessionStore:
        """The sessions behind the server."""
        return self.parts.store

    async def say(self, session: str, text: str, **params: str) -> httpx.Response:
        """Send a message as plain text."""
        return await self.client.post(f"/v1/sessions/{session}/messages", content=text.encode(), params=params)

    async def create(self, session: str, **settings: Any) -> None:
        """Make a session."""
        answer = await self.client.post("/v1/sessions", json={"id": session, "settings": settings})
        assert answer.status_code == 201, answer.text

    async def text(self, session: str) -> str:
        """Read the transcript once the session is settled."""
        answer = await self.client.get(f"/v1/sessions/{session}", params={"wait": 30}, headers=TEXT)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def until(self, session: str, kind: str, count: int = 1) -> None:
        """Wait until a session has seen some events of a kind."""
        log = self.store.get(session).log
        while True:
            events = log.since(0)
            assert isinstance(events, list)
            if sum(event.type == kind for event in events) >= count:
                return
            await log.broadcast.wait()


class _PromptServer(UvicornServer, PromptServer):
    """The server of `cfs serve`, which ends at once."""


@asynccontextmanager
async def running_server(
    script: Script = echo,
    *,
    engine: ScriptedEngine | None = None,
    journal: Journal | None = None,
    may_block: bool = False,
    model: ModelInfo = MODEL,
    **changes: Any,
) -> AsyncIterator[ServerHarness]:
    """Serve in this loop; a blocking call in it fails unless it `may_block`; in the end the store must be sound.

    Without an opened journal, nothing is kept.
    """
    settings = ServerSettings(port=0, engine="scripted", **changes) if changes else _plain_settings(_variables())
    engine = engine or ScriptedEngine(script)
    await engine.start()
    listener = listen("127.0.0.1", 0, settings.send_timeout)
    app = create_app(settings, engine, model, journal)
    started = asyncio.Event()
    server = _PromptServer(server_config(app), started.set)
    with contextlib.nullcontext() if may_block else blockbuster_ctx():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await started.wait()
        url = url_of(listener)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
                yield ServerHarness(url, client, engine, app.state.cfs, server)
                app.state.cfs.store.check_integrity()
        finally:
            engine.release()
            await app.state.cfs.store.drain(0)
            server.exit_at_once()
            await serving
            await engine.stop()
    listener.close()


def _variables() -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in os.environ.items() if name.startswith("CFS_"))


@cache
def _plain_settings(variables: frozenset[tuple[str, str]]) -> ServerSettings:
    """Read the settings of a server without further ones once: that takes as long as all else of its start."""
    return ServerSettings(port=0, engine="scripted")


class Chunks:
    """Takes the chunked coding of HTTP/1.1 off a body, wherever it is cut; `ended` after the last chunk."""

    def __init__(self) -> None:
        self.ended = False
        self._head = b""
        self._left = 0

    def feed(self, raw: bytes) -> bytes:
        """Take the next bytes; return the body's bytes among them."""
        body = b""
        while raw and not self.ended:
            if self._left > 2:  # two more than the chunk has: the line break behind it
                piece, raw = raw[: self._left - 2], raw[self._left - 2 :]
                body += piece
                self._left -= len(piece)
            elif self._left:
                dropped = min(self._left, len(raw))
                self._left, raw = self._left - dropped, raw[dropped:]
            else:
                self._head, raw = self._head + raw[:1], raw[1:]
                if self._head.endswith(b"\r\n"):
                    size, self._head = int(self._head, 16), b""
                    self.ended, self._left = size == 0, size + 2
        return body


class EventStream:
    """A stream of events read from a bare socket, so that a test decides what is read and when."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.head = ""
        self._chunks = Chunks()
        self._decoder = SSEDecoder()
        self._events: list[ServerSentEvent] = []

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
        receive_buffer: int | None = None,
    ) -> Self:
        """Send a request and read the head of the answer."""
        parts = urlsplit(url)
        bare = socket.socket()
        if receive_buffer is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        bare.setblocking(False)
        await asyncio.get_running_loop().sock_connect(bare, (parts.hostname, parts.port))
        reader, writer = await asyncio.open_connection(sock=bare, limit=1 << 14)
        fields = {"Host": "localhost"} | EVENTS | (headers or {})
        if body is not None:
            fields["Content-Length"] = str(len(body))
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        stream = cls(reader, writer)
        stream.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        stream.status = int(stream.head.split()[1])
        return stream

    async def next(self) -> ServerSentEvent | None:
        """Return the next event; None at the end."""
        while not self._events:
            if self.ended or not (raw := await self.reader.read(1 << 16)):
                return None
            self._events += self._decoder.feed(self._chunks.feed(raw))
        return self._events.pop(0)

    @property
    def ended(self) -> bool:
        """Whether the server has said that this is all."""
        return self._chunks.ended

    async def take(self, count: int) -> list[ServerSentEvent]:
        """Return that many events."""
        found = [await self.next() for _ in range(count)]
        assert all(event is not None for event in found), "the stream ended early"
        return [event for event in found if event is not None]

    async def until(self, *kinds: str) -> list[ServerSentEvent]:
        """Return all events up to the first of some kinds."""
        found: list[ServerSentEvent] = []
        while not found or found[-1].event not in kinds:
            found += await self.take(1)
        return found

    async def rest(self) -> list[ServerSentEvent]:
        """Return all events up to the end."""
        found: list[ServerSentEvent] = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    def close(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def data(event: ServerSentEvent) -> dict[str, Any]:
    """What an event of ours says, without the envelope."""
    found: dict[str, Any] = json.loads(event.data)["data"]
    return found


def kinds(events: Sequence[ServerSentEvent]) -> list[str]:
    """Name the events."""
    return [event.event for event in events]


def spoken(events: Sequence[ServerSentEvent]) -> str:
    """Put the tokens among some events together."""
    return "".join(data(event)["text"] for event in events if event.event == "token")


@dataclass(frozen=True, slots=True)
class Process:
    """`cfs serve`, running."""

    process: subprocess.Popen[str]
    url: str
    log: IO[str]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it wrote to stderr."""
        self.process.communicate(timeout=60)
        self.log.seek(0)
        return self.process.returncode, self.log.read()


def environment(**more: str) -> dict[str, str]:
    """The test's environment without settings of CFS. A server in it keeps nothing unless `more` says where."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
    if "HOME" not in more:  # else the rules, servers and answers of whoever runs the tests would count
        ours |= {"XDG_CONFIG_HOME": f"{_settings()}/config", "XDG_STATE_HOME": f"{_settings()}/state"}
    return ours | {"CFS_DATA_DIR": "temporary", "CFS_CONNECTIONS": "none"} | more


@cache
def _settings() -> str:
    """Return a folder of this process for settings and state of users, which is removed at the end."""
    folder = tempfile.mkdtemp(prefix="cfs-settings-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_cfs(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `cfs` to its end."""
    return run([CFS, *arguments], stdin=None, text=True, timeout=60, env=environment(**env))


def free_port() -> int:
    """Return a port of this machine at which nothing listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process; where coverage is measured it first gets the time to write down which lines it ran."""
    signals = (signal.SIGTERM, signal.SIGTERM) if "COVERAGE_RUN" in os.environ else ()  # a second one ends it at once
    for number in signals:
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
    if process.poll() is None:
        process.kill()


@contextmanager
def serving(*flags: str, **env: str) -> Iterator[Process]:
    """Run `cfs serve` on a free port; it is killed at the end if it has not ended by then.

    Its log goes to a file: a pipe without a reader would stop it when full.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = Program(
            [CFS, "serve", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(**env),
        )
        assert process.stdout is not None
        server = Process(process, process.stdout.readline().removeprefix("listening on ").strip(), log)
        try:
            if not server.url.startswith("http"):
                raise AssertionError("cfs serve ended with {}: {}".format(*server.ended()))
            yield server
        finally:
            end(process)
            process.communicate()
