"""The numbered record of everything that happens to sessions (S11).

Every session has an `EventLog`; the `EventBus` keeps one more over all of them. A reader follows a log by a cursor:
nothing is queued per reader, so a slow reader costs nothing and is never waited for. When its cursor has fallen out
of the log it is told so by one `Stale` and goes on from the present.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cfs.errors import InvalidRequest
from cfs.wire import EventType
from cfs_server.pulse import Pulse

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

    @cached_property
    def json(self) -> str:
        """The wire form, encoded once for all readers."""
        return _json(
            {
                "type": self.type,
                "session": self.session,
                "number": self.number,
                "position": self.position,
                "time": self.time,
                "data": self.data,
            }
        )


@dataclass(frozen=True, slots=True)
class Stale:
    """The reader's cursor is no longer in the log; it continues after `last`."""

    asked: int
    last: int


class EventLog:
    """Events in the order of their numbers, the newest `capacity` of them at least.

    A number belongs to one life of one log: `nonce` tells a cursor of an earlier log of the same name apart.
    """

    def __init__(self, capacity: int, number_of: Callable[[Event], int]) -> None:
        self.nonce = secrets.token_hex(4)
        self.closed = False
        self.goodbye = False
        self.pulse = Pulse()
        self._capacity = capacity
        self.number_of = number_of
        self._events: list[Event] = []
        self._first = 1

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._first + len(self._events) - 1

    def append(self, event: Event) -> None:
        """Add the event that has the next number and wake the readers."""
        self._events.append(event)
        if len(self._events) > self._capacity * 5 // 4:  # in slices: amortised, not a memmove per event
            dropped = len(self._events) - self._capacity
            del self._events[:dropped]
            self._first += dropped
        self.pulse.fire()

    def close(self, *, goodbye: bool = False) -> None:
        """Let the readers end once they have read everything; `goodbye` tells them that the server is going."""
        self.closed, self.goodbye = True, goodbye
        self.pulse.fire()

    def since(self, after: int) -> list[Event] | Stale:
        """Return the events after a number, or `Stale` where they are no longer (or never were) in this log."""
        if not self._first - 1 <= after <= self.last:
            return Stale(after, self.last)
        return self._events[after - self._first + 1 :]

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
        """Yield what comes after a number, as it comes and all of it at a time, until the log is closed."""
        while True:
            events = self.since(after)
            if isinstance(events, Stale):
                yield events
                after = events.last
            elif events:
                yield events
                after += len(events)
            elif self.closed:
                return
            else:
                await self.pulse.wait()

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the numbers follow one another."""
        numbers = [self.number_of(event) for event in self._events]
        if numbers != list(range(self._first, self._first + len(numbers))):
            raise AssertionError(f"event numbers skip or repeat: {numbers[:20]}")


class EventBus:
    """All events of all sessions in one order, and the way each of them gets its two numbers."""

    def __init__(self, *, capacity: int = 65_536, session_capacity: int = 2_048) -> None:
        self.log = EventLog(capacity, lambda event: event.position)
        self._session_capacity = session_capacity

    def new_log(self) -> EventLog:
        """Make the log of a new session."""
        return EventLog(self._session_capacity, lambda event: event.number)

    def publish(self, log: EventLog, kind: EventType, session: str, data: dict[str, Any]) -> Event:
        """Number an event, add it to its session's log and to the common one."""
        event = Event(kind, session, log.last + 1, self.log.last + 1, time.time(), data)
        log.append(event)
        self.log.append(event)
        return event
