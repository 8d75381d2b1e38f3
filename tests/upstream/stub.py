"""A small server that speaks an upstream's protocol as its documentation says, or misbehaves on demand.

It refuses every request that the documentation does not allow, so a test that gets an answer has sent a right one.
"""

import asyncio
import contextlib
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError

from tests.prompt_server import PromptServer

Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]

KEY = "sk-a-key-that-nobody-may-see"
MODEL = "small-1"
WINDOW = 4096
"""Words that the stub's model takes."""


class Strict(BaseModel):
    """A part of a request: what is not documented is refused."""

    model_config = ConfigDict(extra="forbid")


class NotAllowed(Exception):
    """The request is not what the documentation says; `status` and `kind` are those of the error."""

    def __init__(self, message: str, status: int = 400, kind: str = "invalid_request_error", **extra: Any) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.extra = message, status, kind, extra


@dataclass(frozen=True)
class Refusal:
    """An act: answer with an error, once as many as `together` wants have asked."""

    status: int
    kind: str = "api_error"
    message: str = "as the test wants it"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    together: asyncio.Barrier | None = None


@dataclass(frozen=True)
class Speech:
    """An act: answer with a reply, whole or not. Without words it echoes the last message.

    `hidden` is the data of a block of thinking that only the upstream can read. `cut` ends the answer after so many
    events: "hard" hangs up, "clean" ends the body, "flood" sends `flood` for ever. `failing` is an error event after
    the words; `junk` stands in the place of the event of that number.
    """

    words: Iterable[str] | None = None
    thinking: tuple[str, ...] = ()
    hidden: str = ""
    calls: tuple[tuple[str, tuple[str, ...]], ...] = ()
    stop: str | None = None
    cut: int | None = None
    how: str = "hard"
    flood: str = ""
    failing: tuple[str, str] | None = None
    junk: tuple[int, str] | None = None
    pings: bool = False
    usage: bool = True
    marker: bool = True
    cached: int = 0
    gate: asyncio.Event | None = None


@dataclass(frozen=True)
class Raw:
    """An act: answer with these bytes, whatever they are."""

    body: bytes
    content_type: str = "text/event-stream"


Act = Refusal | Speech | Raw


class Stub(ABC):
    """The server: acts are played in their order, one for each turn; after the last one it echoes."""

    def __init__(self, *acts: Act, key: str | None = KEY, models: tuple[str, ...] | None = (MODEL,)) -> None:
        self.acts: deque[Act] = deque(acts)
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[Mapping[str, str]] = []
        self.token = ""
        self.refused: list[str] = []
        self.key = key
        self.models = models
        self.pace = 0.0
        self.streaming = 0
        self.left_early = 0
        self.connections: set[tuple[str, int]] = set()
        self.changed = asyncio.Condition()

    @property
    @abstractmethod
    def path(self) -> str:
        """Where turns are sent."""

    @abstractmethod
    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `NotAllowed` when headers are missing or wrong."""

    @abstractmethod
    def read(self, body: Any) -> Iterable[str]:
        """Check a turn's request; return the words of its last message."""

    @abstractmethod
    def most(self, body: dict[str, Any]) -> int:
        """How many tokens the reply may have."""

    @abstractmethod
    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Iterator[str]:
        """Write a reply as server-sent events, one string each."""

    @abstractmethod
    def error(self, kind: str, message: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Write an error's body."""

    @abstractmethod
    def model(self, name: str) -> dict[str, Any]:
        """Describe a model."""

    async def until(self, holds: Callable[["Stub"], bool]) -> None:
        """Wait for something to become true of the server."""
        async with self.changed:
            await self.changed.wait_for(lambda: holds(self))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        self.connections.add(tuple(scope["client"]))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        try:
            if scope["path"] != "/health":
                self.check(headers)
            if scope["method"] == "POST":
                self.heads.append(headers)
            await self._route(scope["method"], scope["path"], receive, send)
        except NotAllowed as refusal:
            self.refused.append(refusal.message)
            body = self.error(refusal.kind, refusal.message, refusal.extra)
            await send_json(send, refusal.status, body)

    async def _route(self, method: str, path: str, receive: Receive, send: Send) -> None:
        match method, path.removeprefix("/v1"):
            case "GET", "/models" if self.models is not None:
                await send_json(send, 200, {"object": "list", "data": [self.model(name) for name in self.models]})
            case "GET", found if self.models is not None and found.removeprefix("/models/") in {*self.models, "alias"}:
                await send_json(send, 200, self.model(found.removeprefix("/models/")))
            case "GET", "/health":
                await send_json(send, 200, {})
            case "POST", self.path:
                await self._turn(await body_of(receive), receive, send)
            case _:
                raise NotAllowed("there is no such thing", 404, "not_found_error")

    async def _turn(self, raw: bytes, receive: Receive, send: Send) -> None:
        try:
            body = json.loads(raw)
            said = list(self.read(body))
        except ValidationError as error:
            first = error.errors()[0]
            raise NotAllowed(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if body["model"] not in (self.models or (MODEL,)):
            raise NotAllowed(f"model: {body['model']}", 404, "not_found_error")
        self.bodies.append(body)
        act = self.acts.popleft() if self.acts else Speech()
        if isinstance(act, Refusal):
            if act.together is not None:
                await act.together.wait()
            await send_json(send, act.status, self.error(act.kind, act.message, act.extra), act.headers)
            return
        if isinstance(act, Raw):
            await _send(send, 200, act.body, {"content-type": act.content_type})
            return
        words = act.words if act.words is not None else play(said)
        await self._speak(act, self.events(act, words, len(raw) // 4, self.most(body)), receive, send)

    async def _speak(self, act: Speech, events: Iterator[str], receive: Receive, send: Send) -> None:
        """Stream until the end, or until the client leaves."""
        leaving = asyncio.create_task(receive())
        await self._note(streaming=1)
        try:
            speaking = asyncio.create_task(self._stream(act, events, send))
            await asyncio.wait((leaving, speaking), return_when=asyncio.FIRST_COMPLETED)
            self.left_early += not speaking.done()
            speaking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await speaking
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await self._note(streaming=-1)

    async def _stream(self, act: Speech, events: Iterator[str], send: Send) -> None:
        if act.gate is not None:
            await act.gate.wait()
        headers = [(b"content-type", b"text/event-stream")]
        if self.token:
            headers.append((b"x-session-token", self.token.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, event in enumerate(events):
            if number == act.cut:
                if act.how == "clean":
                    break
                while act.how == "flood":
                    await send({"type": "http.response.body", "body": act.flood.encode(), "more_body": True})
                    await asyncio.sleep(0)  # or a client that left would not be noticed
                return  # without the end of the body: the connection is closed
            if act.junk is not None and number == act.junk[0]:
                event = act.junk[1]
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await asyncio.sleep(self.pace)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _note(self, *, streaming: int) -> None:
        async with self.changed:
            self.streaming += streaming
            self.changed.notify_all()


def play(words: list[str]) -> Iterable[str]:
    """Answer endlessly, or echo, as the message says."""
    if words[-1:] == ["endless"]:
        return ("on " for _ in range(100_000))
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


async def body_of(receive: Receive) -> bytes:
    """Read the whole body of a request."""
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def send_json(send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    """Answer with JSON."""
    await _send(send, status, json.dumps(body).encode(), {"content-type": "application/json"} | dict(headers or {}))


async def _send(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class _Server(PromptServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(stub: Stub) -> _Server:
    config = uvicorn.Config(stub, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    return _Server(config)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    listener.listen()
    return listener


@asynccontextmanager
async def served(stub: Stub, port: int = 0) -> AsyncIterator[str]:
    """Serve in this loop; the value is the address of the protocol."""
    server = _server(stub)
    with _listen(port) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.exit_at_once()
        await serving


@contextmanager
def served_aside(stub: Stub, port: int = 0) -> Iterator[str]:
    """Serve in a thread, for programs that a test runs as processes."""
    server = _server(stub)
    with _listen(port) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
