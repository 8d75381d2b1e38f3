"""The numbered record of everything that happens to sessions (S11).

Every session has an `EventLog`; the `EventBus` keeps one more over all of them. A reader follows a log by a cursor:
nothing is queued per reader, so a slow reader costs little and is never waited for. When its cursor has fallen out
of the log it is told so by one `Stale` and goes on from the present.

Logs are bounded by the number of their events and by the bytes that these hold. Whether a session's history still
holds the same texts does not count: a log holds them on when the history is replaced or the session deleted.
"""

import json
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any
from weakref import ReferenceType, ref

from cfs.errors import InvalidRequest
from cfs.wire import EventType
from cfs_server.broadcast import Broadcast
from cfs_server.sessions.history import cost_of_value
from cfs_server.sessions.quotas import Limits

EVENT_COST = 512
"""Bytes of memory that an event takes without its data, as measured: the object, its places in logs, its wire form."""
_BATCH_BYTES = 256 << 10
"""What a reader takes from a log at a time: as long as it is busy with that, it keeps these events in memory."""
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, eq=False)
class Event:
    """One thing that happened; see `cfs.wire.Event` for the fields."""

    type: EventType
    session: str
    number: int
    position: int
    time: float
    data: dict[str, Any]
    _wire: str | None = field(default=None, init=False, repr=False)

    @cached_property
    def _size(self) -> int:
        return sys.getsizeof(self.session) + sum(map(cost_of_value, self.data.values()))

    @property
    def cost(self) -> int:
        """Bytes of memory that the event takes at most, with a wire form half as large again as its data."""
        return EVENT_COST + self._size + self._size * 3 // 2

    @property
    def json(self) -> str:
        """The wire form, encoded once for all readers; one that is larger than `cost` counts is not kept."""
        if self._wire is not None:
            return self._wire
        wire = _json(
            {
                "type": self.type,
                "session": self.session,
                "number": self.number,
                "position": self.position,
                "time": self.time,
                "data": self.data,
            }
        )
        if sys.getsizeof(wire) <= self.cost - self._size:
            object.__setattr__(self, "_wire", wire)
        return wire


@dataclass(frozen=True, slots=True)
class Stale:
    """The reader's cursor is no longer in the log; it continues after `last`."""

    asked: int
    last: int


def new_nonce() -> str:
    """Make the name of a log's life."""
    return secrets.token_hex(4)


class EventLog:
    """Events in the order of their numbers: the newest, `capacity` of them and `size` bytes at most, but always one.

    A number belongs to one life of one log: `nonce` tells a cursor of an earlier log of the same name apart.
    """

    def __init__(self, capacity: int, size: int, number_of: Callable[[Event], int], nonce: str | None = None) -> None:
        self.nonce = nonce or new_nonce()
        self.closed = False
        self.goodbye = False
        self.broadcast = Broadcast()
        self.bytes = 0
        self._capacity = capacity
        self._size = size
        self.number_of = number_of
        self._events: deque[Event] = deque()
        self._first = 1

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._first + len(self._events) - 1

    def append(self, event: Event) -> None:
        """Add the event that has the next number and wake the readers."""
        self._events.append(event)
        self.bytes += event.cost
        while len(self._events) > 1 and (len(self._events) > self._capacity or self.bytes > self._size):
            self._drop_first()
        self.broadcast.fire()

    def drop(self, number: int) -> None:
        """Drop the events up to a number."""
        while self._events and self._first <= number:
            self._drop_first()

    def _drop_first(self) -> None:
        self.bytes -= self._events.popleft().cost
        self._first += 1

    def close(self, *, goodbye: bool = False) -> None:
        """Let the readers end once they have read everything; `goodbye` tells them that the server is going."""
        self.closed, self.goodbye = True, goodbye
        self.broadcast.fire()

    def since(self, after: int, most: float = inf) -> list[Event] | Stale:
        """Return the events after a number, or `Stale` where they are no longer (or never were) in this log.

        The list ends with the event that makes it `most` bytes.
        """
        if not self._first - 1 <= after <= self.last:
            return Stale(after, self.last)
        found: list[Event] = []
        size = 0
        for at in range(after - self._first + 1, len(self._events)):
            found.append(self._events[at])
            size += found[-1].cost
            if size >= most:
                break
        return found

    def cursor(self, token: str | None) -> int:
        """Read a cursor that a reader sends back: `<nonce>-<number>`, or a bare number of this log.

        A cursor of another life of the log reads as -1, which is stale. Raises `InvalidRequest` for anything else.
        """
        if not token:
            return self.last
        nonce, dash, number = token.rpartition("-")
        if not (number.isascii() and number.isdigit() and len(number) <= 18):
            raise InvalidRequest("an event cursor is the `id` of an event, or its number")
        return -1 if dash and nonce != self.nonce else int(number)

    def token(self, number: int) -> str:
        """Write the cursor that resumes after the event of this number."""
        return f"{self.nonce}-{number}"

    async def follow(self, after: int) -> AsyncIterator[list[Event] | Stale]:
        """Yield what comes after a number, as it comes and much of it at a time, until the log is closed."""
        while True:
            events = self.since(after, _BATCH_BYTES)
            if isinstance(events, Stale):
                yield events
                after = events.last
            elif events:
                yield events
                after += len(events)
            elif self.closed:
                return
            else:
                await self.broadcast.wait()

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the numbers follow one another, and the bytes are those of the events."""
        numbers = [self.number_of(event) for event in self._events]
        if numbers != list(range(self._first, self._first + len(numbers))):
            raise AssertionError(f"event numbers skip or repeat: {numbers[:20]}")
        if self.bytes != sum(event.cost for event in self._events):
            raise AssertionError(f"{self.bytes} bytes are counted for {len(numbers)} events")


class EventBus:
    """All events of all sessions in one order, and the way each of them gets its two numbers.

    The bytes of all logs together are bounded, however many sessions there are: `_held` has the events that a log may
    still hold, and the oldest leave their session's log, too.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.log = EventLog(self._limits.all_events, self._limits.all_event_bytes, lambda event: event.position)
        self.bytes = 0
        self._held: deque[tuple[ReferenceType[EventLog], Event]] = deque()  # does not keep a deleted session's log

    def new_log(self, nonce: str | None = None) -> EventLog:
        """Make the log of a session, whose life may have a name already."""
        limits = self._limits
        return EventLog(limits.session_events, limits.session_event_bytes, lambda event: event.number, nonce)

    def publish(
        self, log: EventLog, kind: EventType, session: str, data: dict[str, Any], at: float | None = None
    ) -> Event:
        """Number an event, add it to its session's log and to the common one; `at` is its time, now unless given."""
        event = Event(kind, session, log.last + 1, self.log.last + 1, time.time() if at is None else at, data)
        log.append(event)
        self.log.append(event)
        self._held.append((ref(log), event))
        self.bytes += event.cost
        while len(self._held) > 1 and self.bytes > self._limits.all_event_bytes:
            old_log, old = self._held.popleft()
            self.bytes -= old.cost
            if (living := old_log()) is not None:
                living.drop(old.number)
        return event

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the common log is sound, and all bytes are counted."""
        self.log.check_integrity()
        if self.bytes != sum(event.cost for _, event in self._held):
            raise AssertionError(f"{self.bytes} bytes are counted for {len(self._held)} events")
