"""Decides the meaning of a PUT to a session, and executes it (W2).

The rules of `cfs.contract.bodies` compare the body with the transcript. The result is applied on the event loop in one
step, so that no other writer can interfere. A long body is compared in the thread of the request, so that the loop is
not blocked. Its result is applied only if the session has not changed since; otherwise the body is compared again.

A caller who may write but not read gets no comparison, because its result would reveal the content. The body is then
one message (S3).
"""

import hashlib
import re
import time
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cfs.contract.bodies import Append, ImportedHistory, Nothing, Replace, Verdict, has_turns, judge
from cfs.errors import Forbidden, PreconditionFailed, TooLarge
from cfs.wire import Message
from cfs_server.dav.new_files import RENAME_WAIT_SECONDS, NewFiles
from cfs_server.domain.history import History, rendered_in_thread
from cfs_server.domain.loop_bridge import AT_ONCE_BYTES, LoopBridge
from cfs_server.domain.message_sizes import decode_message
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages, read_history
from cfs_server.domain.turns import TurnRequest
from cfs_server.http.etags import strong_tags, unchanged
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.session import Session
from cfs_webdav.tree import Conditions

# Recent actions of a principal's programs, where they decide the meaning of the next request.

_DELETE_SECONDS = 5.0
_ASIDE_SECONDS = 60.0
_KEPT = 1_024


class RecentKeys:
    """Keys that were noted within the last `seconds`. The number of keys is limited; the oldest are dropped first."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._noted: OrderedDict[str, float] = OrderedDict()

    def note(self, key: str) -> None:
        """Store a key with the current time."""
        self._noted[key] = self._clock()
        self._noted.move_to_end(key)
        if len(self._noted) > _KEPT:
            self._noted.popitem(last=False)

    def __contains__(self, key: str) -> bool:
        noted = self._noted.get(key)
        return noted is not None and self._clock() - noted < self._seconds


class Clients:
    """The programs of one principal. Used on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rename_wait: float = RENAME_WAIT_SECONDS) -> None:
        self._uploads = RecentKeys(_DELETE_SECONDS, clock)
        self._aside = RecentKeys(_ASIDE_SECONDS, clock)
        self.new_files = NewFiles(clock, rename_wait)
        self._moved: OrderedDict[str, str] = OrderedDict()

    def uploads(self, user_agent: str, session_id: str) -> None:
        """Record that a program sends content to a session, whatever the result."""
        if is_rclone(user_agent):
            self._uploads.note(session_id)

    def require_may_delete(self, user_agent: str, session_id: str) -> None:
        """Raise `Forbidden` if rclone deletes the session only to clean up after an upload.

        rclone deletes an uploaded file if its size differs afterwards. The size of a session always differs. rclone
        would repeat the request for minutes after a status that means "try later".
        """
        if is_rclone(user_agent) and session_id in self._uploads:
            raise Forbidden(
                f"rclone sent {session_id!r} less than {_DELETE_SECONDS:g} seconds ago, and would delete the whole"
                " session because its size differs from what was sent: use --ignore-size --ignore-checksum, or delete"
                " it later"
            )

    def moves(self, user_agent: str, session_id: str, etag: str) -> None:
        """Record the ETag of the bytes that davfs2 has moved to a session.

        It asks for the ETag by a HEAD afterwards, and believes that it has this version. With the ETag of a transcript
        that it does not have, it would show its own bytes, and its next change would replace the transcript by them.
        """
        if is_davfs2(user_agent):
            self._moved[session_id] = etag
            while len(self._moved) > _KEPT:
                self._moved.popitem(last=False)

    def moved(self, user_agent: str, session_id: str) -> str | None:
        """Return the ETag, without quotes, for the HEAD with which davfs2 asks what it has moved."""
        return self._moved.pop(session_id, None) if is_davfs2(user_agent) else None

    def sets_aside(self, key: str) -> None:
        """Record that a program copied a session by renaming it and will write it again."""
        self._aside.note(key)

    def has_set_aside(self, key: str) -> bool:
        """Return whether a program that creates this file has renamed the session away before."""
        return key in self._aside


def is_rclone(user_agent: str) -> bool:
    """Return whether a request comes from rclone."""
    return user_agent.startswith("rclone/")


def is_davfs2(user_agent: str) -> bool:
    """Return whether a request comes from davfs2."""
    return user_agent.startswith("davfs2/")


# ETags of sessions on WebDAV (W2). Pure functions, no I/O.
#
# `<nonce>-<n>` is the transcript at version n, as in the other interfaces. A PUT that adds a message returns
# `<nonce>-<n>r<length>-<hash>`, which identifies the bytes that the client sent. The client uses it as the ETag of its
# own copy. The copy differs from the transcript, because the reply follows. When the client sends its copy with another
# line, this ETag shows where the copy ends and the new line begins. The ETag itself contains length and hash. So the
# server stores nothing, nothing expires, and two clients that sent different bytes during one version never share an
# ETag. A forged ETag gives no more rights than a plain message.

_VIEW = re.compile(r'"(?P<nonce>[0-9a-f]+)-(?P<version>[0-9]{1,15})(?:r(?P<size>[0-9]{1,15})-(?P<hash>[0-9a-f]{32}))?"')
_MOST = 16
"""Maximum number of ETags of one header. Each may require a hash of the body."""


@dataclass(frozen=True, slots=True)
class TranscriptVersion:
    """The transcript at a version."""

    number: int


@dataclass(frozen=True, slots=True)
class SentBytes:
    """The bytes that a client sent when the transcript had a version."""

    number: int
    size: int
    hash: str

    def begins(self, body: bytes) -> bool:
        """Return whether a body begins with these bytes."""
        return len(body) >= self.size and digest(memoryview(body)[: self.size]) == self.hash


View = TranscriptVersion | SentBytes


def digest(data: bytes | memoryview) -> str:
    """Return the hash for an ETag."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def name_of_sent(nonce: str, version: int, size: int, hash_: str) -> str:
    """Return the ETag of the bytes that a client sent, without quotes."""
    return f"{nonce}-{version}r{size}-{hash_}"


def named(header: str | None) -> list[str]:
    """Return the ETags of an `If-Match`, quoted. Their number is limited."""
    return strong_tags(header or "")[:_MOST]


def read(tag: str, nonce: str, version: int) -> View | None:
    """Parse a quoted ETag for the session that has this nonce and version now; None if it does not match."""
    match = _VIEW.fullmatch(tag)
    if match is None or match["nonce"] != nonce or int(match["version"]) > version:
        return None
    number = int(match["version"])
    return TranscriptVersion(number) if match["hash"] is None else SentBytes(number, int(match["size"]), match["hash"])


GATHERED_BYTES = 64 << 20
"""Maximum size of a body beyond the transcript and one message, the same as in the FUSE bridge."""

_ATTEMPTS = 5


def largest(limits: StoreLimits, transcript: int) -> int:
    """Return the maximum size in bytes of a body for a session with a transcript of this size."""
    return transcript + limits.message_bytes + GATHERED_BYTES


def require_size(gate: AuthorizedSessions, session_id: str, size: int) -> None:
    """Raise `TooLarge` for a body that is too large to compare. Called on the loop, before the body is read."""
    session = gate.find(session_id, "write")
    readable = gate.may("read_binary", session_id)
    max_bytes = largest(gate.limits, session.history.size if session and readable else 0)
    if size > max_bytes:
        raise TooLarge(f"what is sent to {session_id!r} has {max_bytes} bytes at most now; this has {size}")


@dataclass(frozen=True, slots=True)
class ComparedSession:
    """A session as the input of a comparison. `bases` identify the texts that the client may have had before."""

    etag: str | None
    text: str
    messages: tuple[Message, ...]
    bases: tuple[SentBytes | int, ...]
    replaceable: bool
    readable: bool
    limit: int
    max_messages: int

    def judge(self, body: bytes) -> Verdict:
        """Return the meaning of a body. See `cfs.contract.bodies.judge`."""
        transcript = self.text.encode()
        base = max(
            (known_part for candidate in self.bases if (known_part := _base(candidate, body, transcript))),
            key=len,
            default=b"",
        )
        if self.readable or base:
            return judge(
                body,
                transcript,
                base=base,
                may_replace=self.replaceable,
                limit=self.limit,
                max_messages=self.max_messages,
            )
        return Nothing() if decode_message(body, limit=self.limit) is None else Append(body.decode())


def _base(base: SentBytes | int, body: bytes, transcript: bytes) -> bytes:
    """Return the client's previous copy if the body begins with it. A number is an earlier size of the transcript."""
    if isinstance(base, int):
        return transcript[:base] if body.startswith(transcript[:base]) else b""
    return body[: base.size] if base.begins(body) else b""


class Put:
    """One body for a session.

    `hint` is an ETag as in `If-Match`, but an unknown one is not an error. `then` is called in the same step in which
    the body is applied, so that nothing can happen in between.
    """

    def __init__(
        self,
        gate: AuthorizedSessions,
        clients: Clients,
        session_id: str,
        body: bytes,
        conditions: Conditions,
        hint: str = "",
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._then = then
        self._gate = gate
        self._clients = clients
        self._id = session_id
        self._body = body.removeprefix(BOM_UTF8)
        self._digest = digest(body)
        self._has_turns = has_turns(body)
        self._conditions = conditions
        self._hint = hint

    def run(self, on_loop: LoopBridge) -> str:
        """Compare the body with the session and apply the result. Return the ETag of the body's bytes, without quotes.

        Called by a thread. If it raises, nothing is stored and no session is created. Raises `NotGranted`, `Forbidden`,
        `InvalidIdentifier`, `PreconditionFailed`, `Conflict`, `UnsupportedMedia`, `TooLarge`, `InvalidTranscript`, and
        the errors for exhausted limits.
        """
        with on_loop.within(self._gate.loaded(self._id)):
            if self._has_turns and (history := on_loop(self._history)) is not None:
                rendered_in_thread(history, on_loop)
            result = on_loop(partial(self._at_once, bound=AT_ONCE_BYTES))
            for _ in range(_ATTEMPTS):
                if isinstance(result, str):
                    return result
                verdict = result.judge(self._body)
                result = on_loop(partial(self._later, result, verdict, self._read(verdict, result)))
            return result if isinstance(result, str) else on_loop(self._in_one_piece)

    def _read(self, verdict: Verdict, sight: ComparedSession) -> SizedMessages | None:
        """Parse the transcript of a verdict. Runs in the thread."""
        if isinstance(verdict, ImportedHistory | Replace):
            existing = sight.messages if isinstance(verdict, Replace) else ()
            return read_history(verdict.transcript, self._gate.limits.messages, existing)
        return None

    def _in_one_piece(self) -> str:
        session, sight = self._look()
        return self._do(session, sight, sight.judge(self._body))

    def _at_once(self, bound: int) -> str | ComparedSession:
        session, sight = self._look()
        if len(self._body) + len(sight.text) > bound:
            return sight
        return self._do(session, sight, sight.judge(self._body))

    def _history(self) -> History | None:
        session = self._gate.find(self._id, "write")
        return session.history if session is not None and self._gate.may("read_binary", self._id) else None

    def _later(self, judged: ComparedSession, verdict: Verdict, history: SizedMessages | None) -> str | ComparedSession:
        session, sight = self._look()
        same = (sight.etag, sight.readable, sight.replaceable) == (judged.etag, judged.readable, judged.replaceable)
        return self._do(session, sight, verdict, history) if same else sight

    def _look(self) -> tuple[Session | None, ComparedSession]:
        """Return the current session. Raises errors that apply to every body, whatever it means."""
        require_size(self._gate, self._id, len(self._body))
        session = self._gate.find(self._id, "write")
        readable = self._gate.may("read_binary", self._id)
        self._require(session)
        bases, replaceable = self._bases(session)
        text = session.history.text if session and readable and self._has_turns else ""
        etag = session.etag if session else None
        messages = session.history.messages if session and readable else ()
        limits = self._gate.limits
        maxima = limits.message_bytes, limits.messages
        return session, ComparedSession(etag, text, messages, bases, replaceable, readable, *maxima)

    def _require(self, session: Session | None) -> None:
        """Raise `PreconditionFailed` unless the conditions of the request are true (RFC 9110, 13.1)."""
        if_match, if_none_match = self._conditions.if_match, self._conditions.if_none_match
        if if_match is not None and (
            session is None or (if_match.strip() != "*" and not _existing_versions(session, if_match))
        ):
            now = "there is no such session" if session is None else "it has none of these versions, or has lost them"
            raise PreconditionFailed(f"If-Match: {if_match} does not hold for {self._id!r}: {now}; read it again")
        if if_none_match is None or session is None or not unchanged(if_none_match, session.etag):
            return
        if if_none_match.strip() == "*" and self._clients.has_set_aside(session.key):
            return
        raise PreconditionFailed(f"If-None-Match: {if_none_match} does not hold for {self._id!r}: it is there; read it")

    def _bases(self, session: Session | None) -> tuple[tuple[SentBytes | int, ...], bool]:
        """Return the texts that the client may have had before, and whether it named the current version."""
        bases: list[SentBytes | int] = []
        replaceable = False
        if session is not None:
            for view in _existing_versions(session, " ".join([self._conditions.if_match or "", self._hint])):
                if isinstance(view, SentBytes):
                    bases.append(view)
                elif (size := session.history.size_at(view.number)) is not None:
                    bases.append(size)
            replaceable = session.etag in named(self._conditions.if_match)
        return tuple(bases), replaceable

    def _do(
        self, session: Session | None, sight: ComparedSession, verdict: Verdict, history: SizedMessages | None = None
    ) -> str:
        new_files, is_new = self._clients.new_files, session is None
        session, is_message = self._apply(session, sight, verdict, history)
        new_files.written(session, self._body, created=is_new)
        self._then()
        if is_message:
            return self._name_of_sent(session)
        same = sight.readable and session.history.size == len(self._body)
        if same and session.history.text.encode() == self._body:
            return session.etag.strip('"')
        return self._name_of_sent(session)

    def _apply(
        self, session: Session | None, sight: ComparedSession, verdict: Verdict, history: SizedMessages | None
    ) -> tuple[Session, bool]:
        """Apply a verdict. Return the session, and whether it has got a message."""
        delay = self._clients.new_files.delay(session)
        match verdict:
            case Append(text):
                content = decode_message(text.encode(), limit=self._gate.limits.message_bytes)
                if content is not None:
                    request = TurnRequest(Message(role="user", content=content), delay=delay)
                    return self._gate.submit(self._id, request)[0], True
            case ImportedHistory(transcript):
                return self._gate.fill(self._id, history or transcript, delay), False
            case Replace(transcript) if sight.etag is not None:
                return self._gate.replace(self._id, history or transcript, sight.etag), False
        return session or self._gate.open(self._id), False

    def _name_of_sent(self, session: Session) -> str:
        return name_of_sent(session.nonce, session.history.version, len(self._body), self._digest)


def _existing_versions(session: Session, header: str) -> Sequence[View]:
    """Return the known versions in a header. Those from before a replacement of the transcript do not count."""
    views = [read(tag, session.nonce, session.history.version) for tag in named(header)]
    return [
        view
        for view in views
        if view is not None and (isinstance(view, SentBytes) or session.history.size_at(view.number) is not None)
    ]
