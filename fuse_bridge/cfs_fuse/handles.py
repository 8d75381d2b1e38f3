"""Open files: what one `open` has read and written (F2, F3).

A message is what a handle has gathered when it is flushed (closed, by any holder of the descriptor), synchronised or
read from: the kernel may cut one `write` into many, and the shell flushes before it writes.
"""

import codecs
import os
import threading
import time
from typing import Protocol

from cfs import api
from cfs.bodies import Append, Import, has_turns, judge
from cfs.errors import Busy, TooLarge, UnsupportedMedia
from cfs_fuse.attributes import Attributes, Look
from cfs_fuse.cache import Cache
from cfs_fuse.entries import Entry
from cfs_fuse.scratch import MODE, Scratch, ScratchFiles
from cfs_fuse.server import Server
from cfs_fuse.transcripts import Transcripts
from cfs_fuse.waiting import Patience

GATHERED_BYTES = 64 << 20
"""How much one handle may gather beyond a transcript that it writes again."""

OPENING_SECONDS = 5.0

TRUSTED_SECONDS = 5.0
"""How long a session that could be written to is taken to be one that can."""

SEEN_SECONDS = 2.0
"""How long to wait until the bridge has heard of what it did itself; milliseconds as a rule."""


class Handle(Protocol):
    """An open file of any kind."""

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes | memoryview:
        """Return bytes from an offset; none at the end."""
        ...

    def write(self, data: bytes, offset: int) -> None:
        """Take bytes."""
        ...

    def commit(self) -> None:
        """Do what the bytes that were written mean."""
        ...

    def truncate(self, size: int) -> None:
        """Cut, where that means anything."""
        ...

    def attributes(self) -> Attributes:
        """Describe the file."""
        ...

    def close(self) -> None:
        """Forget everything."""
        ...


class Parts:
    """What open files share: the parts of one bridge."""

    def __init__(self, server: Server, cache: Cache, patience: Patience, look: Look, *, commit_writes: bool) -> None:
        self.server = server
        self.cache = cache
        self.patience = patience
        self.look = look
        self.commit_writes = commit_writes
        self.transcripts = Transcripts(server, cache)
        self.scratch = ScratchFiles()

    def seen(self, entry: Entry, number: int) -> None:
        """Wait until an event of a session has arrived here, so that the caller sees what it did."""
        with self.cache.lock:
            self.patience.briefly(self.cache.moved(entry), lambda: entry.gone or entry.event >= number, SEEN_SECONDS)

    def settle(self, entry: Entry) -> None:
        """Wait a while until a session is settled, before it is opened for reading.

        Reading waits for that anyway, but `tail` asks for the size before it reads, and would show the end of a
        transcript that has grown meanwhile. Not longer: libfuse lets nobody remove a file that is being opened.
        """
        with self.cache.lock:
            if self.cache.settled(entry):
                return
        self.transcripts.get(entry)
        with self.cache.lock:
            self.patience.at_most(self.cache.moved(entry), lambda: self.cache.settled(entry), OPENING_SECONDS)

    def write_over(self, entry: Entry, body: bytes, base: bytes) -> None:
        """Judge a body that may hold the whole file, and do what it means (rules of `cfs.bodies`)."""
        transcript = self.transcripts.get(entry) if has_turns(body) else b""
        verdict = judge(body, transcript, base=base)
        if isinstance(verdict, Append):
            self.append(entry, verdict.text.encode())
        elif isinstance(verdict, Import):
            etag = self.server.text(entry.id).etag
            self.seen(entry, self.server.call(api.replace(entry.id, verdict.transcript, etag)).event)

    def append(self, entry: Entry, message: bytes) -> None:
        """Append one message, and wait until the bridge has heard of it."""
        accepted = self.server.append(entry.id, entry.life, message)
        entry.written_at = time.monotonic()
        self.seen(entry, accepted.event)

    def require_writable(self, entry: Entry) -> None:
        """Raise what keeps a session from being written to; asks the server unless it took something just now."""
        if time.monotonic() - entry.written_at > TRUSTED_SECONDS:
            self.server.append(entry.id, entry.life, b"")
            entry.written_at = time.monotonic()


class SessionHandle:
    """An open session. Reading gives one settled transcript; writing gathers a message."""

    def __init__(self, parts: Parts, entry: Entry, flags: int) -> None:
        self._parts = parts
        self._entry = entry
        self._appends = bool(flags & os.O_APPEND)
        self._lock = threading.Lock()
        self._gathered = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._begins_at = 0
        self._base = (entry.size, entry.edits)
        self._snapshot: bytes | None = None
        self._ended = False

    def read(self, size: int, offset: int, *, blocking: bool) -> memoryview:
        """Return a part of the transcript; the first read waits until the session is settled (S7).

        All reads up to the end see one and the same text. Who reads on behind it, or from the beginning again, sees
        what has come since.
        """
        self.commit()
        held = self._snapshot
        if held is None or offset == 0 or (offset >= len(held) and self._ended):
            held = self._snapshot = self._settled(blocking=blocking)
        self._ended = offset >= len(held)
        return memoryview(held)[offset : offset + size]

    def write(self, data: bytes, offset: int) -> None:
        """Gather bytes; what can be no message is refused at once, as many programs look away from `close`.

        A write appends, whatever the offset (S3): that of the first one tells only whether this may be a whole file.
        Raises `UnsupportedMedia`, `TooLarge`, or what keeps the session from being written to.
        """
        with self._lock:
            with self._parts.cache.lock:
                self._parts.cache.check(self._entry)
                allowed = GATHERED_BYTES + self._entry.size
            try:
                if len(self._gathered) + len(data) > allowed:
                    raise TooLarge(f"a file that is written has {allowed} bytes at most")
                self._decoder.decode(data)
            except (UnicodeDecodeError, TooLarge) as error:
                self._forget()
                if isinstance(error, TooLarge):
                    raise
                raise UnsupportedMedia(f"a message must be UTF-8: {error.reason}") from None
            if not self._gathered:
                self._begins_at = offset
            self._gathered += data
            if self._parts.commit_writes:
                self._commit_whole_characters()

    def commit(self) -> None:
        """Make a message of what was gathered; nothing is kept of what is refused."""
        with self._lock:
            body, whole = bytes(self._gathered), self._begins_at == 0 and not self._appends
            unfinished = self._decoder.getstate()[0]
            self._forget()
            if not body:
                return
            if unfinished:
                raise UnsupportedMedia("a message must be UTF-8: it ends in the middle of a character")
            with self._parts.cache.lock:
                self._parts.cache.check(self._entry)
            if whole:
                self._parts.write_over(self._entry, body, self._known_base(body))
            elif body.strip():
                self._parts.append(self._entry, body)

    def truncate(self, size: int) -> None:
        """Change nothing: a history is not cut (S3)."""

    def attributes(self) -> Attributes:
        """Describe the session as it is now."""
        with self._parts.cache.lock:
            self._parts.cache.check(self._entry)
            return self._parts.look.file(self._entry.size, self._entry.changed_at)

    def close(self) -> None:
        """Nothing is left: the kernel flushes before."""
        self._snapshot = None

    def _settled(self, *, blocking: bool) -> bytes:
        cache, entry = self._parts.cache, self._entry
        with cache.lock:
            settled = cache.settled(entry)
        if not settled and not blocking:
            raise Busy(f"session {entry.id!r} is generating")
        if not settled:
            self._parts.transcripts.get(entry)  # so that nothing has to be fetched when it is: events bring the rest
        with cache.lock:
            self._parts.patience.until(cache.moved(entry), lambda: cache.settled(entry))
            cache.check(entry)
        return self._parts.transcripts.get(entry)

    def _known_base(self, body: bytes) -> bytes:
        """What the session held when this file was opened; a history only grows, unless it was edited."""
        size, edits = self._base
        if size == 0 or len(body) < size or not has_turns(body) or edits != self._entry.edits:
            return b""
        return self._parts.transcripts.get(self._entry)[:size]

    def _commit_whole_characters(self) -> None:
        unfinished = self._decoder.getstate()[0]
        end = len(self._gathered) - len(unfinished)
        message = bytes(self._gathered[:end])
        del self._gathered[:end]
        if message.strip():
            self._parts.append(self._entry, message)

    def _forget(self) -> None:
        self._gathered.clear()
        self._decoder.reset()


class ScratchHandle:
    """An open temporary file, which is an ordinary one."""

    def __init__(self, parts: Parts, file: Scratch, flags: int) -> None:
        self._parts = parts
        self._file = file
        self._appends = bool(flags & os.O_APPEND)

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return bytes from an offset."""
        return bytes(self._file.data[offset : offset + size])

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset, or at the end."""
        self._parts.scratch.write(self._file, data, len(self._file.data) if self._appends else offset)

    def commit(self) -> None:
        """Nothing is to be done."""

    def truncate(self, size: int) -> None:
        """Cut or fill."""
        self._parts.scratch.truncate(self._file, size)

    def attributes(self) -> Attributes:
        """Describe the file."""
        return self._parts.look.file(len(self._file.data), self._file.changed_at, mode=MODE)

    def close(self) -> None:
        """Nothing is to be done."""
