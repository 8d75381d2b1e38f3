"""Open files of the mount: sessions, control files and temporary files (F2, F3).

Writes are collected and become one message when the handle is flushed (by any `close` of the descriptor), synced or
read from: the kernel may split one `write` into several.
"""

import codecs
import errno
import json
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Protocol

from cfs import api
from cfs.contract.bodies import Append, ImportedHistory, has_turns, judge
from cfs.errors import Busy, CfsError, Forbidden, TooLarge, UnsupportedMedia
from cfs.state import ShownText, TurnState
from cfs.state.stream import StreamEvent
from cfs_fuse.cache import Cache, CachedSession, Transcripts
from cfs_fuse.new_files import NewFiles
from cfs_fuse.paths import Attributes, FileAttributes, MountPath, ScratchPath, SessionPath, parse_path
from cfs_fuse.server import SessionServer, Waiter

# Temporary files of editors and desktops: held in memory up to a limit, never sent to the server

CAP_BYTES = 64 << 20
CAP_FILES = 1_024

MODE = stat.S_IFREG | 0o600
"""Whatever mode was asked for: vim then sees that a new file cannot look like a session, and saves in place instead of
renaming the session away and writing a new one."""


@dataclass(eq=False, slots=True)
class Scratch:
    """A temporary file."""

    data: bytearray = field(default_factory=bytearray)
    changed_at: float = field(default_factory=time.time)


class ScratchFiles:
    """All temporary files by name; ENOSPC when the limit is reached."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Scratch] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        """List the names."""
        with self._lock:
            return list(self._files)

    def get(self, name: str) -> Scratch:
        """Return a file; raises `OSError` (ENOENT)."""
        file = self._files.get(name)
        if file is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return file

    def open(self, name: str, flags: int) -> Scratch:
        """Return a file, creating it if requested; raises `OSError` (ENOENT, EEXIST, ENOSPC)."""
        with self._lock:
            file = self._files.get(name)
            if file is not None and flags & os.O_CREAT and flags & os.O_EXCL:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            if file is None:
                if not flags & os.O_CREAT:
                    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
                if len(self._files) >= CAP_FILES:
                    raise OSError(errno.ENOSPC, "too many temporary files in this mount")
                file = self._files[name] = Scratch()
        if flags & os.O_TRUNC:
            self.truncate(file, 0)
        return file

    def put(self, name: str, data: bytes) -> None:
        """Store a file with this content; raises `OSError` (ENOSPC)."""
        self.write(self.open(name, os.O_CREAT | os.O_TRUNC), data, 0)

    def write(self, file: Scratch, data: bytes, offset: int) -> None:
        """Write at an offset; raises `OSError` (ENOSPC)."""
        with self._lock:
            gap = b"\0" * (offset - len(file.data))
            self._grow(max(0, offset + len(data) - len(file.data)))
            file.data[offset : offset + len(data)] = data if not gap else b""
            if gap:
                file.data += gap + data
            file.changed_at = time.time()

    def truncate(self, file: Scratch, size: int) -> None:
        """Truncate, or extend with zeros; raises `OSError` (ENOSPC)."""
        with self._lock:
            self._grow(size - len(file.data))
            del file.data[size:]
            file.data += b"\0" * (size - len(file.data))
            file.changed_at = time.time()

    def remove(self, name: str) -> None:
        """Delete a file; open handles keep it. Raises `OSError` (ENOENT)."""
        self.get(name)
        with self._lock:
            self._files.pop(name, None)

    def discard(self, name: str) -> None:
        """Delete a file if it exists, because a session has its name now; open handles keep it."""
        if name in self._files:
            with self._lock:
                self._files.pop(name, None)

    def rename(self, name: str, new: str) -> None:
        """Rename a file, replacing an existing one; raises `OSError` (ENOENT)."""
        file = self.get(name)
        with self._lock:
            self._files.pop(name, None)
            self._files[new] = file

    def _grow(self, more: int) -> None:
        if more > 0 and more + sum(len(file.data) for file in self._files.values()) > CAP_BYTES:
            raise OSError(errno.ENOSPC, "too many bytes of temporary files in this mount")


GATHERED_BYTES = 64 << 20
"""Maximum bytes that one handle may collect beyond the transcript that it repeats."""

OPENING_SECONDS = 5.0

TRUSTED_SECONDS = 5.0
"""How long a successful check that a session is writable stays valid."""

SEEN_SECONDS = 2.0
"""How long to wait for the events of the bridge's own changes; they usually arrive within milliseconds."""


class OpenFile(Protocol):
    """An open file of any kind."""

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes | memoryview:
        """Return bytes from an offset; none at the end."""
        ...

    def write(self, data: bytes, offset: int) -> None:
        """Accept bytes at an offset."""
        ...

    def commit(self) -> None:
        """Process the written bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate, where supported."""
        ...

    def attributes(self) -> Attributes:
        """Describe the file."""
        ...

    def close(self) -> None:
        """Forget everything."""
        ...


class BridgeContext:
    """The parts of one bridge that all open files share: server, cache and others."""

    def __init__(
        self,
        server: SessionServer,
        cache: Cache,
        waiter: Waiter,
        attributes: FileAttributes,
        *,
        commit_writes: bool,
        rename_wait: float,
    ) -> None:
        self.server = server
        self.cache = cache
        self.waiter = waiter
        self.attributes = attributes
        self.commit_writes = commit_writes
        self.transcripts = Transcripts(server, cache)
        self.scratch = ScratchFiles()
        self.new_files = NewFiles(cache, rename_wait)
        cache.on_added = self.scratch.discard

    def resolve(self, path: str) -> MountPath:
        """Return what a path names; raises `OSError` as `parse_path` does.

        A session is a session on every interface, whatever its name. Only other names can be temporary files: those
        that programs use for them, and those of temporary files that are there.
        """
        parsed = parse_path(path)
        match parsed:
            case ScratchPath(name) if self.cache.holds(name):
                return SessionPath(name)
            case SessionPath(name) if name in self.scratch and not self.cache.holds(name):
                return ScratchPath(name)
        return parsed

    def hurry(self, entry: CachedSession) -> None:
        """Begin the delayed turn of a new file: a reader waits for the reply."""
        if self.new_files.is_delayed(entry):
            with suppress(CfsError):
                self.server.call(api.transcript(entry.id, wait=0.0))

    def seen(self, entry: CachedSession, number: int) -> None:
        """Wait until an event of a session has arrived, so that the caller sees its own change."""
        with self.cache.lock:
            self.waiter.briefly(self.cache.moved(entry), lambda: entry.deleted or entry.event >= number, SEEN_SECONDS)

    def settle(self, entry: CachedSession) -> None:
        """Wait for a limited time until a session is settled, before it is opened for reading.

        Reads wait anyway, but `tail` gets the size before it reads and would show the wrong end of a transcript that
        has grown meanwhile. The wait is limited, as libfuse does not let a file be removed while it is being opened.
        """
        with self.cache.lock:
            if self.cache.settled(entry):
                return
        self.hurry(entry)
        self.transcripts.get(entry)
        with self.cache.lock:
            self.waiter.at_most(self.cache.moved(entry), lambda: self.cache.settled(entry), OPENING_SECONDS)

    def write_over(self, entry: CachedSession, body: bytes, base: bytes) -> int:
        """Interpret a body that may be the whole file by the rules of `cfs.contract.bodies`, and apply it.

        Returns how many turns it has.
        """
        transcript = self.transcripts.get(entry) if has_turns(body) else b""
        verdict = judge(body, transcript, base=base)
        if isinstance(verdict, Append):
            return self.append(entry, verdict.text.encode())
        if isinstance(verdict, ImportedHistory):
            etag, delay = self.server.text(entry.id).etag, self.new_files.delay(entry)
            replaced = self.server.call(api.replace(entry.id, verdict.transcript, etag, delay))
            self.seen(entry, replaced.event)
            return int(replaced.state != "idle")
        return 0

    def append(self, entry: CachedSession, message: bytes) -> int:
        """Append one message, and wait for its event. Returns how many turns it has."""
        accepted = self.server.append(entry.id, entry.life, message, self.new_files.delay(entry))
        entry.written_at = time.monotonic()
        self.seen(entry, accepted.event)
        return 1

    def require_writable(self, entry: CachedSession) -> None:
        """Raise the error that prevents writes to a session. Asks the server unless it accepted a write just now."""
        if time.monotonic() - entry.written_at > TRUSTED_SECONDS:
            self.server.append(entry.id, entry.life, b"")
            entry.written_at = time.monotonic()


SEARCH_LINES = 100
"""Most lines of the results of a search."""


class SessionHandle:
    """An open session. Reads return one settled transcript; writes collect a message."""

    def __init__(self, context: BridgeContext, entry: CachedSession, flags: int) -> None:
        self._context = context
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

        All reads up to the end see the same text. Reads past the end, or again from the beginning, see newer text.
        """
        self.commit()
        self._context.new_files.forget(self._entry)
        held = self._snapshot
        if held is None or offset == 0 or (offset >= len(held) and self._ended):
            held = self._snapshot = self._settled(blocking=blocking)
        self._ended = offset >= len(held)
        return memoryview(held)[offset : offset + size]

    def write(self, data: bytes, offset: int) -> None:
        """Collect bytes; invalid messages are refused at once, as many programs ignore errors of `close`.

        A write appends, whatever its offset (S3). The first offset only shows whether this may be a whole file. Raises
        `UnsupportedMedia`, `TooLarge`, or the error that prevents writes to the session.
        """
        with self._lock:
            with self._context.cache.lock:
                self._context.cache.check(self._entry)
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
            if self._context.commit_writes:
                self._commit_whole_characters()

    def commit(self) -> None:
        """Send the collected bytes as a message; a refused message is discarded."""
        with self._lock:
            body, whole = bytes(self._gathered), self._begins_at == 0 and not self._appends
            unfinished = self._decoder.getstate()[0]
            self._forget()
            if not body:
                return
            if unfinished:
                raise UnsupportedMedia("a message must be UTF-8: it ends in the middle of a character")
            with self._context.cache.lock:
                self._context.cache.check(self._entry)
            turns = 0
            if whole:
                turns = self._context.write_over(self._entry, body, self._known_base(body))
            elif body.strip():
                turns = self._context.append(self._entry, body)
            self._context.new_files.written(self._entry, body, self._begins_at, turns)

    def truncate(self, size: int) -> None:
        """Do nothing: a history cannot be truncated (S3)."""

    def attributes(self) -> Attributes:
        """Return the current attributes of the session."""
        with self._context.cache.lock:
            self._context.cache.check(self._entry)
            return self._context.attributes.file(self._entry.size, self._entry.changed_at)

    def close(self) -> None:
        """Do nothing: the kernel flushes first."""
        self._snapshot = None

    def _settled(self, *, blocking: bool) -> bytes:
        cache, entry = self._context.cache, self._entry
        with cache.lock:
            settled = cache.settled(entry)
        if not settled and not blocking:
            raise Busy(f"session {entry.id!r} is generating")
        if not settled:
            self._context.transcripts.get(entry)  # later reads need no request: events update the cached transcript
        while True:
            with cache.lock:
                self._context.waiter.until(cache.moved(entry), lambda: cache.settled(entry))
                cache.check(entry)
                event = entry.event
            if (text := self._context.transcripts.settled(entry)) is not None:
                return text
            if not blocking:
                raise Busy(f"session {entry.id!r} is generating")
            with cache.lock:  # its event is on its way
                self._context.waiter.at_most(cache.moved(entry), partial(self._has_changed, event), SEEN_SECONDS)

    def _has_changed(self, event: int) -> bool:
        return self._entry.event > event or not self._context.cache.settled(self._entry)

    def _known_base(self, body: bytes) -> bytes:
        """The transcript when this file was opened; it is a prefix of the current one unless the history was edited."""
        size, edits = self._base
        if size == 0 or len(body) < size or not has_turns(body) or edits != self._entry.edits:
            return b""
        return self._context.transcripts.get(self._entry)[:size]

    def _commit_whole_characters(self) -> None:
        unfinished = self._decoder.getstate()[0]
        end = len(self._gathered) - len(unfinished)
        message = bytes(self._gathered[:end])
        del self._gathered[:end]
        if message.strip():
            self._context.append(self._entry, message)

    def _forget(self) -> None:
        self._gathered.clear()
        self._decoder.reset()


class ScratchHandle:
    """An open temporary file."""

    def __init__(self, context: BridgeContext, file: Scratch, flags: int) -> None:
        self._context = context
        self._file = file
        self._appends = bool(flags & os.O_APPEND)

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return bytes from an offset."""
        return bytes(self._file.data[offset : offset + size])

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset, or at the end."""
        self._context.scratch.write(self._file, data, len(self._file.data) if self._appends else offset)

    def commit(self) -> None:
        """Nothing is to be done."""

    def truncate(self, size: int) -> None:
        """Truncate or extend."""
        self._context.scratch.truncate(self._file, size)

    def attributes(self) -> Attributes:
        """Describe the file."""
        return self._context.attributes.file(len(self._file.data), self._file.changed_at, mode=MODE)

    def close(self) -> None:
        """Nothing is to be done."""


class SearchHandle:
    """The results of a search when the file was opened, one a line."""

    def __init__(self, context: BridgeContext, words: str) -> None:
        """Search. Raises `CfsError`: the words may be none."""
        self._context = context
        reply = context.server.call(api.search(words, limit=SEARCH_LINES))
        lines = [f"{match.place}: {' '.join(match.text.split())}\n" for match in reply.results]
        self._data = "".join(lines).encode()

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return a part of the lines."""
        return self._data[offset : offset + size]

    def write(self, data: bytes, offset: int) -> None:  # noqa: ARG002 - whatever it is
        """Refuse."""
        raise Forbidden("results of a search can only be read")

    def commit(self) -> None:
        """Nothing is to be done."""

    def truncate(self, size: int) -> None:
        """Nothing is to be done."""

    def attributes(self) -> Attributes:
        """Describe the file."""
        return self._context.attributes.file(len(self._data), self._context.cache.changed_at)

    def close(self) -> None:
        """Nothing is to be done."""


# Control files of a session: tokens, state and events (F5)

MOST_EVENTS = 20_000
"""Maximum events queued for a slow reader of `.events`; if there are more, the reader gets a `stale` line."""


class ControlHandle:
    """Base class of control files: read-only, of unknown size."""

    def __init__(self, context: BridgeContext, entry: CachedSession) -> None:
        self._context = context
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
        """Return the attributes of an empty file, as the size is unknown."""
        return self._context.attributes.file(0, self._entry.changed_at)

    def close(self) -> None:
        """Nothing is to be done."""


class StatusHandle(ControlHandle):
    """The state of a session when the file was opened, as one line of JSON."""

    def __init__(self, context: BridgeContext, entry: CachedSession) -> None:
        super().__init__(context, entry)
        self._data = status(context.cache, entry)

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:  # noqa: ARG002 - it never blocks
        """Return a part of it."""
        return self._data[offset : offset + size]

    def attributes(self) -> Attributes:
        """Describe it."""
        return self._context.attributes.file(len(self._data), self._entry.changed_at)


class LiveHandle(ControlHandle):
    """The text of the running turn, or else of the next one, as it is generated."""

    def __init__(self, context: BridgeContext, entry: CachedSession) -> None:
        super().__init__(context, entry)
        self._text = bytearray()
        self._shown = ShownText()
        self._pieces = 0
        with context.cache.lock:
            self._turn = _running(entry)
            self._restored = entry.restored
            entry.listeners.append(self)
        context.hurry(entry)
        if self._turn is None and not entry.idle:
            self._catch_up()

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:
        """Return the text after an offset, waiting for it; empty after the end of the turn."""
        cache, entry = self._context.cache, self._entry
        if self._is_lost():
            self._find_again()
        with cache.lock:
            if not blocking and not self._more(offset) and not entry.deleted:
                raise Busy("nothing new has been generated")
            talked = cache.talked(entry)
            self._context.waiter.until(talked, lambda: self._more(offset) or entry.deleted or not cache.online)
            if not self._more(offset):
                cache.check(entry)
        if offset >= len(self._text) and self._is_lost():
            return self.read(size, offset, blocking=blocking)
        return bytes(self._text[offset : offset + size])

    def on_event(self, event: StreamEvent) -> None:
        """Follow the turn that begins, or that begins again after a restart of the server."""
        turn = self._turn
        if turn is not None and (turn.ended or turn.id not in ("", event.turn)):
            return
        match event.type:
            case "turn.started":
                if turn is not None:
                    self._more(0)
                    self._shown.again()
                self._turn, self._pieces = self._entry.turn, 0
            case "turn.finished" | "turn.failed" if turn is not None:  # it has not begun again before its end
                turn.apply(event)

    def close(self) -> None:
        """Stop following turns."""
        with self._context.cache.lock:
            if self in self._entry.listeners:
                self._entry.listeners.remove(self)

    def _more(self, offset: int) -> bool:
        """Return whether a read would return at once."""
        turn = self._turn
        if turn is None:
            return False
        for piece in turn.pieces[self._pieces :]:
            self._text += self._shown.add(piece).encode()
        self._pieces = len(turn.pieces)
        return turn.ended or offset < len(self._text)

    def _is_lost(self) -> bool:
        """Return whether events were lost, so that the end of the turn, or more of it, may be among them."""
        return self._turn is not None and self._restored != self._entry.restored

    def _find_again(self) -> None:
        """Read on where events were lost: in the running turn, in its reply, or when the turn begins again."""
        cache, entry = self._context.cache, self._entry
        while self._is_lost():
            restored = entry.restored
            detail = self._context.server.call(api.read(entry.id))
            with cache.lock:
                if detail.partial is not None and entry.event > detail.event:
                    continue  # a token could be missing from both
                self._more(0)
                self._shown.again()
                self._turn, self._pieces, self._restored = None, 0, restored
                if detail.partial is not None:
                    entry.turn = self._turn = TurnState("", [detail.partial], detail.event)
                elif detail.state == "idle":
                    reply = [message.content for message in detail.history if message.role == "assistant"]
                    self._turn = TurnState("", reply[-1:], ended=True)

    def _catch_up(self) -> None:
        """Fetch the beginning of a turn that started before this bridge was connected."""
        while True:
            detail = self._context.server.call(api.read(self._entry.id))
            with self._context.cache.lock:
                if self._turn is not None or detail.partial is None:
                    return
                if self._entry.event <= detail.event:  # otherwise a token could be missing from both
                    self._entry.turn = self._turn = TurnState("", [detail.partial], detail.event)
                    return


class EventsHandle(ControlHandle):
    """All past and future events of a session, one JSON object per line; ends when the session is deleted."""

    def __init__(self, context: BridgeContext, entry: CachedSession) -> None:
        super().__init__(context, entry)
        self._coming: deque[StreamEvent] = deque()
        self._start = 0
        self._text = b""
        with context.cache.lock:
            now = entry.event
            entry.listeners.append(self)
        past = context.waiter.call(lambda: self._past(now))
        self._text = _lines(past)
        self._last = past[-1].number if past and past[-1].number else now

    def read(self, size: int, offset: int, *, blocking: bool) -> bytes:
        """Return the lines after an offset, waiting for one if there is none."""
        cache, entry = self._context.cache, self._entry
        with cache.lock:
            if not blocking and not self._more(offset) and not entry.deleted:
                raise Busy("nothing more has happened")
            self._context.waiter.until(
                cache.talked(entry), lambda: self._more(offset) or entry.deleted or not cache.online
            )
            if not self._more(offset) and not entry.deleted:
                cache.check(entry)
            begin = max(0, offset - self._start)
            return self._text[begin : begin + size]

    def on_event(self, event: StreamEvent) -> None:
        """Queue an event for the reader."""
        if len(self._coming) >= MOST_EVENTS:
            self._coming.clear()
            event = StreamEvent("stale", {}, "", event.session, event.number, event.position, event.time)
        self._coming.append(event)

    def close(self) -> None:
        """Stop listening."""
        with self._context.cache.lock:
            if self in self._entry.listeners:
                self._entry.listeners.remove(self)

    def _more(self, offset: int) -> bool:
        if self._coming:
            news = [event for event in self._coming if event.number > self._last]
            self._coming.clear()
            read = max(0, offset - self._start)  # lines that were read are dropped: this file cannot seek
            self._text = self._text[read:] + _lines(news)
            self._start += read
        return offset < self._start + len(self._text)

    def _past(self, last: int) -> list[StreamEvent]:
        past_events: list[StreamEvent] = []
        if last == 0:
            return past_events
        with closing(self._context.server.history(self._entry.id)) as events:
            for event in events:
                past_events.append(event)
                if event.number >= last or event.type == "stale":
                    break
        return past_events


def status(cache: Cache, entry: CachedSession) -> bytes:
    """Return the state of a session as JSON; sizes are in bytes, times in seconds since the epoch."""
    with cache.lock:
        settled = cache.settled(entry)
        cache.check(entry)
        values = {
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
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def _running(entry: CachedSession) -> TurnState | None:
    return entry.turn if entry.turn is not None and not entry.turn.ended else None


def _lines(events: Iterable[StreamEvent]) -> bytes:
    lines = []
    for event in events:
        fields = asdict(event)
        del fields["id"]
        lines.append(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines).encode()
