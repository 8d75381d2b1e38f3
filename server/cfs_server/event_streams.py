"""Event logs as Server-Sent Events (H2, S11).

A stream is a cursor in a log and nothing else: what happens while its reader is slow stays in the log, once for all
readers, and goes out in one piece when the reader takes more. Closing a stream cancels nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import anyio
from prometheus_client import Gauge
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from cfs.errors import TooMany
from cfs_server.access.auth import Principal
from cfs_server.sessions.events import Event, EventLog, Stale
from cfs_server.sessions.turns import Turn
from cfs_server.settings import Settings

MEDIA_TYPE = "text/event-stream"
_RETRY_SECONDS = 5.0
_HEADERS = {"Cache-Control": "no-cache"}  # X-Accel-Buffering: no is the library's own

Frames = AsyncIterator[bytes]


class Streams:
    """Makes the streams of one application and counts those that are open (H7)."""

    def __init__(self, settings: Settings, gauge: Gauge) -> None:
        self.open = 0
        self._settings = settings
        self._gauge = gauge

    def response(
        self, frames: Frames, principal: Principal, close: Callable[[], Awaitable[None]] | None = None
    ) -> "EventStream":
        """Answer by a stream of these frames; `close` is called in the end, however that comes."""
        return EventStream(frames, self, principal, self._settings, close)

    def enter(self, principal: Principal) -> None:
        """Count a stream in; raises `TooMany` at the server's limit, or the principal's."""
        most = principal.limits.streams
        if most is not None and principal.streams >= most:
            raise TooMany(f"your token may have {most} streams open; close some", retry_after=_RETRY_SECONDS)
        if self.open >= self._settings.max_streams:
            raise TooMany(f"{self.open} streams are open already; close some", retry_after=_RETRY_SECONDS)
        self.open += 1
        principal.streams += 1
        self._gauge.inc()

    def leave(self, principal: Principal) -> None:
        """Count a stream out."""
        self.open -= 1
        principal.streams -= 1
        self._gauge.dec()


class EventStream(EventSourceResponse):
    """A stream that has a place among the open ones, and ends quietly when its reader takes nothing any more."""

    def __init__(
        self,
        frames: Frames,
        streams: Streams,
        principal: Principal,
        settings: Settings,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(
            frames,
            headers=_HEADERS,
            ping=settings.ping,
            sep="\n",
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            send_timeout=settings.send_timeout,
        )
        self._streams = streams
        self._principal = principal
        self._lifetime = (settings.stream_seconds or None) if close is None else None  # a completion cannot be resumed
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until the log, the reader or the stream's time is at its end."""
        if scope["cfs.head"]:
            await super().__call__({**scope, "method": "HEAD"}, receive, send)
            return
        try:
            self._streams.enter(self._principal)
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                return  # the reader will resume where it was; the server below closes the connection
            finally:
                self._streams.leave(self._principal)
        finally:
            if self._close is not None:
                await self._close()

    async def _stream_response(self, send: Send) -> None:
        with anyio.move_on_after(self._lifetime) as life, self._principal.connected(life):
            await super()._stream_response(send)
        if life.cancelled_caught:
            await send(_END)


_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def frame(log: EventLog, number: int, kind: str, data: str) -> bytes:
    """Write one event; JSON has no line break, so the data is one line."""
    return f"id: {log.token(number)}\nevent: {kind}\ndata: {data}\n\n".encode()


class View(Protocol):
    """What the reader of a log may see of it, at the moment of asking."""

    def stale(self, stale: Stale) -> str | None:
        """Say that events are lost; None when the reader may not know even that, and the stream is over."""

    def visible(self, events: list[Event]) -> tuple[list[Event], bool]:
        """Return the events that may be seen, and whether the stream goes on after them."""


async def follow(log: EventLog, after: int, view: View, turn: Turn | None = None) -> Frames:
    """Write every event of a log after a number, several in one piece where several wait.

    With `turn` only its events are written, and the stream ends with its last one.
    """
    async for events in log.follow(after):
        if isinstance(events, Stale):
            said = view.stale(events)
            if said is None:
                return
            yield frame(log, events.last, "stale", said)
            ended = turn is not None and turn.result.done()
        else:
            seen, goes_on = view.visible(events)
            events, ended = (seen, False) if turn is None else _of_turn(seen, turn)
            ended = ended or not goes_on
            if events:
                yield b"".join(frame(log, log.number_of(event), event.type, event.json) for event in events)
        if ended:
            return
    if log.goodbye:
        yield frame(log, log.last, "goodbye", f'{{"last":{log.last}}}')


def _of_turn(events: list[Event], turn: Turn) -> tuple[list[Event], bool]:
    """Pick the events of a turn, up to its last; and tell whether that is among them."""
    own = [event for event in events if _belongs(event, turn)]
    end = next((index for index, event in enumerate(own, 1) if _ends(event, turn)), None)
    return own[:end], end is not None


def _belongs(event: Event, turn: Turn) -> bool:
    if event.type == "session.deleted":
        return "renamed_to" not in event.data
    return event.data.get("turn") == turn.id


def _ends(event: Event, turn: Turn) -> bool:
    if event.type in ("turn.finished", "turn.failed", "session.deleted"):
        return True
    return not turn.generate and event.type == "message.added"
