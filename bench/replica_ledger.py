"""What readers of all sessions and the database show of replicas, and whether it is right. Pure: no I/O.

The stream of all sessions contains those of all slots, each in an order of its own, and its cursor one for each slot.
It is split into them again, so that each is checked like the stream of one server (`crash_ledger.Reading`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from cfs_server.cluster.event_merging import decode
from crash_ledger import Reading, Seen

Cursors = Mapping[int, str]


@dataclass(slots=True)
class MergedReading:
    """What one reader of all sessions has received."""

    slots: dict[int, Reading] = field(default_factory=dict)
    cursors: Cursors = field(default_factory=dict)
    connections: int = 0
    """Since the last check. A reader may get one `stale` for a slot on each."""
    problems: list[str] = field(default_factory=list)

    def add(self, event: Seen) -> None:
        """Note an event; its cursor says which slot it is from."""
        found = split(self.cursors, event)
        self.cursors = decode(event.id)
        if found is not None:
            self.slots.setdefault(found[0], Reading(f"slot {found[0]}")).events.append(found[1])
        elif event.type != "goodbye":
            self.problems.append(f"an event without a place in its cursor: {event}")

    def has(self, newest: Mapping[int, int]) -> bool:
        """Return whether everything up to these numbers has been read."""
        return all(_newest(self.slots.get(slot)) >= number for slot, number in newest.items())

    def check(
        self, full: Mapping[int, Mapping[int, Seen]], unkept: Mapping[int, int] = MappingProxyType({})
    ) -> list[str]:
        """Compare with streams that were never cut, and return what is wrong. See `Reading.check`.

        Of a slot in `unkept`, events up to a number cannot be compared, because some of them are deleted.
        """
        problems, self.problems = self.problems, []
        for slot, events in full.items():
            reading = self.slots.setdefault(slot, Reading(f"slot {slot}"))
            own = {
                each.number: each
                for each in reading.events
                if each.number <= unkept.get(slot, 0) and each.type != "stale"
            }
            problems += reading.check(own | dict(events), self.connections)
        self.connections = 1
        return problems


def split(before: Cursors, event: Seen) -> tuple[int, Seen] | None:
    """Return the slot of an event of all sessions, and the event as that slot numbers it; None if no slot has sent it.

    `before` is the cursor of the event before it.
    """
    for slot, token in decode(event.id).items():
        if token != before.get(slot) and number_of(token) == event.number and event.number > 0:
            return slot, event._replace(id=token)
    return None


def number_of(token: str) -> int:
    """Return the number in the cursor of one slot."""
    return int(token.rpartition("-")[2])


def _newest(reading: Reading | None) -> int:
    if reading is None:
        return 0
    return reading.events[-1].number if reading.events else reading.last


@dataclass(slots=True)
class Meanings:
    """What each id of an event stood for, to whoever read it."""

    texts: dict[str, str] = field(default_factory=dict)

    def check(self, events: Iterable[Seen]) -> Iterator[str]:
        """Yield ids that stand for two events."""
        for event in events:
            if event.type != "stale" and self.texts.setdefault(event.id, event.json) != event.json:
                yield f"{event.id} means two things: {self.texts[event.id]} and {event.json}"


# -- the database -----------------------------------------------------------------------------------------------------


_CLOCK_SECONDS = 0.05
"""A measurement that counts is wrong by at most half of its round trip of 0.1 s."""


class Epoch(NamedTuple):
    """One claim of a slot: what had been stored before it, and when it was made."""

    slot: int
    epoch: int
    seq: int
    position: int
    at: float


class Stored(NamedTuple):
    """A record, and when its writer made it."""

    slot: int
    seq: int
    session: str
    at: float
    number: int
    position: int


def interleaved(epochs: Sequence[Epoch], records: Sequence[Stored]) -> Iterator[str]:
    """Yield records that are not between the claims of their writer, and numbers that do not grow.

    All clocks are that of one machine, but a replica measures the time of the database. A record behind a claim that
    was made before it is one of an owner that had lost the slot; one before a claim that was made after it, too.
    """
    for slot in sorted({epoch.slot for epoch in epochs}):
        claims = sorted(epoch for epoch in epochs if epoch.slot == slot)
        rows = sorted(row for row in records if row.slot == slot)
        for one, other in pairwise(claims):
            if (one.seq, one.position) > (other.seq, other.position) or one.position > other.position:
                yield f"slot {slot}: the claim {other.epoch} begins before {one.epoch} ends"
        for claim, following in zip(claims, [*claims[1:], None], strict=True):
            end = following.seq if following else None
            for row in rows:
                if row.seq <= claim.seq or (end is not None and row.seq > end):
                    continue
                late = following is not None and row.at > following.at + _CLOCK_SECONDS
                if row.at < claim.at - _CLOCK_SECONDS or late:
                    yield f"slot {slot}: the record {row.seq} is not of the owner that had it: {row}, {claim}"
        last: dict[str, int] = {}
        for before, after in pairwise(rows):
            if before.position > after.position:
                yield f"slot {slot}: the record {after.seq} repeats the positions of {before.seq}"
        for row in rows:
            if row.number < last.get(row.session, 0):
                yield f"slot {slot}: the record {row.seq} repeats numbers of {row.session}"
            last[row.session] = row.number
