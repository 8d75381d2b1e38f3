"""The hidden files of a session: its tokens as they come, its state, its events (F5)."""

import json
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict

from cfs import api
from cfs.errors import Busy, Forbidden
from cfs.stream import StreamEvent
from cfs_fuse.attributes import Attributes
from cfs_fuse.cache import Cache
from cfs_fuse.entries import Entry, RunningTurn
from cfs_fuse.handles import Parts

MOST_EVENTS = 20_000
"""Events that wait for a slow reader of `.events`; when there are more it is told by a `stale` line."""


class ControlHandle:
    """What control files have in common: they can only be read, and their size says nothing."""

    def __init__(self, parts: Parts, entry: Entry) -> None:
        self._parts = parts
        self._entry = entry

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:
        """Return bytes from an offset; none at the end."""
        raise NotImplementedError

    def write(self, data: bytes, offset: int) -> None:  # noqa: ARG002 - whatever it is
        """Refuse."""
        raise Forbidden("control files can only be read")

    def commit(self) -> None:
        """Nothing is to be done."""

    def truncate(self, size: int) -> None:
        """Nothing is to be done."""

    def attributes(self) -> Attributes:
        """Describe a file that looks empty: nobody knows how much will come."""
        return self._parts.look.file(0, self._entry.changed_at)

    def close(self) -> None:
        """Nothing is to be done."""


class StatusHandle(ControlHandle):
    """The state of a session as one line of JSON, as it was when the file was opened."""

    def __init__(self, parts: Parts, entry: Entry) -> None:
        super().__init__(parts, entry)
        self._data = status(parts.cache, entry)

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return a part of it."""
        return self._data[offset : offset + size]

    def attributes(self) -> Attributes:
        """Describe it."""
        return self._parts.look.file(len(self._data), self._entry.changed_at)


class LiveHandle(ControlHandle):
    """The text of one turn as it is generated: the running one, or else the next."""

    def __init__(self, parts: Parts, entry: Entry) -> None:
        super().__init__(parts, entry)
        self._text = bytearray()
        self._pieces = 0
        with parts.cache.lock:
            self._turn = _running(entry)
            if self._turn is None:
                entry.followers.append(self)
        if self._turn is None and not entry.idle:
            self._catch_up()

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:
        """Return what there is beyond an offset, or wait for it; nothing after the end of the turn."""
        cache, entry = self._parts.cache, self._entry
        with cache.lock:
            if not blocking and not self._more(offset) and not entry.gone:
                raise Busy("nothing new has been generated")
            talked = cache.talked(entry)
            self._parts.patience.until(talked, lambda: self._more(offset) or entry.gone or not cache.online)
            if not self._more(offset):
                cache.check(entry)
        return bytes(self._text[offset : offset + size])

    def happened(self, event: StreamEvent) -> None:
        """Take the turn that begins."""
        if event.type == "turn.started":
            self._turn = self._entry.turn
            self._entry.followers.remove(self)

    def close(self) -> None:
        """Wait for no turn any more."""
        with self._parts.cache.lock:
            if self in self._entry.followers:
                self._entry.followers.remove(self)

    def _more(self, offset: int) -> bool:
        """Tell whether a read would return at once."""
        turn = self._turn
        if turn is None:
            return False
        for piece in turn.said[self._pieces :]:
            self._text += piece.encode()
        self._pieces = len(turn.said)
        return turn.ended or offset < len(self._text)

    def _catch_up(self) -> None:
        """Get the beginning of a turn that runs since before this bridge began to listen."""
        while True:
            detail = self._parts.server.call(api.read(self._entry.id))
            with self._parts.cache.lock:
                if self._turn is not None or detail.partial is None:
                    return
                if self._entry.event <= detail.event:  # else a token may have come by that is in neither
                    self._entry.turn = self._turn = RunningTurn("", [detail.partial], detail.event)
                    self._entry.followers.remove(self)
                    return


class EventsHandle(ControlHandle):
    """Everything that happened to a session and happens to it, one JSON object a line; ends when it is deleted."""

    def __init__(self, parts: Parts, entry: Entry) -> None:
        super().__init__(parts, entry)
        self._coming: deque[StreamEvent] = deque()
        self._start = 0
        self._text = b""
        with parts.cache.lock:
            now = entry.event
            entry.followers.append(self)
        past = parts.patience.call(lambda: self._past(now))
        self._text = _lines(past)
        self._last = past[-1].number if past and past[-1].number else now

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:
        """Return the lines beyond an offset, or wait for one."""
        cache, entry = self._parts.cache, self._entry
        with cache.lock:
            if not blocking and not self._more(offset) and not entry.gone:
                raise Busy("nothing more has happened")
            self._parts.patience.until(
                cache.talked(entry), lambda: self._more(offset) or entry.gone or not cache.online
            )
            if not self._more(offset) and not entry.gone:
                cache.check(entry)
            begin = max(0, offset - self._start)
            return self._text[begin : begin + size]

    def happened(self, event: StreamEvent) -> None:
        """Keep an event for the reader."""
        if len(self._coming) >= MOST_EVENTS:
            self._coming.clear()
            event = StreamEvent("stale", {}, "", event.session, event.number, event.position, event.time)
        self._coming.append(event)

    def close(self) -> None:
        """Listen no more."""
        with self._parts.cache.lock:
            if self in self._entry.followers:
                self._entry.followers.remove(self)

    def _more(self, offset: int) -> bool:
        if self._coming:
            news = [event for event in self._coming if event.number > self._last]
            self._coming.clear()
            read = max(0, offset - self._start)  # what was read is not read again: a log is no file to seek in
            self._text = self._text[read:] + _lines(news)
            self._start += read
        return offset < self._start + len(self._text)

    def _past(self, last: int) -> list[StreamEvent]:
        found: list[StreamEvent] = []
        if last == 0:
            return found
        with closing(self._parts.server.history(self._entry.id)) as events:
            for event in events:
                found.append(event)
                if event.number >= last or event.type == "stale":
                    break
        return found


def status(cache: Cache, entry: Entry) -> bytes:
    """Describe a session as JSON; sizes are bytes, times are seconds since the epoch."""
    with cache.lock:
        settled = cache.settled(entry)
        cache.check(entry)
        found = {
            "id": entry.id,
            "state": entry.state,
            "settled": settled,
            "queued": entry.queued,
            "messages": entry.messages,
            "size": entry.size,
            "created_at": entry.created_at,
            "changed_at": entry.changed_at,
            "event": entry.event,
        }
    return (json.dumps(found, ensure_ascii=False) + "\n").encode()


def _running(entry: Entry) -> RunningTurn | None:
    return entry.turn if entry.turn is not None and not entry.turn.ended else None


def _lines(events: Iterable[StreamEvent]) -> bytes:
    lines = []
    for event in events:
        shown = asdict(event)
        del shown["id"]
        lines.append(json.dumps(shown, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines).encode()
