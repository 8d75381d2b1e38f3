"""Recognises files that a program writes only to rename them over another one (F2).

Editors and tools save a file by writing a new one beside it and renaming that over the old one. No name tells such a
file from a new session, but the act does: it is created, written, closed, and renamed at once. So the turn of the first
message of a new session begins a moment later, and the bytes that were written are kept as long as the file may be such
a temporary file. When it is renamed over a session, these bytes are what the program has saved.

A message is on the server all the time. If the mount's process ends, it is answered like any other.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

from cfs.state.stream import StreamEvent
from cfs_fuse.cache import Cache, CachedSession

NEW_SECONDS = 10.0
"""How long after its last write a file can be a temporary one, even if its turn has begun."""
CAP_BYTES = 64 << 20
CAP_FILES = 1_024


@dataclass(eq=False, slots=True)
class NewFile:
    """A session that was created as a file of this mount, and the bytes that were written to it.

    `turns` counts the turns that these bytes have, `started` those that have begun, `messages` the messages of users.
    """

    entry: CachedSession
    restored: int
    written_at: float
    data: bytes = b""
    turns: int = 0
    started: int = 0
    messages: int = 0
    edited: bool = False

    def on_event(self, event: StreamEvent) -> None:
        """Count turns and messages, and notice an edit. The first replacement of an empty history is a write."""
        if event.type == "turn.started":
            self.started += 1
        elif event.type == "message.added" and event.data["message"].get("role", "user") == "user":
            self.messages += 1
        elif event.type == "history.replaced" and self.data:
            self.edited = True

    @property
    def is_temporary(self) -> bool:
        """Whether it can be the temporary file of a program: no other program has written to it."""
        recent = time.monotonic() - self.written_at < NEW_SECONDS
        foreign = self.messages > self.turns or self.entry.queued > self.turns - self.started
        return bool(self.data) and recent and not (self.edited or foreign or self.entry.restored != self.restored)


class NewFiles:
    """The new files of one mount: the newest ones, up to a number and a size."""

    def __init__(self, cache: Cache, rename_wait: float) -> None:
        """Begin without files. The first turn of each waits `rename_wait` seconds for a rename, or for a reader."""
        self._lock = cache.lock
        self._rename_wait = rename_wait
        self._files: OrderedDict[CachedSession, NewFile] = OrderedDict()

    def created(self, entry: CachedSession) -> None:
        """Note an empty session that a program has created as a file."""
        now = time.monotonic()
        with self._lock:
            self._files[entry] = file = NewFile(entry, entry.restored, now)
            entry.listeners.append(file)
            while self._is_full or now - next(iter(self._files.values())).written_at > NEW_SECONDS:
                self._drop(next(iter(self._files)))

    def delay(self, entry: CachedSession) -> float:
        """Return for how many seconds the turn of a message has to wait: only the first turn of a new file does."""
        file = self._files.get(entry)
        new = file is not None and not file.started and (file.is_temporary or not (file.data or file.messages))
        return self._rename_wait if new else 0.0

    def is_delayed(self, entry: CachedSession) -> bool:
        """Return whether the turn of a new file waits."""
        file = self._files.get(entry)
        return file is not None and file.started < file.turns

    def written(self, entry: CachedSession, data: bytes, offset: int, turns: int) -> None:
        """Note bytes that were sent, and the turns that they have.

        Bytes that neither follow those before nor replace them are not how programs write temporary files.
        """
        with self._lock:
            if (file := self._files.get(entry)) is None:
                return
            if offset not in (0, len(file.data)):
                self._drop(entry)
                return
            file.data, file.written_at = file.data[:offset] + data, time.monotonic()
            file.turns += turns

    def data(self, entry: CachedSession) -> bytes | None:
        """Return the bytes of a session that can be the temporary file of a program; None for any other session."""
        file = self._files.get(entry)
        return file.data if file is not None and file.is_temporary else None

    def forget(self, entry: CachedSession) -> None:
        """Treat a session as an ordinary one from now on: it was read."""
        if entry in self._files:
            with self._lock:
                self._drop(entry)

    @property
    def _is_full(self) -> bool:
        files = self._files.values()
        return len(files) > CAP_FILES or sum(len(file.data) for file in files) > CAP_BYTES

    def _drop(self, entry: CachedSession) -> None:
        if (file := self._files.pop(entry, None)) is not None:
            entry.listeners.remove(file)
