"""Event logs as Server-Sent Events (H2, S11).

A stream is only a cursor in a log. Events that a slow reader has not read stay in the log, which all readers share.
They are sent together when the reader continues. Closing a stream cancels nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio
from prometheus_client import Gauge
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from cfs.errors import StorageFull, TooMany, Unavailable
from cfs_server.access.auth import Principal
from cfs_server.config.settings import ServerSettings
from cfs_server.domain.events import EventLog, LoggedEvent, Stale
from cfs_server.domain.turns import Turn
from cfs_server.http.representations import detail
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session

MEDIA_TYPE = "text/event-stream"
LINES = "application/x-ndjson"
_RETRY_SECONDS = 5.0
_HEADERS = {"Cache-Control": "no-cache"}  # the library itself sends X-Accel-Buffering: no

Frames = AsyncIterator[bytes]


class Streams:
    """Creates the streams of one application and counts the open ones (H7)."""

    def __init__(self, settings: ServerSettings, gauge: Gauge) -> None:
        self.open = 0
        self._settings = settings
        self._gauge = gauge

    def response(
        self,
        frames: Frames,
        principal: Principal,
        close: Callable[[], Awaitable[None]] | None = None,
        left: Callable[[], None] | None = None,
        *,
        lines: bool = False,
    ) -> "EventStream":
        """Return a stream of these frames. `close` is always called when it ends, `left` if its client left before."""
        return EventStream(frames, self, principal, self._settings, close, left, lines=lines)

    def enter(self, principal: Principal) -> None:
        """Count a new stream. Raises `TooMany` at the limit of the server or of the principal."""
        max_streams = principal.limits.streams
        if max_streams is not None and principal.traffic.streams >= max_streams:
            raise TooMany(f"your token may have {max_streams} streams open; close some", retry_after=_RETRY_SECONDS)
        if self.open >= self._settings.max_streams:
            raise TooMany(f"{self.open} streams are open already; close some", retry_after=_RETRY_SECONDS)
        self.open += 1
        principal.traffic.streams += 1
        self._gauge.inc()

    def leave(self, principal: Principal) -> None:
        """Stop counting a stream."""
        self.open -= 1
        principal.traffic.streams -= 1
        self._gauge.dec()


class EventStream(EventSourceResponse):
    """A counted stream that ends quietly when its reader stops reading.

    A stream of `lines` of JSON has no heartbeats, because its readers take every line for JSON.
    """

    def __init__(
        self,
        frames: Frames,
        streams: Streams,
        principal: Principal,
        settings: ServerSettings,
        close: Callable[[], Awaitable[None]] | None = None,
        left: Callable[[], None] | None = None,
        *,
        lines: bool = False,
    ) -> None:
        super().__init__(
            frames,
            headers=_HEADERS,
            media_type=LINES if lines else MEDIA_TYPE,
            ping=0 if lines else settings.ping,
            sep="\n",
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            send_timeout=settings.send_timeout,
            client_close_handler_callable=self._on_disconnect,
        )
        self._streams = streams
        self._principal = principal
        self._lifetime = (settings.stream_seconds or None) if close is None else None  # a completion cannot be resumed
        self._close = close
        self._left = left
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until the log, the reader or the lifetime of the stream ends."""
        if scope["cfs.head"]:
            await super().__call__({**scope, "method": "HEAD"}, receive, send)
            return
        try:
            self._streams.enter(self._principal)
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                await self._on_disconnect()
                return  # the reader can resume at its cursor; uvicorn closes the connection
            finally:
                self._streams.leave(self._principal)
        finally:
            if self._close is not None:
                await self._close()

    async def _stream_response(self, send: Send) -> None:
        with anyio.move_on_after(self._lifetime) as life, self._principal.connected(life):
            await super()._stream_response(send)
        self._ended = True
        if life.cancelled_caught:
            await send(_END)

    async def _on_disconnect(self, _: Message | None = None) -> None:
        """Report that the client has left. Also called at the end of a whole response, where there is nothing to do."""
        if self._left is not None and not self._ended:
            self._left()


_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def frame(log: EventLog, number: int, kind: str, data: str) -> bytes:
    """Format one event. JSON contains no line break, so the data is one line."""
    return f"id: {log.token(number)}\nevent: {kind}\ndata: {data}\n\n".encode()


class View(Protocol):
    """The part of a log that a reader may see at this moment."""

    async def stale(self, stale: Stale) -> str | None:
        """Return the event about lost events; None if the reader may no longer see the log and the stream ends."""

    def visible(self, events: list[LoggedEvent]) -> tuple[list[LoggedEvent], bool]:
        """Return the visible events, and whether the stream continues after them."""


class SessionView:
    """The events of one session. They end when a rename or a changed grant hides the session from the reader."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, session: Session, sessions: AuthorizedSessions) -> None:
        self._session = session
        self._sessions = sessions

    async def stale(self, stale: Stale) -> str | None:
        """Return the current state of the session, so that a reader that lost events can continue from it."""
        async with self._sessions.loaded(self._session):
            if not self._sessions.may("read_binary", self._session.id):
                return None
            state = detail(self._session, self._sessions).model_dump_json()
        return f'{{"asked":{stale.asked},"last":{stale.last},"session":{state}}}'

    def visible(self, events: list[LoggedEvent]) -> tuple[list[LoggedEvent], bool]:
        """Return the events under names that the caller may see. The stream ends at a hidden name."""
        return self._sessions.visible(events), self._sessions.may("read_binary", self._session.id)


class AllView:
    """The events of all sessions that a caller may read."""

    __slots__ = ("_sessions",)

    def __init__(self, sessions: AuthorizedSessions) -> None:
        self._sessions = sessions

    async def stale(self, stale: Stale) -> str:
        """Return the event about lost events. The reader must list the sessions again."""
        return f'{{"asked":{stale.asked},"last":{stale.last}}}'

    def visible(self, events: list[LoggedEvent]) -> tuple[list[LoggedEvent], bool]:
        """Return the events that the caller may see."""
        return self._sessions.visible(events), True


async def follow(log: EventLog, after: int, view: View, turn: Turn | None = None) -> Frames:
    """Yield the events of a log after a number. Several waiting events are sent in one piece.

    With `turn`, yield only the events of that turn and end after its last one. Ends early when the store has failed:
    events that are not durable are not shown.
    """
    with suppress(StorageFull, Unavailable):
        async for events in log.follow(after):
            if isinstance(events, Stale):
                notice = await view.stale(events)
                if notice is None:
                    return
                yield frame(log, events.last, "stale", notice)
                after = events.last
                ended = turn is not None and turn.result.done()
            else:
                after = log.number_of(events[-1])
                visible, goes_on = view.visible(events)
                events, ended = (visible, False) if turn is None else _of_turn(visible, turn)
                ended = ended or not goes_on
                if events:
                    yield b"".join(frame(log, log.number_of(event), event.type, event.json) for event in events)
            if ended:
                return
    if log.goodbye:
        yield frame(log, after, "goodbye", f'{{"last":{after}}}')


def _of_turn(events: list[LoggedEvent], turn: Turn) -> tuple[list[LoggedEvent], bool]:
    """Return the events of a turn up to its last one, and whether the last one is among them."""
    turn_events = [event for event in events if _belongs(event, turn)]
    end = next((index for index, event in enumerate(turn_events, 1) if _ends(event, turn)), None)
    return turn_events[:end], end is not None


def _belongs(event: LoggedEvent, turn: Turn) -> bool:
    if event.type == "session.deleted":
        return "renamed_to" not in event.data
    return event.data.get("turn") == turn.id


def _ends(event: LoggedEvent, turn: Turn) -> bool:
    if event.type in ("turn.finished", "turn.failed", "session.deleted"):
        return True
    return not turn.generate and event.type == "message.added"
