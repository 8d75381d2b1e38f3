"""Follows an event stream across lost connections: bytes in, events and the next request out (S11). No I/O.

An `EventSource` receives bytes and notices of lost connections, and returns the request that continues the stream.
Nothing is skipped silently: if a cursor is too old, the server sends a `stale` event; if there was no cursor yet, the
source creates that event itself.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from cfs import api
from cfs.contract.errors import CfsError, TooMany, Unavailable, Unreachable
from cfs.contract.sse import ServerSentEvent, SSEDecoder
from cfs.contract.wire import EventType

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0

EventName = EventType | Literal["connected"]
"""What may have happened; `connected` is of the client, if it was asked for."""


def growing_pause(failures: int) -> float:
    """Return the seconds to wait before the next request, after this many failures in a row."""
    return min(_FIRST_PAUSE * 2.0 ** (min(failures, 10) - 1), _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event. A stream resumes after `id`; `data` is what happened, by the `type` (docs/sessions.md).

    `stale` means that events were missed: its `data` holds the present state under `session` (not in the stream of
    all sessions, nor where a connection was lost before the first event). `time` is in seconds since the epoch.
    """

    type: EventName
    data: Mapping[str, Any]
    id: str = ""
    session: str = ""
    number: int = 0
    position: int = 0
    time: float = 0.0

    @property
    def turn(self) -> str | None:
        """Id of the turn that the event belongs to."""
        turn = self.data.get("turn")
        return turn if isinstance(turn, str) else None


@dataclass
class EventSource:
    """Reads one stream. `attempts` is the maximum number of consecutive reconnections."""

    stream: api.Stream
    attempts: float = 8
    ended: bool = False
    _cursor: str = ""
    _turn: str | None = field(init=False)
    _failures: int = 0
    _again: bool = False
    _sent: bool = False
    _reached: bool = field(init=False)
    _decoder: SSEDecoder = field(default_factory=SSEDecoder)

    def __post_init__(self) -> None:
        self._turn = self.stream.turn
        self._reached = self.stream.turn is not None  # by the request that named it

    @property
    def request(self) -> api.Request:
        """The request to send now: the first one, or the one that continues the stream."""
        if not self._again:
            return self.stream.request
        resumed = api.events(self.stream.session).request
        headers = dict(resumed.headers) | ({"Last-Event-ID": self._cursor} if self._cursor else {})
        if self._cursor and self.stream.one_turn:  # a turn ends with its session, even if the name is reused
            headers[api.LIFE] = api.life_in(self._cursor)
        params = {} if self._cursor else self.stream.request.params
        return replace(resumed, headers=headers, params=params)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next request."""
        return growing_pause(self._failures)

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Parse bytes of the current connection and yield the completed events of this stream."""
        for raw in self._decoder.feed(data):
            if self.ended:
                return
            event = read_event(raw)
            self._failures = 0
            self._cursor = event.id or self._cursor
            if self.stream.one_turn and self._turn is None:
                self._turn = event.turn
            if self._is_relevant(event):
                yield event
                self.ended = self._last(event)

    def connected(self) -> Iterator[StreamEvent]:
        """Start a new connection; yields `stale` if earlier events cannot be requested."""
        self._decoder = SSEDecoder()
        self._reached = True
        if self.stream.announce:
            yield StreamEvent("connected", {})
        if self._again and not self._cursor and "after" not in self.stream.request.params:
            yield StreamEvent("stale", {})

    @property
    def cut(self) -> bool:
        """Whether the client has to close the connection: the stream is over, but the server does not close it."""
        return self.ended and (self._again or self.stream.request.method != "POST")

    def lost(self, reason: CfsError | None = None, *, sent: bool = True) -> None:
        """Prepare to reconnect; raises the reason if that is impossible or useless.

        Without a reason the server has closed the connection. `sent` is whether the server may have received the
        request. Does nothing if the stream has ended.
        """
        if self.ended:
            return
        reason = reason or Unreachable("the stream of events ended before its end")
        if not isinstance(reason, Unavailable | TooMany):
            raise reason
        self._sent = self._sent or sent
        unknown = self.stream.one_turn and self._turn is None  # the message may have been stored
        if not (self._sent and self.stream.request.repeatable if unknown else self._reached):
            raise reason
        self._failures += 1
        if self._failures > self.attempts:
            raise reason
        self._again = not unknown  # else the same request, which the server carries out once

    def _is_relevant(self, event: StreamEvent) -> bool:
        if not self.stream.one_turn or event.type in ("stale", "session.deleted"):
            return True
        return self._turn is not None and event.turn == self._turn

    def _last(self, event: StreamEvent) -> bool:
        if self.stream.one_turn and event.type in ("turn.finished", "turn.failed"):
            return True
        return event.type == "session.deleted" and self.stream.session is not None and "renamed_to" not in event.data


def read_event(raw: ServerSentEvent) -> StreamEvent:
    """Parse one event of the server; raises `Unreachable` if it is not a CFS event."""
    try:
        body = json.loads(raw.data)
    except ValueError:
        raise Unreachable(f"the stream holds something that is no event of CFS: {raw.data[:80]!r}") from None
    kind = cast("EventName", raw.event)
    if kind in ("stale", "goodbye"):
        return StreamEvent(kind, body, raw.id)
    return StreamEvent(
        kind,
        body["data"],
        raw.id,
        body["session"],
        body["number"],
        body["position"],
        body["time"],
    )
