"""The events of all sessions as one stream: the streams of all slots, with one cursor for all of them.

Each slot numbers its own events. The cursor of the merged stream therefore contains one cursor for each slot. Events of
one session are in order; those of different slots may be in any. When a slot goes to another owner the stream ends, and
its reader resumes it after the last event that it saw.
"""

import asyncio
import base64
import re
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

import httpcore
import structlog
from starlette.types import ASGIApp, Message, Scope, Send

from cfs.errors import CfsError, InvalidRequest, Unavailable
from cfs_server.cluster.relay import ALL, Incoming, Order, Relay, RelayedResponse, send_whole
from cfs_server.cluster.replica import AGAIN_SECONDS, OwnerWait, RemoteSlot, Replica
from cfs_server.cluster.slots import HostedSlot

_log = structlog.get_logger(__name__)

_FORM = "v1."
_ROW = struct.Struct(">H4s4sQ")
_PLAIN = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{8})-([0-9]{1,18})")
_OLDEST = "0"
_BEGIN_SECONDS = 10.0
"""How long the other replicas may take to begin their part of a stream."""
_QUEUED = 64
"""Frames that may wait for a slow reader. Then the streams of the slots wait, too."""
_DROPPED = (b"last-event-id", b"accept-encoding", b"if-none-match")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

Cursors = dict[int, str]
"""The cursor of each slot."""


def encode(cursors: Mapping[int, str]) -> str:
    """Return the cursor of the merged stream."""
    rows = []
    for slot, token in sorted(cursors.items()):
        match = _PLAIN.fullmatch(token)
        if match is None:
            raise ValueError(f"a slot's cursor has another form: {token!r}")
        rows.append(_ROW.pack(slot, bytes.fromhex(match[1]), bytes.fromhex(match[2]), int(match[3])))
    return _FORM + base64.urlsafe_b64encode(b"".join(rows)).decode().rstrip("=")


def decode(text: str) -> Cursors:
    """Return the cursor of each slot. Raises `InvalidRequest`."""
    try:
        if not text.startswith(_FORM):
            raise ValueError(text)
        digits = text.removeprefix(_FORM)
        packed = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars=b"-_", validate=True)
        return {slot: f"{life.hex()}.{epoch.hex()}-{number}" for slot, life, epoch, number in _ROW.iter_unpack(packed)}
    except (ValueError, struct.error):
        raise InvalidRequest("a cursor of the events of all sessions is the `id` of one of them, or 0") from None


@dataclass(frozen=True, slots=True)
class Frame:
    """One event without its id: its lines, and the cursors after it. The first frame of a stream has no lines."""

    cursors: Cursors
    lines: bytes


Frames = AsyncGenerator[Frame]


class Splitter:
    """Splits a stream into events: their id, and their other lines. Comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Return the events that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        events = []
        for event in whole:
            lines = [line for line in event.split(b"\n") if line and not line.startswith(b":")]
            ids = [line.removeprefix(b"id: ").decode() for line in lines if line.startswith(b"id: ")]
            others = b"".join(line + b"\n" for line in lines if not line.startswith(b"id: "))
            if lines:
                events.append((ids[0] if ids else "", others))
        return events


class _Refused(Exception):
    """A slot or a replica refuses the stream."""

    def __init__(self, answer: RelayedResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


class EventMerging:
    """The merged streams that this replica sends."""

    def __init__(self, replica: Replica, relay: Relay, ping: float) -> None:
        """Merge the streams of all replicas. `ping` is the time between heartbeats in seconds; 0 for none."""
        self._replica = replica
        self._relay = relay
        self._ping = ping or None

    async def answer(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Stream the events of all slots to a client. Raises `Unavailable` if a slot has no owner for too long."""
        start = _given(scope)
        patience = OwnerWait(self._replica)
        while None in self._owners().values():
            await patience.wait("some sessions have no replica that serves them now")
        owners = [(slot, owner) for slot, owner in self._owners().items() if isinstance(owner, RemoteSlot)]
        streams = [self._of_slot(slot, start, scope, request) for slot in self._replica.serving()]
        streams += [self._of_replica(other.url, start, request) for other in self._replica.others]
        await self._send(streams, scope, request, send, owners)

    def _owners(self) -> dict[int, HostedSlot | RemoteSlot | None]:
        return {slot: self._replica.owner(slot) for slot in range(self._replica.slots)}

    async def _moved(self, owners: list[tuple[int, RemoteSlot]], frames: "asyncio.Queue[Frame | None]") -> None:
        """End the stream when this replica leaves, or another loses a slot: a frozen one does not end its own part."""
        waits = [asyncio.create_task(self._replica.until_moved(slot, owner)) for slot, owner in owners]
        waits.append(asyncio.create_task(self._relay.until_leaving()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await frames.put(None)

    async def answer_here(self, scope: Scope, request: Incoming, send: Send) -> None:
        """Stream the events of the slots of this replica to another one. The first event says where they begin."""
        start, slots = _given(scope), self._replica.serving()
        await self._send([self._of_slot(slot, start, scope, request) for slot in slots], scope, request, send)

    async def _send(
        self,
        streams: list[Frames],
        scope: Scope,
        request: Incoming,
        send: Send,
        others: list[tuple[int, RemoteSlot]] | None = None,
    ) -> None:
        """Send the frames of all streams as they come, from where each says that it begins, until one of them ends.

        `others` are the owners of the slots that other replicas have, for a stream of all slots that a client reads.
        """
        frames: asyncio.Queue[Frame | None] = asyncio.Queue(_QUEUED)
        await request.whole(0)
        tasks = [asyncio.create_task(_gone(request, frames))]
        try:
            try:
                async with asyncio.timeout(_BEGIN_SECONDS):
                    cursors, is_share = await begin(streams, tasks, frames)
            except TimeoutError:
                raise Unavailable("a replica does not answer; repeat", retry_after=AGAIN_SECONDS) from None
            if others is not None and not is_share and len(cursors) < self._replica.slots:
                raise _moving()
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            tasks.append(asyncio.create_task(self._moved(others or [], frames)))
            first = b": begin\n\n" if others is not None else _text(cursors, b"event: begin\ndata: {}\n")
            await send({"type": "http.response.body", "body": first, "more_body": True})
            while scope["method"] != "HEAD":
                try:
                    async with asyncio.timeout(self._ping):
                        frame = await frames.get()
                except TimeoutError:
                    await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
                    continue
                if frame is None:
                    break
                cursors |= frame.cursors
                await send({"type": "http.response.body", "body": _text(cursors, frame.lines), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except _Refused as refusal:
            await send_whole(refusal.answer, scope, send)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*[stream.aclose() for stream in streams], return_exceptions=True)

    async def _of_slot(self, slot: HostedSlot, start: Cursors | str, scope: Scope, request: Incoming) -> Frames:
        """Yield the frames of a slot of this replica."""
        log = slot.context.store.bus.log
        begin = log.token(0) if start == _OLDEST else log.token(log.last)
        if isinstance(start, dict):
            begin = start.get(slot.number, begin)
        headers = [
            *(header for header in request.headers if header[0] not in _DROPPED),
            (b"last-event-id", begin.encode()),
        ]
        inner = dict(scope, headers=headers, query_string=b"", method="GET")
        splitter = Splitter()
        async with aclosing(streamed(slot, inner)) as pieces:
            async for piece in pieces:
                if not piece:
                    yield Frame({slot.number: begin}, b"")
                for id_, lines in splitter.feed(piece):
                    yield Frame({slot.number: id_} if id_ else {}, lines)

    async def _of_replica(self, url: str, start: Cursors | str, request: Incoming) -> Frames:
        """Yield the frames of another replica."""
        headers = [header for header in request.headers if header[0] not in _DROPPED]
        if start:
            headers.append((b"last-event-id", (encode(start) if isinstance(start, dict) else start).encode()))
        splitter = Splitter()
        with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            async with self._relay.stream(url, Order(ALL), request, headers) as response:
                if response.status != 200:
                    head = [(name.lower(), value) for name, value in response.headers]
                    raise _Refused(RelayedResponse(response.status, head, await response.aread()))
                is_first = True
                async for piece in response.aiter_stream():
                    for id_, lines in splitter.feed(piece):
                        yield Frame(decode(id_) if id_ else {}, b"" if is_first else lines)
                        is_first = False


def _given(scope: Scope) -> Cursors | str:
    """Return where a reader wants to begin: after its cursors, at the oldest event (`0`), or now (empty)."""
    header = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"last-event-id"), "")
    text = header or parse_qs(scope["query_string"].decode("latin-1")).get("after", [""])[0]
    return text if text in ("", _OLDEST) else decode(text)


async def begin(
    streams: list[Frames], tasks: list[asyncio.Task[None]], frames: "asyncio.Queue[Frame | None]"
) -> tuple[Cursors, bool]:
    """Begin to read all streams. Returns where they begin, and whether some do not know the caller.

    The bearer of a share is known to one slot only: the other ones refuse with 401, and are left out. Raises `_Refused`
    if all of them do, or if one refuses for another reason, and `Unavailable` if two streams have the same slot: it is
    moving, and what its former owner sends last would follow what its new one sends first.
    """
    begun = await asyncio.gather(*[anext(stream, None) for stream in streams], return_exceptions=True)
    cursors: Cursors = {}
    refusals: list[_Refused] = []
    for stream, first in zip(streams, begun, strict=True):
        if isinstance(first, _Refused) and first.answer.status == 401:
            refusals.append(first)
        elif isinstance(first, BaseException):
            raise first
        elif first is not None:
            if not cursors.keys().isdisjoint(first.cursors):
                raise _moving()
            cursors |= first.cursors
            tasks.append(asyncio.create_task(_pump(stream, frames)))
    if refusals and not cursors:
        raise refusals[0]
    return cursors, bool(refusals)


def _moving() -> Unavailable:
    return Unavailable("some sessions are moving to another replica; repeat", retry_after=AGAIN_SECONDS)


async def _pump(stream: Frames, frames: "asyncio.Queue[Frame | None]") -> None:
    """Pass the frames of a stream on, and None at its end."""
    try:
        async with aclosing(stream):
            async for frame in stream:
                await frames.put(frame)
    except CfsError as error:
        _log.warning("events.broken", reason=error.detail)
    await frames.put(None)


async def _gone(request: Incoming, frames: "asyncio.Queue[Frame | None]") -> None:
    await request.gone()
    await frames.put(None)


async def streamed(slot: ASGIApp, scope: Scope) -> AsyncGenerator[bytes]:
    """Yield an empty piece, and then the body of a slot's response as it comes. Raises `_Refused` for an error."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue(_QUEUED)
    left = asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def answer() -> None:
        try:
            await slot(scope, receive, messages.put)
        finally:
            if not left.is_set():  # otherwise what waits is not read any more, and there may be no room
                await messages.put(None)

    answering = asyncio.create_task(answer())
    try:
        start = await messages.get()
        if start is None:
            return
        refused = start["status"] != 200
        body = b""
        if not refused:
            yield b""
        while (message := await messages.get()) is not None:
            if refused:
                body += message.get("body", b"")
            elif message.get("body"):
                yield message["body"]
        if refused:
            raise _Refused(RelayedResponse(start["status"], list(start["headers"]), body))
    finally:
        left.set()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


def _text(cursors: Cursors, lines: bytes) -> bytes:
    return f"id: {encode(cursors)}\n".encode() + lines + b"\n"
