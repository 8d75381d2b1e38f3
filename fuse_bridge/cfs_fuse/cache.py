"""Caches all sessions that the mount shows, updates them from the server's events, and wakes waiters (F3, F7)."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cfs import api
from cfs.contract.transcript import render_one
from cfs.errors import CfsError, Gone, NotFound, Unreachable
from cfs.state import SessionState, life_of
from cfs.state.stream import StreamEvent
from cfs.transports.http import Client
from cfs.wire import Message, SessionInfo
from cfs_fuse.server import SessionServer, TranscriptText, listing

# One session. No I/O; guarded by the cache's lock (F7).

_MOMENT = 0.1


class EventListener(Protocol):
    """Receives the events of a session: an open control file."""

    def on_event(self, event: StreamEvent) -> None:
        """Handle an event; called under the cache's lock, before waiters are woken."""
        ...


@dataclass(eq=False, slots=True)
class CachedSession(SessionState):
    """A session in the cache. A renamed session keeps its object; a deleted and recreated one gets a new object.

    `version` increases with each change of the transcript, `edits` with each change that is not an append. `text` is
    the transcript in pieces, if it was read recently. `written_at` is the time, on the monotonic clock, at which the
    server last accepted a write from this mount. `restored` counts how often events were lost.
    """

    id: str = ""
    created_at: float = 0.0
    version: int = 0
    edits: int = 0
    written_at: float = -math.inf
    restored: int = 0
    text: list[bytes] | None = None
    listeners: list[EventListener] = field(default_factory=list)
    moved: threading.Condition | None = None
    talked: threading.Condition | None = None

    @classmethod
    def of(cls, info: SessionInfo) -> "CachedSession":
        """Create an entry from an item of a listing."""
        entry = cls(id=info.id)
        entry.restore(info)
        return entry

    def restore(self, info: SessionInfo) -> None:
        """Replace the state by the current one; the events in between are unknown."""
        if self.turn is not None:
            self.turn.ended = True
        self.restored += 1
        SessionState.restore(self, info)
        self.created_at = info.created_at
        self._replaced()

    def is_life_of(self, info: SessionInfo) -> bool:
        """Return whether an item of a listing is this session, not another one that has its name now.

        Older servers send no life in their events; there the event is slightly newer than the session.
        """
        if self.life and (life := life_of(info)):
            return self.life == life
        return abs(info.created_at - self.created_at) < _MOMENT

    def apply(self, event: StreamEvent) -> bool:
        """Apply an event; False if it is already included or belongs to an earlier session of this name."""
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
    """All sessions by id. `lock` guards the contents; methods acquire it unless documented otherwise.

    While the server is unreachable no session is shown, as the cached state may be out of date.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listed = threading.Condition(self.lock)
        self.changed_at = 0.0
        self._away: CfsError | None = _NOT_YET
        self._entries: dict[str, CachedSession] = {}
        self._families: dict[str, set[str]] = {}
        self._moving: CachedSession | None = None
        self.on_added: Callable[[str], None] = lambda _name: None
        """Called with the name of each session that is added; the lock is held."""

    @property
    def online(self) -> bool:
        """Whether the server is reachable."""
        return self._away is None

    def get(self, session_id: str) -> CachedSession:
        """Return a session; raises `NotFound`, or the connection error while the server is unreachable."""
        self._require_server()
        entry = self._entries.get(session_id)
        if entry is None:
            raise NotFound(f"there is no session {session_id!r}")
        return entry

    def find(self, session_id: str) -> CachedSession | None:
        """Return a session or None; raises the connection error while the server is unreachable."""
        self._require_server()
        return self._entries.get(session_id)

    def holds(self, session_id: str) -> bool:
        """Return whether a session of this name exists, as far as is known; needs no server."""
        return session_id in self._entries

    def roots(self) -> list[str]:
        """List the sessions that are not sub-sessions."""
        self._require_server()
        with self.lock:
            return [name for name in self._entries if "/" not in name]

    def parents(self) -> list[str]:
        """List the roots that have sub-sessions."""
        self._require_server()
        with self.lock:
            return [root for root, members in self._families.items() if any(member != root for member in members)]

    def family(self, root: str) -> list[str]:
        """List all sub-sessions of a root session; raises `NotFound` if there are none."""
        self._require_server()
        with self.lock:
            return [member for member in self._families.get(root, ()) if member != root]

    def asking(self) -> list[str]:
        """List the sessions with open questions."""
        self._require_server()
        with self.lock:
            return [name for name, entry in self._entries.items() if entry.open_questions]

    def totals(self) -> tuple[int, int]:
        """Count sessions and their bytes."""
        self._require_server()
        with self.lock:
            return len(self._entries), sum(entry.size for entry in self._entries.values())

    def check(self, entry: CachedSession) -> None:
        """Raise `Gone` or the connection error if waiting for this session has become useless."""
        self._require_server()
        if entry.deleted:
            raise Gone(f"session {entry.id!r} has been deleted")

    def settled(self, entry: CachedSession) -> bool:
        """Return whether a session and all its sub-sessions are idle (S13), or no longer exist."""
        if self._away is not None or entry.deleted:
            return True
        below = entry.id + "/"
        family = self._families.get(entry.id.partition("/")[0], ())
        return entry.idle and all(self._entries[name].idle for name in family if name.startswith(below))

    def moved(self, entry: CachedSession) -> threading.Condition:
        """Return the condition that is notified when a session or a sub-session changes, except by generated text."""
        entry.moved = entry.moved or threading.Condition(self.lock)
        return entry.moved

    def talked(self, entry: CachedSession) -> threading.Condition:
        """Return the condition that is notified of every event of the session itself."""
        entry.talked = entry.talked or threading.Condition(self.lock)
        return entry.talked

    def refresh(self, infos: Iterable[SessionInfo], *, resumed: bool) -> None:
        """Replace all sessions by a listing and go online. With `resumed` the events since the last one will follow."""
        with self.lock:
            before, self._entries = self._entries, {}
            self._families.clear()
            for info in infos:
                entry = before.get(info.id)
                if entry is None or not entry.is_life_of(info):
                    entry = CachedSession.of(info)
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
        """Go offline, as the server is unreachable or refuses access, and wake all waiters."""
        with self.lock:
            self._away = why
            for entry in self._entries.values():
                self._wake(entry)
            self.listed.notify_all()

    def apply(self, event: StreamEvent) -> None:
        """Apply an event of the stream of all sessions."""
        with self.lock:
            if event.type != "session.created":
                self._drop_moving()
            if event.type == "session.created":
                self._create(event)
            elif event.type == "session.deleted":
                self._delete(event)
            elif (entry := self._entries.get(event.session)) is not None and entry.apply(event):
                self._tell(entry, event)

    def _require_server(self) -> None:
        if self._away is not None:
            raise type(self._away)(self._away.detail)

    def _create(self, event: StreamEvent) -> None:
        moving, self._moving = self._moving, None
        if moving is not None and event.data.get("renamed_from") != moving.id:
            self._end(moving)
            moving = None
        cached = self._entries.get(event.session)
        if cached is not None and (event.number <= cached.event or event.time < cached.created_at):
            return
        entry = moving or CachedSession(id=event.session, created_at=event.time)
        entry.id = event.session
        entry.event = event.number - 1  # it is new, or was renamed
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
        if self._moving is not None:  # its new name is hidden from this caller
            self._end(self._moving)
            self._moving = None

    def _end(self, entry: CachedSession) -> None:
        entry.deleted = True
        entry.text = None
        self._wake(entry)

    def _add(self, entry: CachedSession) -> None:
        self._entries[entry.id] = entry
        self._families.setdefault(entry.id.partition("/")[0], set()).add(entry.id)
        self.on_added(entry.id)

    def _tell(self, entry: CachedSession, event: StreamEvent) -> None:
        for listener in tuple(entry.listeners):
            listener.on_event(event)
        if entry.talked is not None:
            entry.talked.notify_all()
        if event.type not in _TALK:
            self._wake_above(entry.id)

    def _wake_above(self, session_id: str) -> None:
        """Wake the waiters of a session and of its parents, which are settled only when it is idle."""
        name = session_id
        while name:
            if (entry := self._entries.get(name)) is not None and entry.moved is not None:
                entry.moved.notify_all()
            name = name.rpartition("/")[0]

    def _wake(self, entry: CachedSession) -> None:
        for condition in (entry.moved, entry.talked):
            if condition is not None:
                condition.notify_all()


# Cached transcripts, updated from events, so that a reader who waited needs no request (F3)

CAP_BYTES = 256 << 20
_LOCKS = 64


class Transcripts:
    """Returns the transcripts of sessions and caches up to `CAP_BYTES` of the most recently read ones."""

    def __init__(self, server: SessionServer, cache: Cache) -> None:
        self._server = server
        self._cache = cache
        self._kept: OrderedDict[CachedSession, None] = OrderedDict()
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def begin(self, entry: CachedSession) -> None:
        """Cache the empty transcript of a session that was just created here; events will update it."""
        with self._cache.lock:
            if entry.size == 0 and entry.text is None and not entry.deleted:
                entry.text = [b""]
                self._keep(entry)

    def get(self, entry: CachedSession) -> bytes:
        """Return the current transcript. Concurrent readers share one request."""
        while True:
            with self._cache.lock:
                cached = self._look(entry)
            if cached is not None:
                return cached
            if (fetched := self._fetch(entry)) is not None:
                return fetched.data

    def settled(self, entry: CachedSession) -> bytes | None:
        """Return the transcript of a settled session.

        Returns None if it is not settled, also if only the server knows so far that it is not: it answers requests
        before the event of a new message has arrived.
        """
        while True:
            with self._cache.lock:
                if not self._cache.settled(entry):
                    return None
                cached = self._look(entry)
            if cached is not None:
                return cached
            if (fetched := self._fetch(entry)) is not None:
                return fetched.data if fetched.idle else None

    def _fetch(self, entry: CachedSession) -> TranscriptText | None:
        """Request a transcript; None if another reader has just cached it."""
        with self._locks[hash(entry) % _LOCKS]:
            with self._cache.lock:
                if entry.text is not None:
                    return None
                version = entry.version
            fetched = self._server.text(entry.id)
            with self._cache.lock:
                if entry.version == version and entry.size == len(fetched.data) and not entry.deleted:
                    entry.text = [fetched.data]
                    self._keep(entry)
            return fetched

    def _look(self, entry: CachedSession) -> bytes | None:
        """Return a cached transcript; requires the cache's lock."""
        if entry.text is None:
            return None
        if len(entry.text) != 1:
            entry.text = [b"".join(entry.text)]
        self._keep(entry)
        return entry.text[0]

    def _keep(self, entry: CachedSession) -> None:
        self._kept[entry] = None
        self._kept.move_to_end(entry)
        while len(self._kept) > 1 and sum(transcript.size for transcript in self._kept) > CAP_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            oldest.text = None


# The event stream of all sessions (F7)

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5


class Watcher(threading.Thread):
    """Keeps the cache up to date until it is stopped. After a lost connection it resumes or reloads everything."""

    def __init__(self, client: Client, cache: Cache) -> None:
        super().__init__(name="watcher", daemon=True)
        self._client = client
        self._cache = cache
        self._cursor: str | None = None
        self._connected = False
        self._pause = FIRST_PAUSE
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop the thread. A silent connection stays open until the process exits."""
        self._stopped.set()

    def run(self) -> None:
        """Follow the server's events until stopped."""
        while not self._stopped.is_set():
            self._connected = False
            away: CfsError = Unreachable("the server is away; the mount works again as soon as it is back")
            try:
                self._follow()
            except CfsError as error:
                away = error
                _log.warning("the connection to the server: %s", error.detail)
            except Exception:  # noqa: BLE001 - otherwise the mount would show old state forever
                _log.exception("following the server failed")
                self._cursor = None
            if not self._connected:  # an established stream that ended is reconnected at once, without going offline
                self._cache.offline(away)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._stopped.wait(self._pause)

    def _follow(self) -> None:
        """Read events of one connection until it ends."""
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
        """Reload all sessions. The events of this connection continue at this point or earlier."""
        while True:
            try:
                sessions = list(listing(self._client))
            except NotFound:  # a session with sub-sessions was deleted between two calls
                continue
            break
        self._cache.refresh(sessions, resumed=resumed)
        self._pause = FIRST_PAUSE
        self._connected = True
        _log.info("following %s: %d sessions", self._client.url, len(sessions))
