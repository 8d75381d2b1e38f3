"""The numbered log of all events of sessions (S11).

Each session has an `EventLog`. The `EventBus` has one more log with the events of all sessions. A reader follows a log
with a cursor. There are no queues per reader, so a slow reader is cheap and delays no one. When its cursor is no longer
in the log, the reader gets one `Stale` and continues from the present.

Logs are limited in the number and in the bytes of their events. Texts count even if the history of the session still
contains them, because a log keeps them when the history is replaced or the session is deleted. Earlier events come from
the journal.

Numbers go on after a restart. A crash can lose events that readers have seen, and then their numbers are used again.
Therefore a cursor names the epoch of its number, which is one run of the server. The journal knows the last durable
number of each epoch: a cursor up to it is exact, and one beyond it is stale.
"""

import json
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any
from weakref import ReferenceType, ref

from cfs.errors import InvalidRequest
from cfs.wire import EventType
from cfs_server.base.broadcast import Broadcast
from cfs_server.domain.message_sizes import cost_of_value
from cfs_server.domain.quotas import StoreLimits

EVENT_COST = 512
"""Measured memory of an event in bytes without its data: the object, its places in logs, its wire form."""
_BATCH_BYTES = 256 << 10
"""Maximum bytes that a reader takes from a log at once. The reader keeps these events in memory until they are sent."""
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, eq=False)
class LoggedEvent:
    """One event; see `cfs.wire.Event` for the fields."""

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
        """The maximum memory of the event in bytes. The wire form is estimated as 1.5 times the data."""
        return EVENT_COST + self._size + self._size * 3 // 2

    @property
    def json(self) -> str:
        """The wire form, encoded once for all readers. A form larger than estimated by `cost` is not cached."""
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
class EventArchive:
    """The events in the journal. The first argument of the functions is a session's key; None is the common log.

    `events` returns those after a number, up to about some bytes, or None if they are not available. `last_of` returns
    the last number of an epoch; None for an unknown one. `settled` returns when all published events are durable, or
    those up to a position.
    """

    epoch: str
    life: str
    position: int
    events: Callable[[str | None, int, int], Awaitable[list[LoggedEvent] | None]]
    last_of: Callable[[str, str | None], Awaitable[int | None]]
    settled: Callable[[int | None], Awaitable[None]]


_AT_ONCE: frozenset[EventType] = frozenset({"token", "turn.started", "state.changed", "context.shifted"})
"""Events that readers get before they are durable."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The reader's cursor is no longer in the log. It continues after `last`."""

    asked: int
    last: int


def new_nonce() -> str:
    """Return a new nonce for a log."""
    return secrets.token_hex(4)


_NO_EVENTS: deque[LoggedEvent] = deque(maxlen=0)
"""The events of all empty logs. A deque of its own costs 760 bytes."""


class EventLog:
    """The newest events in order of their numbers: at most `capacity` events and `size` bytes, but at least one event.

    `life` distinguishes cursors of an earlier log with the same name. `last` is the number of the event before the
    first one, and `key` names the log in the archive.
    """

    __slots__ = (
        "__weakref__",
        "_archive",
        "_capacity",
        "_events",
        "_first",
        "_key",
        "_size",
        "broadcast",
        "bytes",
        "closed",
        "goodbye",
        "life",
        "number_of",
    )

    def __init__(
        self,
        capacity: int,
        size: int,
        number_of: Callable[[LoggedEvent], int],
        life: str | None = None,
        *,
        archive: EventArchive | None = None,
        key: str | None = None,
        last: int = 0,
    ) -> None:
        self.life = life or new_nonce()
        self.closed = False
        self.goodbye = False
        self.broadcast = Broadcast()
        self.bytes = 0
        self._capacity = capacity
        self._size = size
        self.number_of = number_of
        self._events = _NO_EVENTS
        self._first = last + 1
        self._archive = archive
        self._key = key

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._first + len(self._events) - 1

    def append(self, event: LoggedEvent) -> None:
        """Add the event with the next number and wake the readers."""
        if not self._events:
            self._events = deque()
        self._events.append(event)
        self.bytes += event.cost
        while len(self._events) > 1 and (len(self._events) > self._capacity or self.bytes > self._size):
            self._drop_first()
        self.broadcast.fire()

    def skip_to(self, number: int) -> None:
        """Continue an empty log after a number."""
        self._first = number + 1

    def drop(self, number: int) -> None:
        """Drop the events up to a number."""
        while self._events and self._first <= number:
            self._drop_first()

    def _drop_first(self) -> None:
        self.bytes -= self._events.popleft().cost
        self._first += 1
        if not self._events:
            self._events = _NO_EVENTS

    def close(self, *, goodbye: bool = False) -> None:
        """End the readers after the last event. `goodbye` means that the server shuts down."""
        self.closed, self.goodbye = True, goodbye
        self.broadcast.fire()

    def since(self, after: int, limit: float = inf) -> list[LoggedEvent] | Stale:
        """Return the events after a number, or `Stale` if this log does not contain them.

        The list ends with the event that reaches `limit` bytes.
        """
        if not self._first - 1 <= after <= self.last:
            return Stale(after, self.last)
        events: list[LoggedEvent] = []
        size = 0
        for at in range(after - self._first + 1, len(self._events)):
            events.append(self._events[at])
            size += events[-1].cost
            if size >= limit:
                break
        return events

    async def cursor(self, token: str | None) -> int:
        """Parse a reader's cursor: `<life>.<epoch>-<number>`, or a plain number of this epoch.

        A cursor of another life of the log, or beyond the durable events of an earlier epoch, returns -1, which is
        stale. Raises `InvalidRequest` for anything else.
        """
        if not token:
            return self.last
        origin, dash, digits = token.rpartition("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise InvalidRequest("an event cursor is the `id` of an event, or its number")
        number, (life, _, epoch) = int(digits), origin.partition(".")
        if not dash or (life, epoch) == (self.life, self._epoch):
            return number
        if life != self.life or self._archive is None:
            return -1
        last = await self._archive.last_of(epoch, self._key)
        return -1 if last is None or number > last else number

    @property
    def _epoch(self) -> str:
        return "" if self._archive is None else self._archive.epoch

    def token(self, number: int) -> str:
        """Return the cursor that resumes after the event with this number."""
        return f"{self.life}.{self._epoch}-{number}" if self._epoch else f"{self.life}-{number}"

    async def follow(self, after: int) -> AsyncGenerator[list[LoggedEvent] | Stale]:
        """Yield the events after a number in batches as they arrive, until the log is closed.

        Events are durable when they are yielded, except the pieces of a reply.
        """
        while True:
            events = self.since(after, _BATCH_BYTES)
            if isinstance(events, Stale):
                earlier = await self._earlier(after)
                if earlier is None:
                    yield events
                    after = events.last
                elif earlier:
                    yield earlier
                    after = self.number_of(earlier[-1])
                else:  # of sessions that have been deleted
                    after = self._first - 1
            elif events:
                waits = [event.position for event in events if event.type not in _AT_ONCE]
                if self._archive is not None and waits:
                    await self._archive.settled(waits[-1])
                yield events
                after += len(events)
            elif self.closed:
                return
            else:
                await self.broadcast.wait()

    async def _earlier(self, after: int) -> list[LoggedEvent] | None:
        """Return events after a number that have left the memory, or None."""
        if self._archive is None or not 0 <= after < self._first:
            return None
        await self._archive.settled(None)
        return await self._archive.events(self._key, after, _BATCH_BYTES)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the numbers are consecutive and the byte count is correct."""
        numbers = [self.number_of(event) for event in self._events]
        if numbers != list(range(self._first, self._first + len(numbers))):
            raise AssertionError(f"event numbers skip or repeat: {numbers[:20]}")
        if self.bytes != sum(event.cost for event in self._events):
            raise AssertionError(f"{self.bytes} bytes are counted for {len(numbers)} events")


def _number(event: LoggedEvent) -> int:
    return event.number


class EventBus:
    """All events of all sessions in one order. Assigns the two numbers of each event.

    The bytes of all logs together are limited, whatever the number of sessions. `_held` contains the events that a log
    may still hold. The oldest ones are also dropped from the log of their session.
    """

    def __init__(self, limits: StoreLimits | None = None, archive: EventArchive | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._archive = archive
        self.log = EventLog(
            self._limits.all_events,
            self._limits.all_event_bytes,
            lambda event: event.position,
            None if archive is None else archive.life,
            archive=archive,
            last=0 if archive is None else archive.position,
        )
        self.bytes = 0
        self._most_bytes = self._limits.all_event_bytes
        # weak references: it does not keep a deleted session's log
        self._held: deque[tuple[ReferenceType[EventLog], LoggedEvent]] = deque()

    def share_limits(self, stores: int) -> None:
        """Use a part of the memory from now on, because this many stores share it."""
        self._most_bytes = self._limits.all_event_bytes // stores

    def new_log(self, life: str | None = None, key: str | None = None, last: int = 0) -> EventLog:
        """Create the log of a session, with an existing life if given. `last` is the number of its last event."""
        limits, archive = self._limits, self._archive
        return EventLog(
            limits.session_events, limits.session_event_bytes, _number, life, archive=archive, key=key, last=last
        )

    def publish(
        self, log: EventLog, kind: EventType, session: str, data: dict[str, Any], at: float | None = None
    ) -> LoggedEvent:
        """Number an event and add it to the log of its session and to the common log. `at` defaults to now."""
        event = LoggedEvent(kind, session, log.last + 1, self.log.last + 1, time.time() if at is None else at, data)
        log.append(event)
        self.log.append(event)
        self._held.append((ref(log), event))
        self.bytes += event.cost
        while len(self._held) > 1 and self.bytes > self._most_bytes:
            old_log, old = self._held.popleft()
            self.bytes -= old.cost
            if (living := old_log()) is not None:
                living.drop(old.number)
        return event

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the common log is valid and all bytes are counted."""
        self.log.check_integrity()
        if self.bytes != sum(event.cost for _, event in self._held):
            raise AssertionError(f"{self.bytes} bytes are counted for {len(self._held)} events")
