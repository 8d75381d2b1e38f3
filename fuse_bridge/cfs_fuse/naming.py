"""Making, deleting and renaming sessions; when a call returns, the bridge has heard of what it did (F4, S14)."""

import time

from cfs import api
from cfs.bodies import judge
from cfs.errors import AlreadyExists, Conflict
from cfs_fuse.entries import Entry
from cfs_fuse.handles import SEEN_SECONDS, Parts


class Naming:
    """Changes of names; raises `CfsError`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def make(self, session_id: str, *, exclusive: bool) -> Entry:
        """Make a session, or find that somebody else just did; the name is here when this returns."""
        cache, made = self._parts.cache, True
        try:
            self._parts.server.call(api.create(session_id))
        except AlreadyExists:
            if exclusive:
                raise
            made = False
        with cache.lock:
            self._parts.patience.briefly(cache.listed, lambda: cache.holds(session_id), SEEN_SECONDS)
        entry = cache.get(session_id)
        if made:  # so it may be written to as well, and there is nothing in it
            entry.written_at = time.monotonic()
            self._parts.transcripts.begin(entry)
        return entry

    def delete(self, entry: Entry) -> None:
        """Delete a session with everything below it."""
        cache = self._parts.cache
        self._parts.server.call(api.delete(entry.id))
        with cache.lock:
            self._parts.patience.briefly(cache.moved(entry), lambda: entry.gone, SEEN_SECONDS)

    def rename(self, entry: Entry, target: str, *, replacing: bool) -> None:
        """Give a session another name; over a live one its text is judged as if it were written there."""
        cache = self._parts.cache
        if (there := cache.find(target)) is None:
            self._parts.server.call(api.rename(entry.id, target))
            with cache.lock:
                self._parts.patience.briefly(cache.listed, lambda: entry.id == target, SEEN_SECONDS)
            return
        if not replacing:
            raise AlreadyExists(f"there is a session {target!r} already")
        if there is not entry:
            if not entry.idle:
                raise Conflict(f"session {entry.id!r} is generating")
            self._parts.write_over(there, self._parts.transcripts.get(entry), b"")
            self.delete(entry)

    def publish(self, name: str, target: str, *, replacing: bool) -> None:
        """Put a temporary file in the place of a session, as editors and `rsync` do."""
        body = bytes(self._parts.scratch.get(name).data)
        there = self._parts.cache.find(target)
        if there is not None and not replacing:
            raise AlreadyExists(f"there is a session {target!r} already")
        if there is None:
            judge(body, b"")  # so that nothing is made for what is refused
            there = self.make(target, exclusive=True)
        self._parts.write_over(there, body, b"")
        self._parts.scratch.remove(name)
