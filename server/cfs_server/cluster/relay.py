"""Sends a request on to the replica that owns its slot, and its response back, piece by piece.

The request goes on as the client sent it, with the client's credentials: the owner authenticates the caller itself, so
revoked rights end at once. One header is added, an `Order`: for which slot the request is meant. It is signed with the
secret that all replicas of a store share, names the request, and is valid for seconds.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import httpcore
from starlette.types import Message, Receive, Scope, Send

from cfs.errors import Forbidden, InvalidRequest
from cfs_server.base.broadcast import Broadcast
from cfs_server.cluster.names import NameLocation
from cfs_server.cluster.replica import LAST_SECONDS

HEADER = b"x-cfs-slot"
"""In a request: the order. In a response with the status 421: where the request belongs."""
MISDIRECTED = 421
ALL = -1
"""The slot of an order for all slots that a replica serves."""
_VALID_SECONDS = 30.0
_CONNECT_SECONDS = 2.0
_ASK_SECONDS = 10.0
_HELD_BYTES = 256 << 10
"""A body up to this size is kept until it is answered, so that it can be sent again."""
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"upgrade",
        b"expect",
        HEADER,
    }
)
_OURS = _HOP_BY_HOP | {b"transfer-encoding", b"date", b"server"}
"""Headers of a response that this server sends itself."""
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT"})


@dataclass(frozen=True, slots=True)
class Order:
    """For which slot a request is meant. `mark` is that of a note about its name (`cfs_server.cluster.names`)."""

    slot: int
    mark: str | None = None


class Signer:
    """Signs orders, and checks them."""

    def __init__(self, secret: bytes, clock: Callable[[], float]) -> None:
        """Sign with the secret and the clock that all replicas share."""
        self._secret = secret
        self._clock = clock

    def sign(self, method: str, raw_path: bytes, order: Order) -> bytes:
        """Return the header of an order for one request."""
        content = f"{order.slot};{order.mark or ''};{int(self._clock() + _VALID_SECONDS)}"
        return f"{content};".encode() + self._digest(method, raw_path, content.encode())

    def read(self, method: str, raw_path: bytes, header: bytes) -> Order:
        """Return the order of a request. Raises `Forbidden` if no replica of this store has signed it.

        Raises `Late` if one has, but long ago. What others send is compared as bytes, and not read.
        """
        content, _, digest = header.rpartition(b";")
        if not hmac.compare_digest(digest, self._digest(method, raw_path, content)):
            raise Forbidden("the header X-CFS-Slot is for requests between replicas; leave it out")
        slot, mark, until = content.decode().split(";")
        if self._clock() >= int(until):
            raise Late
        return Order(int(slot), mark or None)

    def _digest(self, method: str, raw_path: bytes, content: bytes) -> bytes:
        text = b"\n".join((method.encode(), raw_path, content))
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest().encode()


class Late(Exception):
    """An order came when it was not valid any more. The replica that has signed it sends the request once more."""


class Incoming:
    """A request with a body that can be read again as long as it is short."""

    def __init__(
        self, method: str, target: bytes, raw_path: bytes, headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> None:
        self.method = method
        self.target = target
        """The path and the query, as the client sent them."""
        self.raw_path = raw_path
        self.headers = headers
        self._receive = receive
        self._read: list[bytes] = []
        self._size = 0
        self._ended = False
        self._replayable = True
        self._at = 0
        self._sent = asyncio.Event()

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    @property
    def is_replayable(self) -> bool:
        """Whether the whole body can be sent once more."""
        return self._replayable

    async def whole(self, max_bytes: int, count: Callable[[int], None] = lambda _: None) -> bytes | None:
        """Read the body, and keep it; None if the client is gone, or for more than `max_bytes` bytes.

        The beginning of a body that is too long is kept. `count` is called with the size of each piece as it comes, and
        may raise.
        """
        while not self._ended:
            if self._size > max_bytes:
                return None
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            count(len(message.get("body", b"")))
            self._add(message)
        return b"".join(self._read)

    def copy(self, method: str, headers: list[tuple[bytes, bytes]]) -> "Incoming":
        """Return the same request with another method or other headers. Its body has been read."""
        copied = Incoming(method, self.target, self.raw_path, headers, self._receive)
        copied._read, copied._size, copied._ended = self._read, self._size, self._ended
        return copied

    def _add(self, message: Message) -> None:
        data = message.get("body", b"")
        self._read.append(data)
        self._size += len(data)
        self._ended = not message.get("more_body", False)

    def rewind(self) -> None:
        """Begin to read at the beginning of the body once more."""
        self._at = 0

    async def receive(self) -> Message:
        """Return the next part of the body, and then what the client does: an ASGI `receive`."""
        if self._at < len(self._read):
            self._at += 1
            is_last = self._ended and self._at == len(self._read)
            return {"type": "http.request", "body": self._read[self._at - 1], "more_body": not is_last}
        if self._ended:
            return await self._receive()
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        if self._size <= _HELD_BYTES:
            self._add(message)
            self._at = len(self._read)
        else:  # too long to be sent again
            self._replayable, self._read = False, []
            self._at, self._ended = 0, not message.get("more_body", False)
        return message

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        self.rewind()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                self._sent.set()
                return

    async def gone(self) -> None:
        """Return when the client has disconnected, after its request was read."""
        if not self._ended:
            await self._sent.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _ClientLeft(Exception):
    """The client has disconnected during its request."""


class RelayResult(Enum):
    """How a relayed request ended, if it was not answered."""

    ANSWERED = "the response was sent to the client"
    MOVED = "the replica does not own the slot now; nothing was done"
    UNREACHED = "the replica was not reached; nothing was done"
    LOST = "the connection was lost before the response; what was done is not known"
    STOPPED = "this replica stops before the response came; what was done is not known"


@dataclass(frozen=True, slots=True)
class RelayedResponse:
    """A whole response. The names of its headers are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> str:
        """Return the value of a header; empty if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


async def send_whole(response: RelayedResponse, scope: Scope, send: Send) -> None:
    """Send a response to a client."""
    drop = (b"content-length", b"transfer-encoding", b"date", b"server", b"connection")
    headers = [(name, value) for name, value in response.headers if name not in drop]
    if response.status != 304:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})


class Relay:
    """The connections to the other replicas."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=60
        )
        self._running = 0
        self._ended = Broadcast()
        self._leaving = asyncio.Event()
        self._grace_over = asyncio.Event()

    async def until_leaving(self) -> None:
        """Return when this replica leaves, and streams of events have to end."""
        await self._leaving.wait()

    async def drain(self, grace: float) -> None:
        """End the streams of events and the reads that wait, let writes end for `grace` seconds, then end them all.

        A write that is on its way always gets a moment.
        """
        self._leaving.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(grace, LAST_SECONDS)):
                while self._running:
                    await self._ended.wait()
        self._grace_over.set()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def send(
        self, url: str, order: Order, request: Incoming, send: Send, moved: Callable[[], Coroutine[None, None, None]]
    ) -> RelayResult | NameLocation:
        """Send a request to a replica, and its response to the client.

        Returns the place of the name if the replica says that it is elsewhere. A response that breaks off ends the
        client's connection in the same way, but streams of events just end. So does one that has not ended soon after
        `moved` returned, which waits until the replica has lost the slot: one that is frozen or cut off would never
        say so.
        """
        if not request.has_body:
            await request.whole(0)
        passing = Passing(send)
        waits = [request.gone(), moved(), self._closing(request.method, passing)]
        answering = asyncio.create_task(self._send(url, order, request, passing.send))
        gone, moving, _ = watching = [asyncio.create_task(wait) for wait in waits]
        self._running += 1
        try:
            await asyncio.wait((answering, *watching), return_when=asyncio.FIRST_COMPLETED)
            if moving.done():
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED, timeout=LAST_SECONDS)
            if answering.done():
                return answering.result()
            if gone.done():
                return RelayResult.ANSWERED
            if not passing.begun.is_set():
                return RelayResult.LOST if moving.done() else RelayResult.STOPPED
            raise Broken
        except _ClientLeft:
            return RelayResult.ANSWERED
        except Broken:
            if not passing.is_stream:
                raise
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await passing.end()
            return RelayResult.ANSWERED
        finally:
            self._running -= 1
            self._ended.fire()
            for task in (answering, *watching):
                task.cancel()
            await asyncio.gather(answering, *watching, return_exceptions=True)

    async def _closing(self, method: str, passing: "Passing") -> None:
        """Return when this replica leaves and the client has to go on elsewhere.

        Readers of events resume there, and reads that wait are repeated. Writes end as long as the grace lasts.
        """
        await self._leaving.wait()
        if is_repeatable(method, has_key=False):
            with suppress(TimeoutError):
                await asyncio.wait_for(passing.begun.wait(), LAST_SECONDS)
            if not passing.begun.is_set() or (method == "GET" and passing.is_stream):
                return
        await self._grace_over.wait()
        if passing.begun.is_set() and not passing.is_stream:
            await asyncio.get_running_loop().create_future()  # uvicorn lets the rest of the response pass

    async def fetch(self, url: str, order: Order, request: Incoming) -> "RelayedResponse":
        """Send a request to a replica, and return its whole response. Raises errors of `httpcore`."""
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        headers.append((HEADER, self._signer.sign(request.method, request.raw_path, order)))
        body = await request.whole(_HELD_BYTES) or b""
        response = await self._pool.request(
            request.method,
            _url(url, request.target),
            headers=headers,
            content=body if request.has_body else None,
            extensions={"timeout": {"connect": _CONNECT_SECONDS, "read": _ASK_SECONDS}},
        )
        return RelayedResponse(
            response.status, [(name.lower(), value) for name, value in response.headers], response.content
        )

    async def ask(self, url: str, order: Order, path: bytes, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a question to a replica, and return its answer. Raises errors of `httpcore`, and `ValueError`."""
        response = await self._pool.request(
            "POST",
            _url(url, path),
            headers=[(b"host", urlsplit(url).netloc.encode()), (HEADER, self._signer.sign("POST", path, order))],
            content=json.dumps(question).encode(),
            extensions={"timeout": {"connect": _CONNECT_SECONDS, "read": _ASK_SECONDS}},
        )
        if response.status != 200:
            raise ValueError(f"the replica answered with {response.status}")
        answer: Mapping[str, Any] = json.loads(response.content)
        return answer

    @asynccontextmanager
    async def stream(
        self, url: str, order: Order, request: Incoming, headers: list[tuple[bytes, bytes]]
    ) -> AsyncIterator[httpcore.Response]:
        """Open a stream of a replica, with other headers. Raises errors of `httpcore`."""
        signed = [*headers, (HEADER, self._signer.sign(request.method, request.raw_path, order))]
        timeouts = {"timeout": {"connect": _CONNECT_SECONDS}}
        url_, method = _url(url, request.target), request.method
        async with self._pool.stream(method, url_, headers=signed, extensions=timeouts) as response:
            yield response

    async def _send(self, url: str, order: Order, request: Incoming, send: Send) -> RelayResult | NameLocation:
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        headers.append((HEADER, self._signer.sign(request.method, request.raw_path, order)))
        if not any(name == b"host" for name, _ in headers):
            headers.append((b"host", urlsplit(url).netloc.encode()))
        try:
            stream = self._pool.stream(
                request.method,
                _url(url, request.target),
                headers=headers,
                content=request.pieces() if request.has_body else None,
                extensions={"timeout": {"connect": _CONNECT_SECONDS}},
            )
            async with stream as response:
                return await self._answer(response, send)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout):
            return RelayResult.UNREACHED
        except (httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.TimeoutException):
            return RelayResult.LOST
        except httpcore.LocalProtocolError as error:  # nothing was sent
            raise InvalidRequest(f"the head of this request is not valid: {error}") from None

    async def _answer(self, response: httpcore.Response, send: Send) -> RelayResult | NameLocation:
        if response.status == MISDIRECTED:
            location = next((value for name, value in response.headers if name.lower() == HEADER), b"")
            slot, separator, mark = location.decode("latin-1").partition(";")
            return NameLocation(int(slot), mark) if separator else RelayResult.MOVED
        headers = [(name.lower(), value) for name, value in response.headers if name.lower() not in _OURS]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        try:
            async for piece in response.aiter_stream():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
            raise Broken from error
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return RelayResult.ANSWERED


class Passing:
    """Passes a response on to the client."""

    def __init__(self, send: Send) -> None:
        self.begun = asyncio.Event()
        self.is_stream = False
        self._has_ended = False
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name == b"content-type"), b"")
            self.is_stream = kind.startswith(b"text/event-stream")
            self.begun.set()
        await self._send(message)
        if message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)

    async def end(self) -> None:
        """End a response that has begun, unless its last part was sent."""
        if not self._has_ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class Broken(Exception):
    """The response broke off after its beginning. The client sees the same, because its connection is closed."""


def _url(url: str, target: bytes) -> httpcore.URL:
    parts = urlsplit(url)
    host = (parts.hostname or "").encode()
    return httpcore.URL(scheme=parts.scheme.encode(), host=host, port=parts.port, target=target)


def is_repeatable(method: str, *, has_key: bool) -> bool:
    """Return whether a request may be sent again of which it is not known what it did."""
    return method in _REPEATABLE or has_key
