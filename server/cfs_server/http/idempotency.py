"""Idempotency keys: a write that is sent again with its key is carried out once and answered as the first time.

A request with the header `Idempotency-Key` is identified by its caller, its key and its fingerprint. What it did is
kept in the journal, in the transaction of its effects, in one of two forms:

- An answer: status, headers and body. The middleware sends it again.
- A turn: the route has bound the request to it (`Ticket.bind`), because the answer comes later or is a stream. The
  route runs again, sees `Ticket.bound`, changes nothing, and answers from the turn.

Errors are not kept if the request has changed nothing: its key may be used again when the cause is gone. Neither is
the answer to a claim that found no turn.
"""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, BinaryIO, Protocol
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cfs.api import KEY, REPLAYED, SESSION
from cfs.errors import Forbidden, InProgress, InvalidRequest, KeyReused
from cfs_server.access.auth import Principal
from cfs_server.http.middleware import only_reads
from cfs_server.protocols.errors import protocol_at
from cfs_server.workspaces.file_service import received

SPACE = "idempotency"
"""The name of the documents in the journal."""
KEPT_SECONDS = 86_400.0
MOST_OF_ONE = 10_000
"""Maximum number of requests that are kept for one principal."""
MOST_BYTES_OF_ONE = 16 << 20

_REPLAYED = (REPLAYED.lower().encode(), b"true")
_KEY = KEY.lower().encode()
_EVENTS = b"text/event-stream"
_COST = 512
"""Estimated memory of a kept request in bytes, without its document."""
_LONGEST_KEY = 255
_AT_ONCE_BYTES = 1 << 20
"""Maximum number of bytes of a body that are hashed and passed on at once. `received` keeps these in memory."""
_FORM = frozenset({"wait", "transcript"})
"""Parameters that select only the form of the answer. A retry may ask for another form."""
_DECISIVE = (
    b"content-type",
    b"depth",
    b"destination",
    b"if",
    b"if-match",
    b"if-none-match",
    b"lock-token",
    b"overwrite",
    SESSION.lower().encode(),
)
"""Headers that decide what a request does."""


class Documents(Protocol):
    """The journal's documents. What is kept in one callback of the event loop is durable together with its changes."""

    def keep(self, space: str, name: str, value: str | None) -> None:
        """Store a document, or delete it with None."""
        ...

    def kept(self, space: str) -> dict[str, str]:
        """Return the documents of a space by name."""
        ...


# What is known of requests.


@dataclass(frozen=True, slots=True)
class BoundTurn:
    """The turn of a request: the session's key, the turn's id, and the number of the event that announced it.

    `size` is the size of the message in bytes. `secret` is that of the lease which a claim returned.
    """

    session: str
    turn: str
    event: int = 0
    size: int = 0
    secret: str = ""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that is carried out now. `done` resolves at its end."""

    owner: str
    name: str
    fingerprint: str
    rights: str
    at: float
    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A request that was carried out. `document` is the stored JSON."""

    name: str
    fingerprint: str
    at: float
    document: str

    @property
    def cost(self) -> int:
        """Its memory in bytes."""
        return _COST + len(self.document)


class Requests:
    """The requests with keys of all principals: those that run, and those of the last day."""

    def __init__(self, documents: Documents, clock: Callable[[], float] = time.time) -> None:
        self._documents = documents
        self._clock = clock
        self._running: dict[str, RunningRequest] = {}
        self._kept: dict[str, OrderedDict[str, CompletedRequest]] = {}
        self._bytes: dict[str, int] = {}
        stored = [(json.loads(document), name, document) for name, document in documents.kept(SPACE).items()]
        for fields, name, document in sorted(stored, key=lambda row: row[0]["at"]):
            self._add(fields["owner"], CompletedRequest(name, fields["fingerprint"], fields["at"], document))
        for owner in list(self._kept):
            self._drop_old(owner)

    def find(self, owner: str, key: str) -> RunningRequest | CompletedRequest | None:
        """Return the request that a principal sent with this key."""
        self._drop_old(owner)
        name = _name(owner, key)
        return self._running.get(name) or self._kept.get(owner, _NONE).get(name)

    def begin(self, owner: str, key: str, fingerprint: str, rights: str = "") -> RunningRequest:
        """Add a request that is carried out now, by a caller with these rights."""
        done = asyncio.get_running_loop().create_future()
        request = RunningRequest(owner, _name(owner, key), fingerprint, rights, self._clock(), done)
        self._running[request.name] = request
        return request

    def keep(self, request: RunningRequest, what: Mapping[str, Any]) -> None:
        """Store what a request did."""
        properties = {name: getattr(request, name) for name in ("owner", "fingerprint", "rights", "at")}
        document = json.dumps({**properties, **what}, ensure_ascii=False, separators=(",", ":"))
        self._documents.keep(SPACE, request.name, document)
        self._add(request.owner, CompletedRequest(request.name, request.fingerprint, request.at, document))
        self._drop_old(request.owner)

    def end(self, request: RunningRequest) -> None:
        """Note that a request is no longer carried out."""
        if self._running.get(request.name) is request:  # its key was free before its end, and may be in use again
            del self._running[request.name]
        if not request.done.done():
            request.done.set_result(None)

    def _add(self, owner: str, request: CompletedRequest) -> None:
        requests = self._kept.setdefault(owner, OrderedDict())
        before = requests.get(request.name)
        requests[request.name] = request
        self._bytes[owner] = self._bytes.get(owner, 0) + request.cost - (before.cost if before else 0)

    def _drop_old(self, owner: str) -> None:
        """Drop the oldest requests while there are too many. The newest one always stays."""
        requests, end = self._kept.get(owner, OrderedDict()), self._clock() - KEPT_SECONDS
        while requests:
            oldest = next(iter(requests.values()))
            full = len(requests) > MOST_OF_ONE or (self._bytes[owner] > MOST_BYTES_OF_ONE and len(requests) > 1)
            if not full and oldest.at > end:
                return
            del requests[oldest.name]
            self._bytes[owner] -= oldest.cost
            self._documents.keep(SPACE, oldest.name, None)


_NONE: Mapping[str, CompletedRequest] = {}


def _name(owner: str, key: str) -> str:
    return hashlib.blake2b(f"{owner}\n{key}".encode(), digest_size=16).hexdigest()


class Ticket:
    """One request, for its route. `bound` is its turn if the request was carried out before.

    A request without a key has a ticket that keeps nothing.
    """

    def __init__(
        self, requests: Requests | None = None, request: RunningRequest | None = None, bound: BoundTurn | None = None
    ) -> None:
        self.bound = bound
        self._requests = requests
        self._request = request
        self._began = False

    @property
    def is_open(self) -> bool:
        """Whether something can still be kept."""
        return self._request is not None and not self._request.done.done()

    def bind(self, bound: BoundTurn) -> None:
        """Keep the turn of this request. Call this in the callback of the event loop that changes the session."""
        self._keep({"bound": asdict(bound)})
        self.end()

    def begin(self) -> None:
        """Keep that this request has changed something, in the callback that changes it.

        If the server ends before the answer is known, a repetition is answered by 204.
        """
        if self.is_open and not self._began:
            self._began = True
            self._keep({"status": 204, "headers": [], "body": ""})

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Keep the answer to this request, unless it is an error and nothing was changed."""
        if status < 400 or self._began:
            texts = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
            self._keep({"status": status, "headers": texts, "body": body.decode("latin-1")})
            self.end()

    def end(self) -> None:
        """Note that the request has ended. Without a kept document its key is free again."""
        if self._requests is not None and self._request is not None:
            self._requests.end(self._request)

    def _keep(self, what: Mapping[str, Any]) -> None:
        if self._requests is not None and self._request is not None and self.is_open:
            self._requests.keep(self._request, what)


_SCOPE = "cfs.idempotency"


def ticket_of(scope: Scope) -> Ticket:
    """Return the ticket of a request."""
    ticket = scope.get(_SCOPE)
    return ticket if isinstance(ticket, Ticket) else Ticket()


async def _ticket(request: Request) -> Ticket:
    return ticket_of(request.scope)


Idempotency = Annotated[Ticket, Depends(_ticket)]
"""The ticket of a request, as the parameter of a route."""


# Requests and responses.


class IdempotencyMiddleware:
    """ASGI middleware below `RequestMiddleware`, which authenticates the caller.

    `patience` is the time in seconds for which a retry waits for the end of the first request.
    """

    def __init__(self, app: ASGIApp, *, requests: Callable[[Scope], Requests], patience: float) -> None:
        self._app = app
        self._requests = requests
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out a request, or answer it as before. Requests without a key pass unchanged."""
        key = _key_of(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            body, size = await received(receive)
        except ClientDisconnect:
            return
        with body:
            caller: Principal = scope["cfs.principal"]
            fingerprint, rights = await _fingerprint(scope, body, size), _rights_of(caller)
            requests = self._requests(scope)
            existing = await self._earlier_request(requests, caller.name, key, fingerprint)
            if existing is None:
                ticket = Ticket(requests, requests.begin(caller.name, key, fingerprint, rights))
            else:
                content = json.loads(existing.document)
                if "bound" not in content:
                    if content["rights"] != rights:
                        raise Forbidden("this request was carried out; its answer was for other rights than yours now")
                    await _replay(content, send)
                    return
                ticket = Ticket(bound=BoundTurn(**content["bound"]))
            scope[_SCOPE] = ticket
            try:
                await self._app(scope, _Received(body, size, receive).receive, _Sender(ticket, send).send)
            finally:
                ticket.end()

    async def _earlier_request(
        self, requests: Requests, owner: str, key: str, fingerprint: str
    ) -> CompletedRequest | None:
        """Return what an earlier request with this key did; None if there was none. Waits while it runs.

        Raises `KeyReused` or `InProgress`.
        """
        try:
            async with asyncio.timeout(self._patience):
                while (request := requests.find(owner, key)) is not None:
                    if request.fingerprint != fingerprint:
                        raise KeyReused(
                            "this idempotency key was sent before, with another method, path, condition or body: use a"
                            " new key for a new request"
                        )
                    if isinstance(request, CompletedRequest):
                        return request
                    await asyncio.shield(request.done)
        except TimeoutError:
            raise InProgress("the first request with this idempotency key still runs", retry_after=1) from None
        return None


def _key_of(scope: Scope) -> str | None:
    """Return the key of a write; None if it has none. Raises `InvalidRequest`.

    Quotes around a key are removed: the IETF's draft requires them, and most clients send none. A completion that no
    session records changes nothing, so its key is ignored.
    """
    if only_reads(scope) or "cfs.principal" not in scope:
        return None
    headers = dict(scope["headers"])
    if (value := headers.get(_KEY)) is None:
        return None
    protocol = protocol_at(scope["path"])
    if protocol is not None and not protocol.changes and SESSION.lower().encode() not in headers:
        return None
    key: str = value.decode("latin-1").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= _LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(f"{KEY} is one key of 1 to {_LONGEST_KEY} printable ASCII characters")
    return key


def _rights_of(caller: Principal) -> str:
    """Return the hash of a caller's grants. The route of a turn checks them; a kept answer is not checked again."""
    grants = sorted((grant["prefix"], *sorted(grant["ops"])) for grant in caller.handle.grants)
    return hashlib.blake2b(json.dumps(grants).encode(), digest_size=8).hexdigest()


async def _fingerprint(scope: Scope, body: BinaryIO, size: int) -> str:
    """Return the hash of all that decides what a request does."""
    headers = dict(scope["headers"])
    query = [(name, value) for name, value in parse_qsl(scope["query_string"].decode(), True) if name not in _FORM]
    parts = [scope["method"], scope["path"], query, [headers.get(name, b"").decode("latin-1") for name in _DECISIVE]]
    digest = _digest(body) if size <= _AT_ONCE_BYTES else await asyncio.to_thread(_digest, body)
    return hashlib.blake2b(json.dumps([*parts, digest]).encode(), digest_size=16).hexdigest()


def _digest(body: BinaryIO) -> str:
    digest = hashlib.blake2b(digest_size=32)
    while data := body.read(_AT_ONCE_BYTES):
        digest.update(data)
    body.seek(0)
    return digest.hexdigest()


async def _replay(response: Mapping[str, Any], send: Send) -> None:
    """Send a kept answer."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response["headers"]]
    await send({"type": "http.response.start", "status": response["status"], "headers": [*headers, _REPLAYED]})
    await send({"type": "http.response.body", "body": response["body"].encode("latin-1")})


class _Received:
    """Passes a received body on, and then what the client sends: its disconnect."""

    def __init__(self, body: BinaryIO, size: int, receive: Receive) -> None:
        self._body = body
        self._left = size
        self._in_memory = size <= _AT_ONCE_BYTES
        self._ended = False
        self._receive = receive

    async def receive(self) -> Message:
        """Return the next part."""
        if self._ended:
            return await self._receive()
        read = partial(self._body.read, _AT_ONCE_BYTES)
        data = read() if self._in_memory else await asyncio.to_thread(read)
        self._left -= len(data)
        self._ended = self._left <= 0
        return {"type": "http.request", "body": data, "more_body": not self._ended}


class _Sender:
    """Keeps the answer before its first byte is sent. The answer to a request that is bound to a turn passes."""

    def __init__(self, ticket: Ticket, send: Send) -> None:
        self._ticket = ticket
        self._send = send
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Send a part of the response, or hold it back until the response is complete."""
        if message["type"] == "http.response.start":
            if self._ticket.bound is not None:
                message["headers"] = [*message.get("headers", ()), _REPLAYED]
            media = dict(message.get("headers", ())).get(b"content-type", b"")
            if self._ticket.is_open and not media.startswith(_EVENTS):
                self._start = message
                return
        elif self._start is not None:
            self._parts.append(message.get("body", b""))
            if message.get("more_body", False):
                return
            start, self._start, body = self._start, None, b"".join(self._parts)
            self._ticket.answer(start["status"], list(start.get("headers", ())), body)
            await self._send(start)
            message = {"type": "http.response.body", "body": body}
        await self._send(message)
