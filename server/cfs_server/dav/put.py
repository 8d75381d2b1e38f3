"""What a PUT to a session means, and doing it (W2).

A body is judged by the rules of `cfs.bodies` against the transcript, and what comes of it is done, in one piece on the
event loop: no other writer gets in between. A long text is judged in the request's thread, so that nobody else has to
wait, and what comes of it is done only if the session is still what it was judged against; else it is judged again.

Who may write but not read gets no judgement, which would tell what is there: its body is a message (S3).
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cfs.bodies import Append, Import, Nothing, Replace, Verdict, has_turns, judge
from cfs.errors import Forbidden, PreconditionFailed, TooLarge
from cfs.wire import Message
from cfs_server.routes.http import strong_tags, unchanged
from cfs_server.sessions.authorized import AuthorizedSessions
from cfs_server.sessions.history import History, Weighed, decode_message, read_history, rendered_in_thread
from cfs_server.sessions.loop_bridge import AT_ONCE_BYTES, LoopBridge
from cfs_server.sessions.quotas import Limits
from cfs_server.sessions.session import Session
from cfs_server.sessions.turns import TurnRequest
from cfs_webdav.tree import Conditions

# What a principal's programs did a moment ago, where it says how their next request is meant.

_DELETE_SECONDS = 5.0
_ASIDE_SECONDS = 60.0
_KEPT = 1_024


class Recent:
    """Keys that were noted within the last `seconds`; of very many the oldest are forgotten before."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._noted: OrderedDict[str, float] = OrderedDict()

    def note(self, key: str) -> None:
        """Note a key now."""
        self._noted[key] = self._clock()
        self._noted.move_to_end(key)
        if len(self._noted) > _KEPT:
            self._noted.popitem(last=False)

    def __contains__(self, key: str) -> bool:
        noted = self._noted.get(key)
        return noted is not None and self._clock() - noted < self._seconds


class Clients:
    """The programs of one principal; used on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._uploads = Recent(_DELETE_SECONDS, clock)
        self._aside = Recent(_ASIDE_SECONDS, clock)

    def uploads(self, user_agent: str, session_id: str) -> None:
        """Note that a program sends something to a session, whatever comes of it."""
        if is_rclone(user_agent):
            self._uploads.note(session_id)

    def require_may_delete(self, user_agent: str, session_id: str) -> None:
        """Raise `Forbidden` where rclone only wants to clean up behind itself.

        It deletes what it has just sent when the size is another one then, as that of a session always is. A status
        that says "later" would make it try for minutes.
        """
        if is_rclone(user_agent) and session_id in self._uploads:
            raise Forbidden(
                f"rclone sent {session_id!r} less than {_DELETE_SECONDS:g} seconds ago, and would delete the whole"
                " session because its size differs from what was sent: use --ignore-size --ignore-checksum, or delete"
                " it later"
            )

    def sets_aside(self, key: str) -> None:
        """Note that a program took a copy of a session by renaming it, and will write it anew."""
        self._aside.note(key)

    def has_set_aside(self, key: str) -> bool:
        """Tell whether a program that wants a new file is one that takes this session to be out of the way."""
        return key in self._aside


def is_rclone(user_agent: str) -> bool:
    """Tell whether a request is rclone's."""
    return user_agent.startswith("rclone/")


def is_davfs2(user_agent: str) -> bool:
    """Tell whether a request is davfs2's."""
    return user_agent.startswith("davfs2/")


# Names of texts that a client was given or has sent: the ETags of sessions on WebDAV (W2). Pure: no I/O.
#
# `<nonce>-<n>` is the transcript at version n, as everywhere. A PUT that adds a message is answered by
# `<nonce>-<n>r<length>-<hash>`, "the bytes that you sent": the client takes it for the name of its own copy, which is
# not the transcript, for the reply will follow. When it sends its copy with another line, this name says where the copy
# ended and the line begins; and as the name itself holds length and hash, nothing has to be kept, nothing can run out,
# and two clients who sent different bytes while one version lasted never share a name. A forged one gives nothing that
# a plain message would not.

_VIEW = re.compile(r'"(?P<nonce>[0-9a-f]+)-(?P<version>[0-9]{1,15})(?:r(?P<size>[0-9]{1,15})-(?P<hash>[0-9a-f]{32}))?"')
_MOST = 16
"""Names that are looked at in one header: each may cost a hash of the body."""


@dataclass(frozen=True, slots=True)
class Version:
    """The transcript at a version."""

    number: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that a client sent, while the transcript was at a version."""

    number: int
    size: int
    hash: str

    def begins(self, body: bytes) -> bool:
        """Tell whether a body begins with these bytes."""
        return len(body) >= self.size and digest(memoryview(body)[: self.size]) == self.hash


View = Version | Sent


def digest(data: bytes | memoryview) -> str:
    """Make the hash that stands in a name."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def name_of_sent(nonce: str, version: int, size: int, hash_: str) -> str:
    """Name the bytes that a client sent, without quotes."""
    return f"{nonce}-{version}r{size}-{hash_}"


def named(header: str | None) -> list[str]:
    """Read the ETags of an `If-Match`, quoted; no more than so many."""
    return strong_tags(header or "")[:_MOST]


def read(tag: str, nonce: str, version: int) -> View | None:
    """Read a quoted ETag as a view of the session that has this nonce and version now; None if it is none."""
    found = _VIEW.fullmatch(tag)
    if found is None or found["nonce"] != nonce or int(found["version"]) > version:
        return None
    number = int(found["version"])
    return Version(number) if found["hash"] is None else Sent(number, int(found["size"]), found["hash"])


GATHERED_BYTES = 64 << 20
"""How much a body may have beyond the transcript that it holds and a message: as in the FUSE bridge."""

_ATTEMPTS = 5


def largest(limits: Limits, transcript: int) -> int:
    """Return how many bytes a body may have that is sent to a session with so many."""
    return transcript + limits.message_bytes + GATHERED_BYTES


def require_size(gate: AuthorizedSessions, session_id: str, size: int) -> None:
    """Raise `TooLarge` for a body that cannot be judged; on the loop. Asked before the body is read into memory."""
    session = gate.find(session_id, "write")
    readable = gate.may("read_binary", session_id)
    most = largest(gate.limits, session.history.size if session and readable else 0)
    if size > most:
        raise TooLarge(f"what is sent to {session_id!r} has {most} bytes at most now; this has {size}")


@dataclass(frozen=True, slots=True)
class Sight:
    """A session as a body is judged against it. `bases` are the names of what the client may have had before."""

    etag: str | None
    text: str
    messages: tuple[Message, ...]
    bases: tuple[Sent | int, ...]
    replaceable: bool
    readable: bool
    limit: int
    most: int

    def judge(self, body: bytes) -> Verdict:
        """Tell what a body means; see `cfs.bodies.judge`."""
        transcript = self.text.encode()
        base = max((known for each in self.bases if (known := _base(each, body, transcript))), key=len, default=b"")
        if self.readable or base:
            return judge(body, transcript, base=base, may_replace=self.replaceable, limit=self.limit, most=self.most)
        return Nothing() if decode_message(body, limit=self.limit) is None else Append(body.decode())


def _base(base: Sent | int, body: bytes, transcript: bytes) -> bytes:
    """Return what the client had, if the body begins with it; a number is a size of the transcript at that time."""
    if isinstance(base, int):
        return transcript[:base] if body.startswith(transcript[:base]) else b""
    return body[: base.size] if base.begins(body) else b""


class Put:
    """One body on its way to a session.

    `hint` is an ETag as in an `If-Match`, but one that need not be known.
    """

    def __init__(
        self,
        gate: AuthorizedSessions,
        clients: Clients,
        session_id: str,
        body: bytes,
        conditions: Conditions,
        hint: str = "",
    ) -> None:
        self._gate = gate
        self._clients = clients
        self._id = session_id
        self._body = body
        self._digest = digest(body)
        self._has_turns = has_turns(body)
        self._conditions = conditions
        self._hint = hint

    def run(self, on_loop: LoopBridge) -> str:
        """Judge the body and do what it means; return the ETag, without quotes, of the bytes that it had.

        Called by a thread. Nothing is stored, and no session made, where it raises: `NotGranted`, `Forbidden`,
        `InvalidIdentifier`, `PreconditionFailed`, `Conflict`, `UnsupportedMedia`, `TooLarge`, `InvalidTranscript`,
        or what a server can run out of.
        """
        if self._has_turns and (history := on_loop(self._history)) is not None:
            rendered_in_thread(history, on_loop)
        done = on_loop(partial(self._at_once, bound=AT_ONCE_BYTES))
        for _ in range(_ATTEMPTS):
            if isinstance(done, str):
                return done
            verdict = done.judge(self._body)
            done = on_loop(partial(self._later, done, verdict, self._read(verdict, done)))
        return done if isinstance(done, str) else on_loop(self._in_one_piece)

    def _read(self, verdict: Verdict, sight: Sight) -> Weighed | None:
        """Read the transcript that a verdict brings; in the thread."""
        if isinstance(verdict, Import | Replace):
            known = sight.messages if isinstance(verdict, Replace) else ()
            return read_history(verdict.transcript, self._gate.limits.messages, known)
        return None

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _in_one_piece(self) -> str:
        session, sight = self._look()
        return self._do(session, sight, sight.judge(self._body))

    def _at_once(self, bound: int) -> str | Sight:
        session, sight = self._look()
        if len(self._body) + len(sight.text) > bound:
            return sight
        return self._do(session, sight, sight.judge(self._body))

    def _history(self) -> History | None:
        session = self._gate.find(self._id, "write")
        return session.history if session is not None and self._gate.may("read_binary", self._id) else None

    def _later(self, judged: Sight, verdict: Verdict, history: Weighed | None) -> str | Sight:
        session, sight = self._look()
        same = (sight.etag, sight.readable, sight.replaceable) == (judged.etag, judged.readable, judged.replaceable)
        return self._do(session, sight, verdict, history) if same else sight

    def _look(self) -> tuple[Session | None, Sight]:
        """See the session as it is now; raises what keeps the body from it whatever it means."""
        require_size(self._gate, self._id, len(self._body))
        session = self._gate.find(self._id, "write")
        readable = self._gate.may("read_binary", self._id)
        self._require(session)
        bases, replaceable = self._bases(session)
        text = session.history.text if session and readable and self._has_turns else ""
        etag = session.etag if session else None
        messages = session.history.messages if session and readable else ()
        limits = self._gate.limits
        most = limits.message_bytes, limits.messages
        return session, Sight(etag, text, messages, bases, replaceable, readable, *most)

    def _require(self, session: Session | None) -> None:
        """Raise `PreconditionFailed` unless what the client named is there, or is not there (RFC 9110, 13.1)."""
        wanted, unwanted = self._conditions.if_match, self._conditions.if_none_match
        if wanted is not None and (session is None or (wanted.strip() != "*" and not _known(session, wanted))):
            now = "there is no such session" if session is None else "it has none of these versions, or has lost them"
            raise PreconditionFailed(f"If-Match: {wanted} does not hold for {self._id!r}: {now}; read it again")
        if unwanted is None or session is None or not unchanged(unwanted, session.etag):
            return
        if unwanted.strip() == "*" and self._clients.has_set_aside(session.key):
            return
        raise PreconditionFailed(f"If-None-Match: {unwanted} does not hold for {self._id!r}: it is there; read it")

    def _bases(self, session: Session | None) -> tuple[tuple[Sent | int, ...], bool]:
        """Tell what the client may have had before, and whether it named the present version."""
        bases: list[Sent | int] = []
        replaceable = False
        if session is not None:
            for view in _known(session, " ".join([self._conditions.if_match or "", self._hint])):
                if isinstance(view, Sent):
                    bases.append(view)
                elif (size := session.history.size_at(view.number)) is not None:
                    bases.append(size)
            replaceable = session.etag in named(self._conditions.if_match)
        return tuple(bases), replaceable

    def _do(self, session: Session | None, sight: Sight, verdict: Verdict, history: Weighed | None = None) -> str:
        match verdict:
            case Append(text):
                content = decode_message(text.encode(), limit=self._gate.limits.message_bytes)
                if content is not None:
                    session, *_ = self._gate.submit(self._id, TurnRequest(Message(role="user", content=content)))
                    return self._name_of_sent(session)
            case Import(transcript):
                session = self._gate.fill(self._id, history or transcript)
            case Replace(transcript) if sight.etag is not None:
                session = self._gate.replace(self._id, history or transcript, sight.etag)
        session = session or self._gate.open(self._id)
        same = sight.readable and session.history.size == len(self._body)
        if same and session.history.text.encode() == self._body:
            return session.etag.strip('"')
        return self._name_of_sent(session)

    def _name_of_sent(self, session: Session) -> str:
        return name_of_sent(session.nonce, session.history.version, len(self._body), self._digest)


def _known(session: Session, header: str) -> Sequence[View]:
    """Read which views of a session a header names; a transcript that was replaced meanwhile is none any more."""
    found = [read(tag, session.nonce, session.history.version) for tag in named(header)]
    return [
        view
        for view in found
        if view is not None and (isinstance(view, Sent) or session.history.size_at(view.number) is not None)
    ]
