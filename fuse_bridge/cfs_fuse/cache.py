"""Every session that the bridge may see, kept true by the server's events; and who waits for what (F3, F7). No I/O."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cfs import api
from cfs.errors import CfsError, Gone, NotFound, Unreachable
from cfs.state import SessionState, life_of
from cfs.stream import StreamEvent
from cfs.transcript import render_one
from cfs.transports.http import Client
from cfs.wire import Message, SessionInfo
from cfs_fuse.server import Server, listing

# One session as the mount shows it (F7). No I/O; the cache's lock guards it.

_MOMENT = 0.1


class EventListener(Protocol):
    """Somebody who wants to see what happens to a session: an open control file."""

    def on_event(self, event: StreamEvent) -> None:
        """Take notice; called under the cache's lock, before those who wait are woken."""
        ...


@dataclass(eq=False, slots=True)
class Entry(SessionState):
    """One session in one life of its name; it keeps its identity when it is renamed.

    `version` grows with each change of the transcript, `edits` with each that did more than append. `text` holds the
    transcript in pieces, where it was read lately. `written_at` is when the server last accepted something from this
    mount, on the monotonic clock.
    """

    id: str = ""
    created_at: float = 0.0
    version: int = 0
    edits: int = 0
    written_at: float = -math.inf
    text: list[bytes] | None = None
    listeners: list[EventListener] = field(default_factory=list)
    moved: threading.Condition | None = None
    talked: threading.Condition | None = None

    @classmethod
    def of(cls, info: SessionInfo) -> "Entry":
        """Make an entry of a line of a listing."""
        entry = cls(id=info.id)
        entry.restore(info)
        return entry

    def restore(self, info: SessionInfo) -> None:
        """Take over the present state; what happened in between is not known."""
        if self.turn is not None:
            self.turn.ended = True
        SessionState.restore(self, info)
        self.created_at = info.created_at
        self._replaced()

    def is_life_of(self, info: SessionInfo) -> bool:
        """Tell whether a line of a listing means this session, or another one that has its name now.

        A server that is older than this says no life in its events; the event is a moment younger than the session.
        """
        if self.life and (life := life_of(info)):
            return self.life == life
        return abs(info.created_at - self.created_at) < _MOMENT

    def apply(self, event: StreamEvent) -> bool:
        """Take over an event; False for one of the past, which is included already, or of an earlier life."""
        running = self.turn if self.turn is not None and not self.turn.ended else None
        if event.time < self.created_at or not SessionState.apply(self, event):  # no super(): the class has slots
            return False
        match event.type:
            case "message.added":
                self._grow(event.data)
            case "history.replaced":
                self._replaced()
            case "turn.finished" | "turn.failed" if running is not None and running.ended:
                rest = running.rest()
                running.pieces.append("\n" + running.reply if rest is None else rest)
        return True

    def _grow(self, data: Mapping[str, Any]) -> None:
        self.version += 1
        if self.text is not None or "size" not in data:
            rendered = (render_one(Message.model_validate(data["message"])) + "\n").encode()
            if self.text is not None:
                self.text.append(rendered)
            if "size" not in data:
                self.size += len(rendered)

    def _replaced(self) -> None:
        self.text = None
        self.version += 1
        self.edits += 1


_NOT_YET = Unreachable("the server has not answered yet")

_TALK = frozenset({"token", "turn.started", "turn.finished", "turn.failed"})


class Cache:
    """Sessions by their ids. `lock` guards all that is in it; its methods take it, unless they say otherwise.

    While the server is away nothing is shown: what it was a while ago may be wrong by now.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listed = threading.Condition(self.lock)
        self.changed_at = 0.0
        self._away: CfsError | None = _NOT_YET
        self._entries: dict[str, Entry] = {}
        self._families: dict[str, set[str]] = {}
        self._moving: Entry | None = None

    @property
    def online(self) -> bool:
        """Whether the server is there."""
        return self._away is None

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, session_id: str) -> Entry:
        """Return a session; raises `NotFound`, and while the server is away what was wrong with it."""
        self._require_server()
        entry = self._entries.get(session_id)
        if entry is None:
            raise NotFound(f"there is no session {session_id!r}")
        return entry

    def find(self, session_id: str) -> Entry | None:
        """Return a session if there is one; raises what is wrong with the server."""
        self._require_server()
        return self._entries.get(session_id)

    def holds(self, session_id: str) -> bool:
        """Tell whether there is a session of this name; for use under the lock."""
        return session_id in self._entries

    def roots(self) -> list[str]:
        """List the sessions that are nobody's sub-sessions."""
        self._require_server()
        with self.lock:
            return [name for name in self._entries if "/" not in name]

    def parents(self) -> list[str]:
        """List the roots that have sub-sessions."""
        self._require_server()
        with self.lock:
            return [root for root, members in self._families.items() if any(member != root for member in members)]

    def family(self, root: str) -> list[str]:
        """List everything below a root; raises `NotFound` where nothing is."""
        self._require_server()
        with self.lock:
            return [member for member in self._families.get(root, ()) if member != root]

    def totals(self) -> tuple[int, int]:
        """Count sessions and their bytes."""
        self._require_server()
        with self.lock:
            return len(self._entries), sum(entry.size for entry in self._entries.values())

    # -- waiting; the lock is held --------------------------------------------------------------------------------

    def check(self, entry: Entry) -> None:
        """Raise `Gone`, or what is wrong with the server, when there is nothing to wait for any more."""
        self._require_server()
        if entry.deleted:
            raise Gone(f"session {entry.id!r} has been deleted")

    def settled(self, entry: Entry) -> bool:
        """Tell whether a session and everything below it is idle (S13), or there is nothing to wait for."""
        if self._away is not None or entry.deleted:
            return True
        below = entry.id + "/"
        family = self._families.get(entry.id.partition("/")[0], ())
        return entry.idle and all(self._entries[name].idle for name in family if name.startswith(below))

    def moved(self, entry: Entry) -> threading.Condition:
        """Return what is notified of each change of a session, or below it, but for what it says."""
        entry.moved = entry.moved or threading.Condition(self.lock)
        return entry.moved

    def talked(self, entry: Entry) -> threading.Condition:
        """Return what is notified of everything that happens to a session itself."""
        entry.talked = entry.talked or threading.Condition(self.lock)
        return entry.talked

    # -- changing -------------------------------------------------------------------------------------------------

    def refresh(self, infos: Iterable[SessionInfo], *, resumed: bool) -> None:
        """Take over a listing, and be online. With `resumed` the events since the last one are still to come."""
        with self.lock:
            before, self._entries = self._entries, {}
            self._families.clear()
            for info in infos:
                entry = before.get(info.id)
                if entry is None or not entry.is_life_of(info):
                    entry = Entry.of(info)
                elif not resumed:
                    entry.restore(info)
                self._add(entry)
            lost = [entry for name, entry in before.items() if self._entries.get(name) is not entry]
            for entry in lost:
                entry.deleted = True
            self._away = None
            self._moving = None
            for entry in (*lost, *self._entries.values()):
                self._wake(entry)
            self.listed.notify_all()

    def offline(self, why: CfsError) -> None:
        """The server is away, or lets this mount in no more: wake everybody who waits."""
        with self.lock:
            self._away = why
            for entry in self._entries.values():
                self._wake(entry)
            self.listed.notify_all()

    def apply(self, event: StreamEvent) -> None:
        """Take over an event of the stream of all sessions."""
        with self.lock:
            if event.type != "session.created":
                self._drop_moving()
            if event.type == "session.created":
                self._create(event)
            elif event.type == "session.deleted":
                self._delete(event)
            elif (entry := self._entries.get(event.session)) is not None and entry.apply(event):
                self._tell(entry, event)

    # -- within; the lock is held ---------------------------------------------------------------------------------

    def _require_server(self) -> None:
        if self._away is not None:
            raise type(self._away)(self._away.detail)

    def _create(self, event: StreamEvent) -> None:
        moving, self._moving = self._moving, None
        if moving is not None and event.data.get("renamed_from") != moving.id:
            self._end(moving)
            moving = None
        known = self._entries.get(event.session)
        if known is not None and (event.number <= known.event or event.time < known.created_at):
            return
        entry = moving or Entry(id=event.session, created_at=event.time)
        entry.id = event.session
        entry.event = event.number - 1  # it begins here, or goes on under a new name
        entry.apply(event)
        self._add(entry)
        self.changed_at = event.time
        self.listed.notify_all()
        self._tell(entry, event)

    def _delete(self, event: StreamEvent) -> None:
        entry = self._entries.get(event.session)
        if entry is None or event.number <= entry.event or event.time < entry.created_at:
            return
        del self._entries[event.session]
        self._families[event.session.partition("/")[0]].discard(event.session)
        entry.event = event.number
        self.changed_at = event.time
        for listener in tuple(entry.listeners):
            listener.on_event(event)
        if "renamed_to" in event.data:
            self._moving = entry
        else:
            self._end(entry)
        self._wake_above(event.session)
        self.listed.notify_all()

    def _drop_moving(self) -> None:
        if self._moving is not None:  # it got a name that this caller may not see
            self._end(self._moving)
            self._moving = None

    def _end(self, entry: Entry) -> None:
        entry.deleted = True
        entry.text = None
        self._wake(entry)

    def _add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._families.setdefault(entry.id.partition("/")[0], set()).add(entry.id)

    def _tell(self, entry: Entry, event: StreamEvent) -> None:
        for listener in tuple(entry.listeners):
            listener.on_event(event)
        if entry.talked is not None:
            entry.talked.notify_all()
        if event.type not in _TALK:
            self._wake_above(entry.id)

    def _wake_above(self, session_id: str) -> None:
        """Wake those who wait for a session or for one above it: it counts for their being settled."""
        name = session_id
        while name:
            if (entry := self._entries.get(name)) is not None and entry.moved is not None:
                entry.moved.notify_all()
            name = name.rpartition("/")[0]

    def _wake(self, entry: Entry) -> None:
        for condition in (entry.moved, entry.talked):
            if condition is not None:
                condition.notify_all()


# Transcripts that were read lately, kept true by the events, so that a reader who waited needs no call (F3).

CAP_BYTES = 256 << 20
_LOCKS = 64


class Transcripts:
    """Gives the text of sessions; keeps `CAP_BYTES` of those that were read last."""

    def __init__(self, server: Server, cache: Cache) -> None:
        self._server = server
        self._cache = cache
        self._kept: OrderedDict[Entry, None] = OrderedDict()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def begin(self, entry: Entry) -> None:
        """Keep the text of a session that was just made here: it is empty, and events bring what comes."""
        with self._cache.lock:
            if entry.size == 0 and entry.text is None and not entry.deleted:
                entry.text = [b""]
                self._keep(entry)

    def get(self, entry: Entry) -> bytes:
        """Return the transcript as it is now; a hundred readers who ask at once make one call."""
        if (kept := self._look(entry)) is not None:
            return kept
        with self._locks[hash(entry) % _LOCKS]:
            if (kept := self._look(entry)) is not None:
                return kept
            version = entry.version
            text = self._server.text(entry.id).data
            with self._cache.lock:
                if entry.version == version and entry.size == len(text) and not entry.deleted:
                    entry.text = [text]
                    self._keep(entry)
            return text

    def _look(self, entry: Entry) -> bytes | None:
        with self._cache.lock:
            if entry.text is None:
                return None
            if len(entry.text) != 1:
                entry.text = [b"".join(entry.text)]
            self._keep(entry)
            return entry.text[0]

    def _keep(self, entry: Entry) -> None:
        self._kept[entry] = None
        self._kept.move_to_end(entry)
        while len(self._kept) > 1 and sum(each.size for each in self._kept) > CAP_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            oldest.text = None


# The one connection over which the bridge learns what happens to all sessions (F7).

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5


class Watcher(threading.Thread):
    """Keeps the cache true until it is stopped: resumes after each break, and begins anew where it cannot resume."""

    def __init__(self, client: Client, cache: Cache) -> None:
        super().__init__(name="watcher", daemon=True)
        self._client = client
        self._cache = cache
        self._cursor: str | None = None
        self._connected = False
        self._pause = FIRST_PAUSE
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let the thread end; a connection that is silent is left to the end of the process."""
        self._stopped.set()

    def run(self) -> None:
        """Follow the server."""
        while not self._stopped.is_set():
            self._connected = False
            away: CfsError = Unreachable("the server is away; the mount works again as soon as it is back")
            try:
                self._follow()
            except CfsError as error:
                away = error
                _log.warning("the connection to the server: %s", error.detail)
            except Exception:  # noqa: BLE001 - a mount that shows the past for ever would be worse
                _log.exception("following the server failed")
                self._cursor = None
            if not self._connected:  # a stream that was there and ended is made again at once: nobody needs to know
                self._cache.offline(away)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._stopped.wait(self._pause)

    def _follow(self) -> None:
        """Follow one connection to its end."""
        stream = replace(api.events(after=self._cursor), announce=True)
        for event in self._client.events(stream, attempts=0):
            if self._stopped.is_set():
                return
            self._take(event)

    def _take(self, event: StreamEvent) -> None:
        if event.type in ("connected", "stale"):
            self._refresh(resumed=event.type == "connected" and self._cursor is not None)
        elif event.type != "goodbye":
            self._cache.apply(event)
        self._cursor = event.id or self._cursor

    def _refresh(self, *, resumed: bool) -> None:
        """Take everything over: events on this connection go on from here at the latest."""
        while True:
            try:
                found = list(listing(self._client))
            except NotFound:  # a session with sub-sessions was deleted between two calls
                continue
            break
        self._cache.refresh(found, resumed=resumed)
        self._pause = FIRST_PAUSE
        self._connected = True
        _log.info("following %s: %d sessions", self._client.url, len(found))
