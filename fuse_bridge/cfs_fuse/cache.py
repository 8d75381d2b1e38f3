"""Every session that the bridge may see, kept true by the server's events; and who waits for what (F3, F7). No I/O."""

import threading
from collections.abc import Iterable

from cfs.errors import CfsError, Gone, NotFound, Unreachable
from cfs.stream import StreamEvent
from cfs.wire import SessionInfo
from cfs_fuse.entries import Entry

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
        if entry.gone:
            raise Gone(f"session {entry.id!r} has been deleted")

    def settled(self, entry: Entry) -> bool:
        """Tell whether a session and everything below it is idle (S13), or there is nothing to wait for."""
        if self._away is not None or entry.gone:
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
                    entry.take(info)
                self._add(entry)
            lost = [entry for name, entry in before.items() if self._entries.get(name) is not entry]
            for entry in lost:
                entry.gone = True
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
        entry = moving or Entry(event.session, event.time)
        entry.id = event.session
        entry.begin(event)
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
        for follower in tuple(entry.followers):
            follower.happened(event)
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
        entry.gone = True
        entry.text = None
        self._wake(entry)

    def _add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._families.setdefault(entry.id.partition("/")[0], set()).add(entry.id)

    def _tell(self, entry: Entry, event: StreamEvent) -> None:
        for follower in tuple(entry.followers):
            follower.happened(event)
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
